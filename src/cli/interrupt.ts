/** Ctrl-C and its like, for commands that have something to say or to clean up before they end. */

/** By convention 128 and the number of SIGINT. */
export const interruptedCode = 130;

const stopSignals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** The first one aborts the signal; the second ends this process at once, clean or not. */
export function listenForInterrupt(): { signal: AbortSignal; release: () => void } {
  const controller = new AbortController();
  const onSignal = () => {
    if (controller.signal.aborted) process.exit(interruptedCode);
    controller.abort();
  };
  for (const name of stopSignals) process.on(name, onSignal);
  return {
    signal: controller.signal,
    release() {
      for (const name of stopSignals) process.off(name, onSignal);
    },
  };
}
