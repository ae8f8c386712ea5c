/**
 * The upstream of a soak, in a process of its own: answers every call, and keeps nothing of it but how long it had taken to
 * come, since the books of the simulated upstream would fill its memory within minutes. A key ends with the time of its POST
 * in milliseconds since 1970. Speaks with its parent over Node's IPC channel (`soak-upstream-process.ts`).
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { percentile } from './figures.ts';
import type { Taken } from './soak-upstream-process.ts';

let total = 0;
let latencies: number[] = [];

const server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
  const key = String(request.headers['idempotency-key']);
  total += 1;
  latencies.push(Date.now() - Number(key.slice(key.lastIndexOf('-') + 1)));
  request.resume();
  request.on('end', () => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(`{"effect":${total},"key":"${key}"}`);
  });
});

process.on('SIGINT', () => {});
process.on('disconnect', () => process.exit(0));
process.on('message', (command: 'count' | 'take') => process.send?.(command === 'count' ? total : take()));
server.listen({ port: 0, host: '127.0.0.1', backlog: 1024 }, () => {
  process.send?.(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
});

function take(): Taken {
  const sorted = latencies.sort((a, b) => a - b);
  latencies = [];
  if (sorted.length === 0) return { total, calls: 0, p50Ms: null, p99Ms: null, mostMs: null };
  return {
    total,
    calls: sorted.length,
    p50Ms: percentile(sorted, 50),
    p99Ms: percentile(sorted, 99),
    mostMs: sorted.at(-1)!,
  };
}
