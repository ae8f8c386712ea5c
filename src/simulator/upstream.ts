/**
 * A third-party API to practise on: rate-limited, with an idempotency store of its own, answers by script or by chance, and
 * books of every call. Used by the demo, the tests and the benches, so it must be right about effects: a known key gets the
 * stored result of its first effect; what fails or is throttled before its effect stores nothing; an effect whose answer was
 * lost stays stored.
 */
import { setMaxListeners } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type Clock, systemClock } from '../system/clock.ts';
import { type ActiveRule, type Answer, type FaultMix, type Rule, randomAnswer, scriptedAnswer } from './answers.ts';
import { type Quota, QuotaKeeper } from './quota.ts';
import { type Content, resetConnection, sendReply } from './reply.ts';
import { type ArrivedRequest, RequestLog } from './request-log.ts';

export interface UpstreamOptions {
  /** Default: a free port of 127.0.0.1. */
  readonly port?: number;
  /** Repeats the random faults; default 1. */
  readonly seed?: number;
  readonly rules?: readonly Rule[];
  readonly faults?: FaultMix;
  readonly quota?: Quota;
  /** Header that carries the key; null: this API knows none, so every call takes effect. Default: idempotency-key. */
  readonly idempotencyHeader?: string | null;
  /**
   * A GET of a path that begins with this, followed by a percent-encoded key, tells whether the key has taken effect: 200 or
   * 404, unless a rule says otherwise.
   */
  readonly lookupPath?: string;
  /** Keeps neither headers nor bodies in the log: for benches. */
  readonly lean?: boolean;
  /** How long an idle connection stays open, in milliseconds; default 60,000. */
  readonly keepAliveMs?: number;
}

/** Starts listening; rejects where the port is taken. */
export async function startUpstream(options: UpstreamOptions = {}): Promise<Upstream> {
  const upstream = new Upstream(options, systemClock);
  await upstream.listen(options.port ?? 0);
  return upstream;
}

export class Upstream {
  /** Live: grows with every call. */
  readonly log = new RequestLog();
  readonly #options: UpstreamOptions;
  readonly #clock: Clock;
  readonly #server: Server;
  readonly #header: string | null;
  #rules: ActiveRule[] = [];
  #faults: FaultMix;
  #quota: QuotaKeeper | null = null;
  readonly #stored = new Map<string, Content>();
  readonly #callsByKey = new Map<string, number>();
  readonly #connections = new WeakMap<object, number>();
  #connectionCount = 0;
  #effectCount = 0;
  readonly #gates = new Map<string, AbortController>();
  readonly #watchers = new Set<() => void>();
  readonly #closing = signalForMany();

