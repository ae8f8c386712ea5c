/** Options by name: a name that no option has would be passed over in silence, and with it what it was to do. */

/** Throws a TypeError for a name that is not in `names`. `instead`: what to do, for a name that is right elsewhere. */
export function checkNames<Options extends object>(
  call: string,
  options: Options,
  names: Readonly<Record<keyof Options, true>>,
  instead: (name: string) => string | undefined = () => undefined,
): void {
  const unknown = Object.keys(options).filter((name) => !Object.hasOwn(names, name));
  if (unknown.length === 0) return;
  const [name] = unknown as [string];
  const advice = instead(name) ?? `its options are ${Object.keys(names).sort().join(', ')}`;
  throw new TypeError(`${call} has no option ${JSON.stringify(name)}: ${advice}`);
}
