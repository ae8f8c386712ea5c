/**
 * Reads what Node's --cpu-prof leaves behind: where the time of a stretch of it went. Built-in code (a string that is joined,
 * a socket that is written) counts for whoever called it. Samples are stamped with the time of day, so one during which the
 * process had no processor would seem long: none counts for more than two intervals.
 */
import { copyFile, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';

interface ProfileNode {
  readonly id: number;
  readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number };
  readonly children?: readonly number[];
}

export interface CpuProfile {
  readonly nodes: readonly ProfileNode[];
  readonly samples: readonly number[];
  readonly timeDeltas: readonly number[];
  /** Microseconds of the machine's monotonic clock. */
  readonly startTime: number;
}

export interface Span {
  readonly fromUs: number;
  readonly toUs: number;
}

export interface TimeOfPart {
  readonly name: string;
  /** Microseconds in its own code. */
  readonly selfUs: number;
}

/** `part`: the file or package that ran. `function`: the same, closer. `owner`: the function of ours on whose behalf it ran. */
export type GroupedBy = 'part' | 'function' | 'owner';

/** Reads the one profile in a folder, whose process has ended, and keeps a copy. */
export async function readProfile(folder: string, copy: string): Promise<CpuProfile> {
  const names = (await readdir(folder)).filter((name) => name.endsWith('.cpuprofile'));
  if (names.length !== 1) throw new Error(`${names.length} profiles in ${folder}`);
  const path = join(folder, names[0]!);
  await copyFile(path, copy);
  return JSON.parse(await readFile(path, 'utf8')) as CpuProfile;
}

/** Most first. Idle time is left out. */
export function timeBy(
  by: GroupedBy,
  profile: CpuProfile,
  { span, intervalUs }: { span: Span; intervalUs: number },
): TimeOfPart[] {
  const names = namesOf(profile, by);
  const times = new Map<string, number>();
  let atUs = profile.startTime;
  for (const [i, id] of profile.samples.entries()) {
    atUs += profile.timeDeltas[i]!;
    const name = names.get(id)!;
    if (name === '(idle)' || atUs < span.fromUs || atUs > span.toUs) continue;
    // A sample stands for the time until the next one.
    const lastedUs = Math.min(profile.timeDeltas[i + 1] ?? 0, 2 * intervalUs);
    times.set(name, (times.get(name) ?? 0) + lastedUs);
  }
  return [...times].map(([name, selfUs]) => ({ name, selfUs })).sort((a, b) => b.selfUs - a.selfUs);
}

function namesOf({ nodes }: CpuProfile, by: GroupedBy): Map<number, string> {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const names = new Map<number, string>();
  const nameOf = { part: partOf, function: functionOf, owner: ownerOf }[by];
  const walk = (node: ProfileNode, callers: string) => {
    const found = nameOf(node, callers) ?? callers;
    names.set(node.id, found);
    for (const child of node.children ?? []) walk(byId.get(child)!, found);
  };
  walk(nodes[0]!, '(program)');
  return names;
}

/** Outside of our own code: the package or built-in part that was called first. */
function ownerOf(node: ProfileNode, callers: string): string | undefined {
  if (node.callFrame.url.includes('/dist/') && !node.callFrame.url.includes('/node_modules/')) return functionOf(node);
  if (callers.startsWith('(') || callers.startsWith('called by node:')) {
    const part = partOf(node);
    if (part === undefined || part.startsWith('(')) return part;
    return `called by ${part}`;
  }
  return undefined;
}

function partOf({ callFrame: { url, functionName } }: ProfileNode): string | undefined {
  if (url === '') return functionName.startsWith('(') ? functionName : undefined;
  const inPackage = /.*\/node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(url);
  if (inPackage !== null) return inPackage[1]!;
  if (url.startsWith('node:')) return url.split('/').slice(0, 2).join('/');
  return /\/dist\/(.*)$/.exec(url)?.[1] ?? url;
}

function functionOf(node: ProfileNode): string | undefined {
  const part = partOf(node);
  if (part === undefined || node.callFrame.url === '') return part;
  const { functionName, lineNumber } = node.callFrame;
  return `${part}: ${functionName || '(anonymous)'}:${lineNumber + 1}`;
}
