/**
 * Makes one HTTP call and tells how it ended, without judging it: that is `domain/settle.ts`. Never throws, never retries,
 * never follows a redirect.
 * Invariants: whether the request may still leave is asked at the last moment before its first byte is written, and a
 * request that may not leaves nothing on the wire; a request is written at most once; whatever the upstream does, the call
 * ends by its deadline and its socket is free or gone.
 */
import { Agent, type Dispatcher } from 'undici';
import { isConnectionHeader, type OutboundRequest } from '../domain/outbound-request.ts';
import { type CallResult, cancelledCode } from '../domain/outcome.ts';
import type { Clock } from '../system/clock.ts';
import { type FaultPoints, noFaultPoints } from '../system/fault-points.ts';
import { guardedConnector, type Lookup } from './address-guard.ts';
import { AnswerBody } from './answer-body.ts';
import { blotOutText, blottable } from './blot-out.ts';
import { CallWatch, type WatchedCall } from './call-watch.ts';

export type { OutboundRequest } from '../domain/outbound-request.ts';

export interface SendOptions {
  /**
   * Asked once, when a connection is open and free and the write comes next; false: nothing is written and the call ends
   * as `permit_expired`. Must be quick.
   */
  readonly mayStillSend: () => boolean;
  /** `clock.monotonicMs()` before the claim query left; `sentAfterMs` of the result counts from there. */
  readonly startedAtMs: number;
  /** Gives the call up, within some 20 ms: not sent, it is `not_sent` with code `cancelled`; sent, it is `aborted`. */
  readonly signal: { readonly aborted: boolean };
}

export interface Sender {
  send(request: OutboundRequest, options: SendOptions): Promise<CallResult>;
  /** Gives up the calls in flight, as their signals would, and closes every socket. */
  close(): Promise<void>;
}

export interface SenderOptions {
  readonly clock: Clock;
  /**
   * Sockets per origin; calls beyond wait for a free one. As many as there can be calls at once is right: fewer delay
   * calls, and without a bound a call that follows another at once opens a socket more, since the one before it is free
   * only a turn of the event loop later. No bound by default.
   */
  readonly connectionsPerOrigin?: number;
  /** Resolver in place of `dns.lookup`. */
  readonly lookup?: Lookup;
  readonly faultPoints?: FaultPoints;
}

/**
 * How long an idle socket is kept, in milliseconds, where the upstream says nothing; where it sends Keep-Alive: timeout=n
 * it is 2 s less than that. Shorter than the 5 s after which many servers close: a request that meets the close on its way
 * is one whose outcome nobody knows.
 */
const keepAliveTimeoutMs = 4_000;

export function createSender({
  clock,
  connectionsPerOrigin,
  lookup,
  faultPoints = noFaultPoints,
}: SenderOptions): Sender {
  const watch = new CallWatch(clock);
  const connectTimeouts = new Map<string, number>();
  const openAgent = (allowPrivateAddresses: boolean) =>
    new Agent({
      connect: guardedConnector({
        allowPrivateAddresses,
        lookup,
        connectTimeoutMs: (origin) => connectTimeouts.get(origin) ?? 0,
      }),
      ...(connectionsPerOrigin === undefined ? {} : { connections: connectionsPerOrigin }),
      pipelining: 1,
      keepAliveTimeout: keepAliveTimeoutMs,
      // These two count silence and not the whole, to half a second; the deadline of the call covers both.
      headersTimeout: 0,
      bodyTimeout: 0,
    });
  const publicOnly = openAgent(false);
  const anyAddress = openAgent(true);
  const closing = new AbortController();
  const context: CallContext = { clock, watch, closing: closing.signal, faultPoints };

  return {
    send(request, options) {
      return new Promise((resolve) => {
        const call = new Call(request, options, context, resolve);
        const fault = unsendableHeader(request);
        if (fault !== null) return call.endUnsent('invalid_header', fault);
        if (closing.signal.aborted || options.signal.aborted) return call.endUnsent(cancelledCode, givenUpText);
        watch.add(call);
        const { url } = request;
        const { origin } = url;
        if (connectTimeouts.get(origin) !== request.connectTimeoutMs)
          connectTimeouts.set(origin, request.connectTimeoutMs);
        const agent = request.allowPrivateAddresses ? anyAddress : publicOnly;
        agent.dispatch(
          {
            origin,
            path: `${url.pathname}${url.search}`,
            method: request.method,
            headers: request.headers as Record<string, string>,
            body: request.body,
          },
          call,
        );
      });
    },
    async close() {
      closing.abort();
      watch.checkAll();
      await Promise.all([publicOnly.destroy(), anyAddress.destroy()]);
    },
  };
}

