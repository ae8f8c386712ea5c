/** A sender that is closed when its test ends, and calls in which a test names only what matters to it. */
import type { Test } from 'tap';
import type { CallResult } from '../../src/domain/outcome.ts';
import {
  createSender,
  type OutboundRequest,
  type Sender,
  type SenderOptions,
  type SendOptions,
} from '../../src/outbound/send-request.ts';
import { systemClock } from '../../src/system/clock.ts';

export type Call = Partial<OutboundRequest> & Partial<SendOptions> & { readonly url: URL };

export interface TestSender {
  readonly sender: Sender;
  send(call: Call): Promise<CallResult>;
}

export function setupSender(t: Test, options: Partial<SenderOptions> = {}): TestSender {
  const sender = createSender({ clock: systemClock, ...options });
  t.teardown(() => sender.close());
  return {
    sender,
    send({ mayStillSend, startedAtMs, signal, ...request }) {
      return sender.send(
        {
          method: 'POST',
          headers: {},
          body: null,
          timeoutMs: 30_000,
          connectTimeoutMs: 30_000,
          allowPrivateAddresses: true,
          secrets: [],
          ...request,
        },
        {
          mayStillSend: mayStillSend ?? (() => true),
          startedAtMs: startedAtMs ?? systemClock.monotonicMs(),
          signal: signal ?? new AbortController().signal,
        },
      );
    },
  };
}

/** The answer, or a test that fails with what came instead. */
export function answered(result: CallResult): Extract<CallResult, { kind: 'answered' }> {
  if (result.kind !== 'answered') throw new Error(`not answered: ${JSON.stringify(result)}`);
  return result;
}
