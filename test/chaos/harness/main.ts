/**
 * `npm run chaos`: replicas under load while everything around them and in them breaks at random, from a seed. Prints what
 * happens, then what the books say; ends with 1 where anything was lost, doubled, over the limit or not as it must be, and
 * with 130 where it was interrupted. The same seed plans the same faults.
 */
import { randomInt } from 'node:crypto';
import { parseArgs } from 'node:util';
import { reportLines } from './report.ts';
import { runChaos } from './run.ts';

const usage = 'npm run chaos -- [--seconds 300] [--seed N] [--replicas 3] [--items 20000]';

function wholeNumber(name: string, text: string, [least, most]: readonly [number, number]): number {
  const value = Number(text);
  if (/^\d{1,9}$/.test(text) && value >= least && value <= most) return value;
  console.error(`--${name} must be a whole number from ${least} to ${most}, not ${JSON.stringify(text)}\n${usage}`);
  process.exit(2);
}

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '300' },
    seed: { type: 'string', default: String(randomInt(1_000_000)) },
    replicas: { type: 'string', default: '3' },
    items: { type: 'string', default: '20000' },
    'from-sources': { type: 'boolean', default: false },
  },
});
const seconds = wholeNumber('seconds', values.seconds, [15, 86_400]);
const seed = wholeNumber('seed', values.seed, [0, 999_999_999]);
const replicas = wholeNumber('replicas', values.replicas, [2, 20]);
const items = wholeNumber('items', values.items, [50, 1_000_000]);

const interrupt = new AbortController();
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(name, () => {
    // The second one does not wait; what runs is killed on the way out.
    if (interrupt.signal.aborted) process.exit(130);
    interrupt.abort();
  });
}

console.log(
  `Seed ${seed}: npm run chaos -- --seconds ${seconds} --seed ${seed} --replicas ${replicas} --items ${items}\n`,
);
try {
  const report = await runChaos({
    seconds,
    seed,
    replicas,
    items,
    fromSources: values['from-sources'],
    say: (line) => console.log(line),
    signal: interrupt.signal,
  });
  console.log(`\n${reportLines(report).join('\n')}\n`);
  const passed = report.faults.length === 0;
  console.log(`${passed ? 'Passed' : 'FAILED'} in ${(report.tookMs / 1000).toFixed(0)} s, seed ${seed}`);
  process.exitCode = passed ? 0 : 1;
} catch (error) {
  if (interrupt.signal.aborted) console.log('\nInterrupted; everything is taken down.');
  else console.error(`\nThe run could not be made (seed ${seed}):`, error);
  process.exitCode = interrupt.signal.aborted ? 130 : 1;
}
