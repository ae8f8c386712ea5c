/** What stops a command for a reason that its user can do something about: lines to show, without a stack. */
export class StartError extends Error {
  readonly lines: readonly string[];

  constructor(lines: readonly string[], options: { cause?: unknown } = {}) {
    super(lines.join('\n'), options);
    this.name = 'StartError';
    this.lines = lines;
  }
}