/**
 * What undici would throw for must not get there: a pool that sees a request refused by one of its clients takes that
 * client for busy ever after. Items' headers were checked at submission; these are the operator's, with secrets filled in.
 */
function unsendableHeader({ headers }: OutboundRequest): string | null {
  for (const name of Object.keys(headers)) {
    if (!sendableNames.has(name)) {
      if (name !== 'host' && isConnectionHeader(name)) return `header ${name} belongs to the connection; remove it`;
      if (!/^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/.test(name)) return `${JSON.stringify(name)} is not a header name`;
      if (sendableNames.size < mostNames) sendableNames.add(name);
    }
    if (!/^[\t\x20-\x7e\x80-\xff]*$/.test(headers[name]!))
      return `header ${name} has a value with characters that no header can hold`;
  }
  return null;
}

/** Nearly all calls have the same few names of headers. */
const sendableNames = new Set<string>();
const mostNames = 1000;

/** Thrown or given to undici where a call ends on our side; made once, since nobody reads its stack. */
const givenUp = new Error('given up');
const givenUpText = 'given up by this process';

interface CallContext {
  readonly clock: Clock;
  readonly watch: CallWatch;
  readonly closing: AbortSignal;
  readonly faultPoints: FaultPoints;
}

/** One call, as undici reports its progress and as the watch ends it. The first end counts; what comes later is ignored. */
class Call implements Dispatcher.DispatchHandler, WatchedCall {
  readonly #options: SendOptions;
  readonly #context: CallContext;
  readonly #resolve: (result: CallResult) => void;
  readonly #secrets: readonly string[];
  readonly #timeoutMs: number;
  readonly #deadlineMs: number;
  readonly #connectTimeoutMs: number;
  readonly #connectDeadlineMs: number;
  #ended = false;
  /** null: not written. */
  #sentAfterMs: number | null = null;
  #controller: Dispatcher.DispatchController | null = null;
  #head: { readonly status: number; readonly headers: Record<string, string | string[] | undefined> } | null = null;
  #body: AnswerBody | null = null;

  constructor(
    request: OutboundRequest,
    options: SendOptions,
    context: CallContext,
    resolve: (result: CallResult) => void,
  ) {
    this.#options = options;
    this.#context = context;
    this.#resolve = resolve;
    this.#secrets = blottable(request.secrets);
    this.#timeoutMs = request.timeoutMs;
    this.#connectTimeoutMs = request.connectTimeoutMs;
    const nowMs = context.clock.monotonicMs();
    this.#deadlineMs = nowMs + request.timeoutMs;
    this.#connectDeadlineMs = nowMs + request.connectTimeoutMs;
  }

