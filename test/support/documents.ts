/**
 * The project's documents as tests read them: sections, fenced blocks and tables of Markdown, as far as we use it. Throws
 * where something that a test asks for is not there, so that a renamed heading cannot pass for an empty one.
 */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** `path` counts from the project's root. */
export function readDocument(path: string): string {
  return readFileSync(fileURLToPath(new URL(`../../${path}`, import.meta.url)), 'utf8');
}

/** What stands below a heading, up to the next one of its level or a higher one. */
export function section(text: string, heading: string): string {
  const lines = text.split('\n');
  const start = lines.indexOf(heading);
  if (start === -1) throw new Error(`there is no heading "${heading}"`);
  const level = heading.indexOf(' ');
  let fenced = false;
  const length = lines.slice(start + 1).findIndex((line) => {
    if (line.startsWith('```')) fenced = !fenced;
    return !fenced && /^#+ /.test(line) && line.indexOf(' ') <= level;
  });
  return lines.slice(start + 1, length === -1 ? undefined : start + 1 + length).join('\n');
}

export interface Fence {
  readonly language: string;
  readonly text: string;
}

/** The fenced blocks, in their order. */
export function fences(text: string): Fence[] {
  return [...text.matchAll(/^```(\w*)\n(.*?)^```$/gms)].map(([, language = '', body = '']) => ({
    language,
    text: body,
  }));
}

/** The cells of the first table, below its head; code marks are taken off. */
export function tableRows(text: string): string[][] {
  const lines = text.split('\n');
  const head = lines.findIndex((line) => /^\|( ?:?-+:? ?\|)+$/.test(line));
  if (head === -1) throw new Error('there is no table');
  const body = lines.slice(head + 1);
  const end = body.findIndex((line) => !line.startsWith('|'));
  return body.slice(0, end === -1 ? undefined : end).map((line) =>
    line
      .slice(1, line.lastIndexOf('|'))
      .split(/(?<!\\)\|/)
      .map((cell) => cell.trim().replaceAll('`', '').replaceAll('\\|', '|')),
  );
}
