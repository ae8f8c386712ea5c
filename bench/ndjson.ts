/**
 * `npm run bench:ndjson`: one stream of 1,000,000 lines. Measures lines per second, how long the first verdict takes, and the
 * most memory that the service ever had (from /proc), which must stay under 300 MB: with a client that reads as it sends, with
 * one that reads only after it has sent everything, and with one that is cut off at a random line and sends it all again.
 * Ends with 1 where memory or a count is wrong. `--lines`: fewer. `--only reads,last,cut`: some of them.
 */
import { readFile } from 'node:fs/promises';
import { Agent, type ClientRequest, type IncomingMessage, request } from 'node:http';
import { parseArgs } from 'node:util';
import { table } from '../src/cli/demo/table.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { AnswerReader } from './answer-reader.ts';
import { inWords } from './figures.ts';
import { describeMachine, load, machineInWords, writeResults } from './results.ts';
import { declareUpstream } from './service-client.ts';
import { onStage, type Stage } from './stage.ts';

const { values } = parseArgs({
  options: { lines: { type: 'string', default: '1000000' }, only: { type: 'string', default: 'reads,last,cut' } },
});
const count = Number(values.lines);
const parts = new Set(values.only.split(','));
const longestMinutes = 20;
const mostMegabytes = 300;
const linesPerWrite = 500;

interface Figures {
  readonly name: string;
  readonly linesPerSecond: number;
  readonly firstVerdictMs: number;
  readonly sentAfterSeconds: number;
  readonly peakMegabytes: number;
  readonly faults: readonly string[];
}

await onStage(longestMinutes, async (stage) => {
  const { database } = await stage.createDatabase('machine');
  const machine = await describeMachine(database);
  console.log(`${machineInWords(machine)}\n`);
  const all: Figures[] = [];
  if (parts.has('reads'))
    all.push(await measure(stage, 'reads', 'reads while it sends', { readLast: false, cut: false }));
  if (parts.has('last'))
    all.push(await measure(stage, 'last', 'reads when all is sent', { readLast: true, cut: false }));
  if (parts.has('cut')) all.push(await measure(stage, 'cut', 'cut off, sent again', { readLast: false, cut: true }));
  console.log(`one stream of ${inWords(count)} lines`);
  console.log(
    table([
      ['', 'lines/s', 'first verdict', 'all sent after', 'most memory', ''],
      ...all.map((each) => [
        each.name,
        inWords(each.linesPerSecond),
        `${Math.round(each.firstVerdictMs)} ms`,
        `${each.sentAfterSeconds.toFixed(1)} s`,
        `${each.peakMegabytes} MB`,
        each.faults.join('; ') || 'ok',
      ]),
    ]),
  );
  const path = await writeResults('ndjson', { machine, loadAtEnd: load(), count, all });
  console.log(`\nload at the end ${load()}; all figures are in ${path}`);
  if (all.some(({ faults }) => faults.length > 0)) process.exitCode = 1;
});

async function measure(
  stage: Stage,
  key: string,
  name: string,
  { readLast, cut }: { readLast: boolean; cut: boolean },
): Promise<Figures> {
  const target = await stage.createDatabase(`ndjson_${key}`);
  const service = await stage.startService(target, { env: { SLUICE_ROLES: 'api' } });
  await declareUpstream(service.url, 'api', 'http://127.0.0.1:9');
  const faults: string[] = [];
  if (cut) {
    const line = 1 + Math.floor(Math.random() * (count - 1));
    const broken = openStream(service.url, key);
    // So that it is cut where it says, and not before the service has got there.
    void new AnswerReader().read(await broken.head).catch(() => undefined);
    await send(broken.request, line);
    broken.request.destroy();
  }
  const startMs = clock.monotonicMs();
  const stream = openStream(service.url, key);
  const head = await stream.head;
  const reader = new AnswerReader();
  const reading = readLast ? undefined : reader.read(head);
  await send(stream.request, count);
  stream.request.end();
  const sentMs = clock.monotonicMs();
  await (reading ?? reader.read(head));
  const endMs = clock.monotonicMs();

  const peakMegabytes = Math.round((await peakKilobytes(service.pid)) / 1024);
  const [stored] = await target.database.query<{ items: number; jobs: number; batches: number }>(
    `select (select count(*) from sluice.stored_items)::int as items, (select count(*) from sluice.jobs)::int as jobs,
            (select count(*) from sluice.batches)::int as batches`,
  );
  await service.stop();
  if (head.statusCode !== 202) faults.push(`answered ${head.statusCode}`);
  if (reader.verdicts !== count) faults.push(`${reader.verdicts} verdicts`);
  if (!reader.inOrder) faults.push('verdicts out of order');
  if (reader.summary?.counts.accepted !== count) faults.push(`summary ${JSON.stringify(reader.summary ?? null)}`);
  if (stored!.items !== count || stored!.jobs !== count || stored!.batches !== 1) {
    faults.push(`stored ${JSON.stringify(stored)}`);
  }
  if (cut && reader.replayed === 0) faults.push('nothing was replayed');
  if (peakMegabytes > mostMegabytes) faults.push(`more than ${mostMegabytes} MB`);
  return {
    name: cut ? `${name} (${inWords(reader.replayed)} stored before)` : name,
    linesPerSecond: (count * 1000) / (endMs - startMs),
    firstVerdictMs: (reader.firstMs ?? endMs) - startMs,
    sentAfterSeconds: (sentMs - startMs) / 1000,
    peakMegabytes,
    faults,
  };
}

function openStream(url: string, key: string): { request: ClientRequest; head: Promise<IncomingMessage> } {
  const sent = request(`${url}/v1/batches?upstream=api&path=/charges`, {
    method: 'POST',
    agent: new Agent({ keepAlive: true }),
    headers: { 'content-type': 'application/x-ndjson', 'idempotency-key': key },
  });
  const head = new Promise<IncomingMessage>((resolve, reject) => {
    sent.on('response', resolve);
    sent.on('error', reject);
  });
  sent.flushHeaders();
  return { request: sent, head };
}

/** The first `lines` of the stream, as fast as the service takes them. */
async function send(to: ClientRequest, lines: number): Promise<void> {
  for (let from = 0; from < lines; from += linesPerWrite) {
    let text = '';
    for (let i = from; i < Math.min(lines, from + linesPerWrite); i += 1) {
      text += `{"idempotency_key":"order-${i}","body":{"amount":${i},"currency":"eur","customer":"cus_${i}","note":"a note of some length, as such things have"}}\n`;
    }
    if (!to.write(text)) await new Promise((resolve) => to.once('drain', resolve));
  }
}

/** The most that a process has had resident. */
async function peakKilobytes(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1] ?? 0);
}
