/**
 * Tells why lines were not taken: the first of those that are alike at once, the others as a number at the end. However many
 * lines and faults there are, what is written has a bound.
 */
import type { LineVerdict } from '../client/index.ts';
import type { ProgressView } from './progress-view.ts';

type Fault = NonNullable<LineVerdict['errors']>[number];

/** Kinds of faults that are told; of more, the lines are counted. */
const mostKinds = 100;
/** Faults of one line. */
const mostFaults = 5;
/** Of one fault, in characters: a message may quote what was sent. */
const mostCharacters = 300;

/** Options that stand for a field which a line leaves out. */
const optionsOf: Readonly<Record<string, string>> = {
  upstream: '--upstream',
  path: '--path',
  idempotency_key: '--derive-keys',
};
const missing: ReadonlySet<string> = new Set(['required', 'missing_idempotency_key']);

export class FaultLines {
  readonly #view: ProgressView;
  /** By verdict and faults: the first line, and how many there are beside. */
  readonly #kinds = new Map<string, { readonly line: number; more: number }>();
  #untold = 0;

  constructor(view: ProgressView) {
    this.#view = view;
  }

  tell(line: number, { verdict, idempotency_key, errors = [] }: LineVerdict): void {
    const told = errors.slice(0, mostFaults).map(faultWords);
    if (errors.length > mostFaults) told.push(`… and ${errors.length - mostFaults} more faults`);
    const why = `${verdict}: ${told.join('; ')}`;
    const kind = this.#kinds.get(why);
    if (kind !== undefined) {
      kind.more += 1;
      return;
    }
    if (this.#kinds.size === mostKinds) {
      this.#untold += 1;
      return;
    }
    this.#kinds.set(why, { line, more: 0 });
    this.#view.say(`line ${line}${idempotency_key === null ? '' : ` (${idempotency_key})`} ${why}`);
  }

  /** `where`: how to get all of them. */
  end(where: string): void {
    let folded = 0;
    for (const { line, more } of this.#kinds.values()) {
      if (more === 0) continue;
      folded += more;
      this.#view.say(`… and ${linesOf(more)} ${this.#kinds.size === 1 ? 'alike' : `like line ${line}`}`);
    }
    if (this.#untold > 0) this.#view.say(`… and ${linesOf(this.#untold)} not taken for other reasons`);
    if (folded + this.#untold > 0) this.#view.say(`all of them: ${where}`);
  }
}

function linesOf(count: number): string {
  return count === 1 ? '1 more line' : `${count} more lines`;
}

/** With its field, but without the place of the item, which the line's number tells. */
function faultWords({ pointer = '', code, message }: Fault): string {
  const field = pointer.replace(/^\/items\/\d+\/?/, '');
  const option = missing.has(code) ? optionsOf[field] : undefined;
  const words = `${code}: ${field === '' ? '' : `${field}: `}${message}${option === undefined ? '' : ` (or ${option})`}`;
  return words.length > mostCharacters ? `${words.slice(0, mostCharacters)}…` : words;
}
