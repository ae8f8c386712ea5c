/**
 * The shell blocks of the documents, read by us and not by a shell, so that they are tried out where neither a shell nor
 * curl is. Takes only what they use: words, single and double quotes, `$NAME`, a backslash at a line's end, comments, `cat`
 * with a here-document, and curl's -s, -X, -H and -d. Anything else throws: then it is not sure that it was tried.
 */

export type Variables = ReadonlyMap<string, string>;

/** One command, its words with variables still to be filled in. */
export interface ShellCommand {
  readonly words: ReadonlyArray<(variables: Variables) => string>;
  /** After `#` on its last line; empty: none. */
  readonly comment: string;
  /** What a here-document feeds it; null: nothing. */
  readonly input: string | null;
}

export interface CurlRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | null;
}

/** The commands of a block, in their order. */
export function shellCommands(block: string): ShellCommand[] {
  const commands: ShellCommand[] = [];
  const lines = block.replaceAll(/\\\n\s*/g, ' ');
  const token = /[ \t]+|(\n)|#([^\n]*)|<<'(\w+)'|((?:'[^']*'|"[^"]*"|[^\s'"#<])+)/gy;
  let words: Array<(variables: Variables) => string> = [];
  let comment = '';
  let input: string | null = null;
  const end = () => {
    if (words.length > 0) commands.push({ words, comment, input });
    words = [];
    comment = '';
    input = null;
  };
  while (token.lastIndex < lines.length) {
    const at = token.lastIndex;
    const found = token.exec(lines);
    if (found === null) throw new Error(`cannot read the shell block at ${JSON.stringify(lines.slice(at, at + 40))}`);
    const [, newline, note, marker, word] = found;
    if (newline !== undefined) end();
    else if (note !== undefined) comment = note.trim();
    else if (marker !== undefined) {
      const text = new RegExp(`\\n(.*?)^${marker}$`, 'msy');
      text.lastIndex = token.lastIndex;
      input = text.exec(lines)?.[1] ?? null;
      if (input === null) throw new Error(`the here-document ${marker} has no end`);
      token.lastIndex = text.lastIndex;
    } else if (word !== undefined) words.push((variables) => fillIn(word, variables));
  }
  end();
  return commands;
}

/** Takes the quotes off; within single quotes nothing is filled in. */
function fillIn(word: string, variables: Variables): string {
  return word.replaceAll(/'([^']*)'|"([^"]*)"|([^'"]+)/g, (_all, single?: string, double?: string, bare?: string) => {
    if (single !== undefined) return single;
    return (double ?? bare ?? '').replaceAll(/\$(\w+)/g, (_name, name: string) => {
      const value = variables.get(name);
      if (value === undefined) throw new Error(`the variable ${name} is used before it is set`);
      return value;
    });
  });
}

/** The request that a curl command makes. `files`: what `-d @name` reads. */
export function curlRequest(words: readonly string[], files: ReadonlyMap<string, string>): CurlRequest {
  const [program, ...rest] = words;
  if (program !== 'curl') throw new Error(`${program} is not curl`);
  let method: string | undefined;
  let url: string | undefined;
  let body: string | null = null;
  const headers: Record<string, string> = {};
  for (let i = 0; i < rest.length; i++) {
    const word = rest[i] as string;
    if (word === '-s') continue;
    if (!word.startsWith('-')) {
      if (url !== undefined) throw new Error(`two addresses: ${url} and ${word}`);
      url = word;
      continue;
    }
    i += 1;
    const value = rest[i];
    if (value === undefined) throw new Error(`${word} wants a value`);
    if (word === '-X') method = value;
    else if (word === '-H') headers[value.slice(0, value.indexOf(':'))] = value.slice(value.indexOf(':') + 1).trim();
    else if (word === '-d') body = value.startsWith('@') ? fileText(value.slice(1), files) : value;
    else throw new Error(`the documents' curl has no ${word}`);
  }
  if (url === undefined) throw new Error('no address');
  return { method: method ?? (body === null ? 'GET' : 'POST'), url, headers, body };
}

function fileText(name: string, files: ReadonlyMap<string, string>): string {
  const text = files.get(name);
  if (text === undefined) throw new Error(`the file ${name} is used before it is made`);
  // As curl does with -d.
  return text.replaceAll('\n', '');
}
