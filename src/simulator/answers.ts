/**
 * What the simulated upstream answers, and how it is chosen: by a rule where one matches, else by the mix of random faults,
 * else 200. Plain data, so that it can cross to a simulator in a process of its own.
 */
import { draw } from './draw.ts';

export interface Answer {
  /** Default 200. */
  readonly status?: number;
  /** Sent line by line as they are here, so a name may come twice. */
  readonly headers?: ReadonlyArray<readonly [name: string, value: string]>;
  /** Default: a JSON text that names the effect. */
  readonly body?: string;
  /** Whether the call takes effect; default: status 2xx. An effect is stored under its key, whatever the status. */
  readonly effect?: boolean;
  /** It only tells whether a key has taken effect. */
  readonly tells?: boolean;
  /** Between the effect and the answer, in milliseconds: a caller that gives up meanwhile does not know that it worked. */
  readonly delayMs?: number;
  /** The answer waits (after the effect) until the gate of this name is released. */
  readonly gate?: string;
  /** The body goes out one byte at a time, this many milliseconds apart. */
  readonly dripMs?: number;
  /** `endless`: the body never stops; `stalled`: the head is sent and then nothing. */
  readonly ending?: 'whole' | 'endless' | 'stalled';
  /** The connection is reset: without an effect, after the effect but before a byte of the answer, or in mid-body. */
  readonly reset?: 'before_effect' | 'after_effect' | 'in_body';
  /** Written to the socket in place of a well-formed answer; then the connection ends. */
  readonly raw?: string;
}

export interface Rule {
  /** The path with its query; a `*` at the end matches any rest. Absent: every path. */
  readonly path?: string;
  /** The idempotency key as it arrived. Absent: every key. */
  readonly key?: string;
  /** How many matching calls pass by before the rule holds; default 0. */
  readonly skip?: number;
  /** For how many calls it holds from then on; default: for ever. */
  readonly times?: number;
  readonly answer: Answer;
}

/** Shares of all calls (0 to 1, together at most 1) that meet a fault, chosen from the seed, the key and the call's number. */
export interface FaultMix {
  /** 429 with `Retry-After: retryAfterSeconds` (default 1). */
  readonly throttled?: number;
  readonly retryAfterSeconds?: number;
  /** 500 without an effect. */
  readonly failed?: number;
  /** 200 after a delay between the two, in milliseconds (default 200 to 1000). */
  readonly slow?: number;
  readonly slowMs?: readonly [least: number, most: number];
  /** The effect happens, then the connection is reset: the answer is lost. */
  readonly cut?: number;
}

/** What the choice of an answer depends on. */
export interface Call {
  readonly path: string;
  readonly key: string | null;
  /** Counts the calls with this key (or, without a key, all calls) from 1. */
  readonly nth: number;
}

/** A rule and how many calls it has seen. */
export interface ActiveRule {
  readonly rule: Rule;
  seen: number;
}

/** Counts the call against every rule that matches, and gives the answer of the first that holds. */
export function scriptedAnswer(rules: readonly ActiveRule[], call: Call): Answer | undefined {
  let answer: Answer | undefined;
  for (const active of rules) {
    const { rule } = active;
    if (!matches(rule, call)) continue;
    active.seen += 1;
    const skip = rule.skip ?? 0;
    const holds = active.seen > skip && active.seen <= skip + (rule.times ?? Number.POSITIVE_INFINITY);
    if (holds && answer === undefined) answer = rule.answer;
  }
  return answer;
}

function matches(rule: Rule, call: Call): boolean {
  if (rule.key !== undefined && rule.key !== call.key) return false;
  if (rule.path === undefined) return true;
  return rule.path.endsWith('*') ? call.path.startsWith(rule.path.slice(0, -1)) : call.path === rule.path;
}

/** The fate of a call under the mix; an empty answer is a plain success. */
export function randomAnswer(mix: FaultMix, seed: number, call: Call): Answer {
  const what = `${call.key ?? ''}\n${call.nth}`;
  let left = draw(seed, what);
  const falls = (share: number | undefined): boolean => {
    left -= share ?? 0;
    return left < 0;
  };
  if (falls(mix.throttled)) {
    return {
      status: 429,
      headers: [['Retry-After', String(mix.retryAfterSeconds ?? 1)]],
      body: '{"error":"too_many"}',
    };
  }
  if (falls(mix.failed)) return { status: 500, body: '{"error":"internal"}' };
  if (falls(mix.slow)) {
    const [least, most] = mix.slowMs ?? [200, 1000];
    return { delayMs: Math.round(least + (most - least) * draw(seed, `${what}\nslow`)) };
  }
  if (falls(mix.cut)) return { reset: 'after_effect' };
  return {};
}
