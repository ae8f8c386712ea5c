/** Reads a file of definitions (upstreams, rate limits, queues), and puts its faults into lines for people. */
import { readFile } from 'node:fs/promises';
import type { Fault } from '../domain/errors.ts';
import { StartError } from './start-error.ts';

/** The JSON in the file. Throws a StartError that names the file. */
export async function readDefinitionsFile(path: string): Promise<unknown> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (cause) {
    throw new StartError([`${path}: cannot be read (${codeOf(cause)})`], { cause });
  }
  try {
    // A byte order mark is what some editors put there.
    return JSON.parse(text.replace(/^\uFEFF/, ''));
  } catch (cause) {
    throw new StartError([`${path}: is not JSON: ${cause instanceof Error ? cause.message : cause}`], { cause });
  }
}

/** One line per fault: file, JSON pointer, code, what is wrong. */
export function faultLines(path: string, faults: readonly Fault[]): string[] {
  return faults.map(({ pointer, code, message }) => `${path}: ${pointer || '/'} ${code}: ${message}`);
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : 'unknown error';
}