  constructor(options: UpstreamOptions, clock: Clock) {
    this.#options = options;
    this.#clock = clock;
    this.#header = options.idempotencyHeader === undefined ? 'idempotency-key' : options.idempotencyHeader;
    this.#faults = options.faults ?? {};
    this.setQuota(options.quota ?? null);
    this.script(...(options.rules ?? []));
    this.#server = createServer({ keepAliveTimeout: options.keepAliveMs ?? 60_000 }, (request, response) =>
      this.#receive(request, response),
    );
    this.#server.on('connection', (socket) => {
      this.#connectionCount += 1;
      this.#connections.set(socket, this.#connectionCount);
      // A reset by the caller is an ordinary event here; unhandled it would end the process.
      socket.on('error', () => socket.destroy());
    });
  }

  async listen(port: number): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen({ port, host: '127.0.0.1', backlog: 1024 }, resolve);
    });
  }

  /** `http://127.0.0.1:port`, without a slash at the end. */
  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Adds rules before those that are there: the newest that holds wins, within one call the first. */
  script(...rules: Rule[]): void {
    this.#rules = [...rules.map((rule) => ({ rule, seen: 0 })), ...this.#rules];
  }

  /** Forgets every rule. */
  unscript(): void {
    this.#rules = [];
  }

  setFaults(mix: FaultMix): void {
    this.#faults = mix;
  }

  /** Starts to count anew. */
  setQuota(quota: Quota | null): void {
    this.#quota = quota === null ? null : new QuotaKeeper(quota);
  }

  /** Lets go of every answer that waits at this gate, now and later. */
  release(gate: string): void {
    this.#gate(gate).abort();
  }

  maxStartsInAny(lengthMs: number): number {
    return this.log.maxStartsInAny(lengthMs);
  }

  effects(key: string): number {
    return this.log.effects(key);
  }

  doubles() {
    return this.log.doubles();
  }

  summary() {
    return this.log.summary();
  }

  /** Resolves as soon as the log fulfils the condition; rejects with the log's summary after `timeoutMs`. */
  async waitFor(condition: (log: RequestLog) => boolean, timeoutMs = 20_000): Promise<void> {
    if (condition(this.log)) return;
    const reached = new AbortController();
    const watch = () => {
      if (condition(this.log)) reached.abort();
    };
    this.#watchers.add(watch);
    await this.#clock.sleep(timeoutMs, reached.signal);
    this.#watchers.delete(watch);
    if (reached.signal.aborted) return;
    throw new Error(`the upstream's log did not get there in ${timeoutMs} ms: ${JSON.stringify(this.summary())}`);
  }

  /** Cuts every connection and stops listening. Calls that wait stay `pending` in the log. */
  async close(): Promise<void> {
    this.#closing.abort();
    for (const gate of this.#gates.values()) gate.abort();
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeAllConnections();
    await closed;
  }

  #receive(request: IncomingMessage, response: ServerResponse): void {
    const arrived = this.#record(request);
    const refusal = this.#quota?.admit(arrived.arrivedMs) ?? null;
    const parts: Buffer[] = [];
    request.on('data', (part: Buffer) => parts.push(part));
    request.on('error', () => {});
    response.on('error', () => {});
    request.on('end', () => {
      if (!this.#options.lean) arrived.body = Buffer.concat(parts).toString('utf8');
      void this.#answer(arrived, response, refusal);
    });
    request.on('close', () => {
      if (!request.complete) arrived.outcome = 'reset';
    });
    this.#changed();
  }

  #record(request: IncomingMessage): ArrivedRequest {
    const header = (name: string): string | null => {
      const value = request.headers[name];
      return typeof value === 'string' ? value : null;
    };
    const attempt = header('sluice-attempt');
    const arrived: ArrivedRequest = {
      number: this.log.requests.length + 1,
      arrivedMs: this.#clock.monotonicMs(),
      arrivedAt: this.#clock.wallMs(),
      method: request.method ?? '',
      path: request.url ?? '',
      key: this.#header === null ? null : header(this.#header.toLowerCase()),
      jobId: header('sluice-job-id'),
      attempt: attempt === null ? null : Number(attempt),
      headers: this.#options.lean ? {} : request.headers,
      body: '',
      connection: this.#connections.get(request.socket) ?? 0,
      outcome: 'pending',
      status: null,
      answeredMs: null,
      retryAfterSeconds: null,
    };
    this.log.requests.push(arrived);
    return arrived;
  }

  async #answer(arrived: ArrivedRequest, response: ServerResponse, overQuota: Answer | null): Promise<void> {
    const answer = overQuota ?? this.#choose(arrived);
    if (answer.reset === 'before_effect') {
      arrived.outcome = 'reset';
      resetConnection(response);
      return this.#changed();
    }
    const content = this.#act(arrived, answer, overQuota !== null);
    this.#changed();
    if (answer.delayMs !== undefined) await this.#clock.sleep(answer.delayMs, this.#closing.signal);
    if (answer.gate !== undefined) await this.#pass(answer.gate);
    if (this.#closing.signal.aborted) return;
    if (answer.reset === 'after_effect') return resetConnection(response);
    arrived.status = content.status;
    arrived.answeredMs = this.#clock.monotonicMs();
    this.#changed();
    await sendReply(response, content, answer, this.#clock, this.#closing.signal);
  }

  #choose(arrived: ArrivedRequest): Answer {
    const { path, key } = arrived;
    let nth = arrived.number;
    if (key !== null) {
      nth = (this.#callsByKey.get(key) ?? 0) + 1;
      this.#callsByKey.set(key, nth);
    }
    const call = { path, key, nth };
    return (
      scriptedAnswer(this.#rules, call) ??
      this.#lookUp(arrived) ??
      randomAnswer(this.#faults, this.#options.seed ?? 1, call)
    );
  }

  #lookUp({ method, path }: ArrivedRequest): Answer | undefined {
    const { lookupPath } = this.#options;
    if (lookupPath === undefined || method !== 'GET' || !path.startsWith(lookupPath)) return undefined;
    const known = this.#stored.has(decodeURIComponent(path.slice(lookupPath.length)));
    return { status: known ? 200 : 404, effect: false, tells: true };
  }

  /** The moment of truth: applies the effect, or finds the stored one, or refuses. */
  #act(arrived: ArrivedRequest, answer: Answer, overQuota: boolean): Content {
    const status = answer.status ?? 200;
    const headers = answer.headers ?? [];
    if (!(answer.effect ?? (status >= 200 && status < 300))) {
      const throttled = status === 429 || (status === 503 && headers.some(([name]) => /^retry-after$/i.test(name)));
      arrived.outcome = overQuota ? 'over_quota' : throttled ? 'throttled' : answer.tells ? 'told' : 'refused';
      if (throttled) arrived.retryAfterSeconds = retryAfterOf(headers);
      return { status, headers, body: answer.body ?? '' };
    }
    const stored = arrived.key === null ? undefined : this.#stored.get(arrived.key);
    if (stored !== undefined) {
      arrived.outcome = 'replayed';
      return stored;
    }
    this.#effectCount += 1;
    arrived.outcome = 'effect';
    const body = answer.body ?? JSON.stringify({ effect: this.#effectCount, key: arrived.key });
    const content = { status, headers, body };
    if (arrived.key !== null) this.#stored.set(arrived.key, content);
    return content;
  }

  async #pass(gate: string): Promise<void> {
    await this.#clock.sleep(Number.POSITIVE_INFINITY, this.#gate(gate).signal);
  }

  #gate(name: string): AbortController {
    const gate = this.#gates.get(name) ?? signalForMany();
    this.#gates.set(name, gate);
    return gate;
  }

  #changed(): void {
    for (const watch of this.#watchers) watch();
  }
}

/** Any number of calls may wait for it at once, which is no leak to warn of. */
function signalForMany(): AbortController {
  const controller = new AbortController();
  setMaxListeners(0, controller.signal);
  return controller;
}

/** The largest whole number of seconds among the lines; null: none is one. */
function retryAfterOf(headers: ReadonlyArray<readonly [string, string]>): number | null {
  const seconds = headers.filter(([name, value]) => /^retry-after$/i.test(name) && /^\d+$/.test(value));
  return seconds.length === 0 ? null : Math.max(...seconds.map(([, value]) => Number(value)));
}