  /**
   * undici calls this with the socket open and free, right before it writes, in the same turn. An exception from here fails
   * this request alone: nothing is written, and the socket stays open for the next.
   */
  onRequestStart(controller: Dispatcher.DispatchController): void {
    if (this.#sentAfterMs !== null) {
      // A second write of the same request, which undici makes of requests that were behind a failed one.
      this.#endSent('reset', 'the connection was lost after the request was written');
    }
    if (this.#ended) throw givenUp;
    const { clock, faultPoints } = this.#context;
    this.check(clock.monotonicMs());
    if (!this.#ended && !this.#options.mayStillSend()) this.#end({ kind: 'permit_expired' });
    if (this.#ended) throw givenUp;
    this.#controller = controller;
    this.#sentAfterMs = clock.monotonicMs() - this.#options.startedAtMs;
    void faultPoints.pass('send.after');
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    // Interim answers (1xx) come first, and any number of them.
    if (status < 200) return;
    this.#head = { status, headers };
    this.#body = new AnswerBody(this.#secrets);
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#ended || this.#body === null || this.#body.add(chunk)) return;
    this.#endAnswered(false);
    this.#abort();
  }

  onResponseEnd(): void {
    this.#endAnswered(true);
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    if (this.#ended) return;
    const text = errorText(error);
    if (this.#sentAfterMs === null) this.endUnsent((error as NodeJS.ErrnoException).code ?? error.name, text);
    else if (this.#head === null) this.#endSent('reset', text);
    else this.#endAnswered(false, { bodyError: blotOutText(text, this.#secrets) });
  }

  check(nowMs: number): void {
    if (this.#ended) return;
    if (this.#options.signal.aborted || this.#context.closing.aborted) {
      this.#giveUp('aborted', givenUpText, cancelledCode);
    } else if (nowMs >= this.#deadlineMs) {
      this.#giveUp('timeout', `not over within ${this.#timeoutMs} ms`, 'timeout');
    } else if (this.#sentAfterMs === null && nowMs >= this.#connectDeadlineMs) {
      this.endUnsent('connect_timeout', `no connection within ${this.#connectTimeoutMs} ms`);
    }
  }

  /** A call that is still waiting for its socket is refused when its turn comes: see `onRequestStart`. */
  endUnsent(code: string, error: string): void {
    this.#end({ kind: 'not_sent', code, error: blotOutText(error, this.#secrets) });
  }

  #giveUp(reason: 'aborted' | 'timeout', error: string, unsentCode: string): void {
    const timedOut = reason === 'timeout' ? { bodyTimedOut: true } : {};
    if (this.#sentAfterMs === null) this.endUnsent(unsentCode, error);
    else if (this.#head === null) this.#endSent(reason, error);
    else this.#endAnswered(false, { bodyError: `body ${error}`, ...timedOut });
    this.#abort();
  }

  #endSent(reason: 'timeout' | 'reset' | 'aborted', error: string): void {
    const sentAfterMs = this.#sentAfterMs ?? 0;
    this.#end({ kind: 'no_answer', reason, error: blotOutText(error, this.#secrets), sentAfterMs });
  }

  #endAnswered(complete: boolean, fault?: { bodyError?: string; bodyTimedOut?: boolean }): void {
    if (this.#ended || this.#head === null || this.#body === null) return;
    const { excerpt, truncated, sha256 } = this.#body.finish(complete);
    const { status } = this.#head;
    const headers = this.#withoutSecrets(this.#head.headers);
    // Written out, since an object that is spread costs as much as all the rest here.
    const answer = { status, headers, excerpt, truncated, sha256 };
    const answered = { kind: 'answered', answer, sentAfterMs: this.#sentAfterMs ?? 0 } as const;
    this.#end(fault === undefined ? answered : { ...answered, ...fault });
  }

  #withoutSecrets(
    headers: Record<string, string | string[] | undefined>,
  ): Record<string, string | string[] | undefined> {
    if (this.#secrets.length === 0) return headers;
    const blot = (value: string | string[] | undefined) => {
      if (typeof value === 'string') return blotOutText(value, this.#secrets);
      return value?.map((one) => blotOutText(one, this.#secrets));
    };
    return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, blot(value)]));
  }

  #end(result: CallResult): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#context.watch.delete(this);
    this.#resolve(result);
  }

  /** Destroys the socket: what else it would bring belongs to nobody. */
  #abort(): void {
    this.#controller?.abort(givenUp);
  }
}

/** In words, with the code for whoever searches for it. */
function errorText(error: Error): string {
  const { code } = error as NodeJS.ErrnoException;
  // Several addresses, each with its own failure, come as one error without a message of its own.
  const parts = error instanceof AggregateError ? error.errors.map((one: Error) => one.message) : [];
  const message = error.message !== '' ? error.message : parts.join('; ');
  return code === undefined || message.includes(code) ? message : `${message} (${code})`;
}
