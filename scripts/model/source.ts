/**
 * What `docs/model/job.pml` says about itself: its states and moves, its promises (the lines with `rule:`), and its broken
 * variants, each with the promise that must fall. The runner and the test that holds the model against the code read it here,
 * so that nothing of it is written twice.
 */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

export const modelFile = fileURLToPath(new URL('../../docs/model/job.pml', import.meta.url));

/** Of no line: the temporal formula at the end of the model. */
export const liveness = 'every-batch-ends';

export interface Variant {
  readonly name: string;
  /** What `-DBROKEN=` takes. */
  readonly number: number;
  /** The promise that a search must find broken. */
  readonly rule: string;
  readonly what: string;
}

export interface Model {
  readonly lines: readonly string[];
  /** Names of job states, `accepted` (before the first) among them. */
  readonly states: readonly string[];
  /** Names of outcomes, `nothing` and `untouched` (no attempt is recorded) among them. */
  readonly outcomes: readonly string[];
  /** From where to where jobs are moved. */
  readonly moves: ReadonlyArray<{ readonly from: string; readonly to: string }>;
  readonly rules: readonly string[];
  readonly variants: readonly Variant[];
}

export function readModel(): Model {
  const text = readFileSync(modelFile, 'utf8');
  const lines = text.split('\n');
  return {
    lines,
    states: mtype(text, 'states'),
    outcomes: mtype(text, 'outcomes'),
    moves: movesOf(text),
    rules: [...new Set([...lines.map(ruleOf).filter((rule) => rule !== null), liveness])],
    variants: [...text.matchAll(/^#define (\w+) (\d+) +\/\* ([a-z-]+): (.*) \*\/$/gm)].map((match) => ({
      name: match[1]!,
      number: Number(match[2]),
      rule: match[3]!,
      what: match[4]!,
    })),
  };
}

/** The promise that a line of the model checks. */
export function ruleOf(line: string): string | null {
  return /\/\* rule: ([a-z-]+)/.exec(line)?.[1] ?? null;
}

function mtype(text: string, name: string): string[] {
  const body = new RegExp(`^mtype:${name} = \\{(.*)\\};$`, 'm').exec(text)?.[1];
  if (body === undefined) throw new Error(`the model has no mtype:${name}`);
  return body.split(',').map((word) => word.trim());
}

interface Inline {
  readonly parameters: readonly string[];
  readonly body: string;
}

const inlinePattern = /^inline (\w+)\(([^)]*)\) \{(.*\}$|[\s\S]*?^\}$)/gm;

/** Uses of `move`, followed through the inlines: those move to what they are given. */
function movesOf(text: string): { from: string; to: string }[] {
  const inlines = new Map<string, Inline>();
  for (const [, name, parameters, body] of text.matchAll(inlinePattern)) {
    inlines.set(name!, { parameters: parameters!.split(', '), body: body! });
  }
  const moves = new Map<string, { from: string; to: string }>();
  const follow = (code: string, given: ReadonlyMap<string, string>): void => {
    for (const [name, rawArguments] of callsIn(code)) {
      const args = rawArguments.map((argument) => given.get(argument) ?? argument);
      const inline = inlines.get(name);
      if (name === 'move') moves.set(args.join(), { from: args[1]!, to: args[2]! });
      else if (inline)
        follow(inline.body, new Map(inline.parameters.map((parameter, i) => [parameter, args[i] ?? ''])));
    }
  };
  follow(text.replace(inlinePattern, ''), new Map());
  return [...moves.values()];
}

/** Name and arguments; an argument may hold calls itself, which are none of an inline. */
function callsIn(code: string): [string, string[]][] {
  return [...code.matchAll(/\b(\w+)\(((?:[^()]|\([^()]*(?:\([^()]*\))?[^()]*\))*)\)/g)].map((match) => [
    match[1]!,
    match[2]!.split(',').map((argument) => argument.trim()),
  ]);
}
