/**
 * What no design can beat on this machine: the same calls to the same upstream with nothing behind them, by undici alone
 * with the settings of our sender, and by the sender itself.
 */
import { Agent, request } from 'undici';
import { createSender, type OutboundRequest } from '../src/outbound/send-request.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { items } from './calls-to-make.ts';
import { type Spread, spread } from './figures.ts';
import type { Stage } from './stage.ts';

export interface FloorFigures {
  readonly slots: number;
  readonly calls: number;
  /** Calls per second. */
  readonly undici: Spread;
  readonly sender: Spread;
}

export async function measureFloors(
  stage: Stage,
  { slots, calls, runs }: { slots: number; calls: number; runs: number },
): Promise<FloorFigures> {
  const upstream = await stage.startUpstream();
  const agent = new Agent({ connections: slots, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 });
  const sender = createSender({ clock, connectionsPerOrigin: slots });
  const never = new AbortController().signal;

  const byUndici = async ({ url, method, headers, body }: OutboundRequest) => {
    const answer = await request(url, { dispatcher: agent, method, headers, body });
    await answer.body.text();
    if (answer.statusCode !== 200) throw new Error(`answered ${answer.statusCode}`);
  };
  const bySender = async (call: OutboundRequest) => {
    const startedAtMs = clock.monotonicMs();
    const result = await sender.send(call, { mayStillSend: () => true, startedAtMs, signal: never });
    if (result.kind !== 'answered') throw new Error(`ended ${result.kind}`);
  };
  const rates: Record<'undici' | 'sender', number[]> = { undici: [], sender: [] };
  for (let run = -1; run < runs; run += 1) {
    for (const [name, send] of [
      ['undici', byUndici],
      ['sender', bySender],
    ] as const) {
      const rate = await callsPerSecond(requests(upstream.url, `${name}-${run}`, calls), slots, send);
      // The first warms up.
      if (run >= 0) rates[name].push(rate);
    }
  }
  await sender.close();
  await agent.close();
  await upstream.close();
  return { slots, calls, undici: spread(rates.undici), sender: spread(rates.sender) };
}

function requests(baseUrl: string, prefix: string, count: number): OutboundRequest[] {
  const url = new URL(`${baseUrl}/charges`);
  return items(prefix, count).map(({ idempotency_key, body }) => ({
    url,
    method: 'POST',
    headers: {
      traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
      'content-type': 'application/json',
      'idempotency-key': idempotency_key,
      'sluice-job-id': idempotency_key,
      'sluice-attempt': '1',
    },
    body: JSON.stringify(body),
    timeoutMs: 15_000,
    connectTimeoutMs: 5_000,
    allowPrivateAddresses: true,
    secrets: [],
  }));
}

async function callsPerSecond(
  calls: readonly OutboundRequest[],
  slots: number,
  send: (call: OutboundRequest) => Promise<void>,
): Promise<number> {
  const left = calls.values();
  const startMs = clock.monotonicMs();
  const slot = async () => {
    for (const call of left) await send(call);
  };
  await Promise.all(Array.from({ length: slots }, slot));
  return (calls.length * 1000) / (clock.monotonicMs() - startMs);
}
