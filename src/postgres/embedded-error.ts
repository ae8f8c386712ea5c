/** Why the embedded PostgreSQL cannot be had, in words that say what to do; shown without a stack. */
export class EmbeddedError extends Error {
  constructor(message: string, options: { cause?: unknown } = {}) {
    super(message, options);
    this.name = 'EmbeddedError';
  }
}

/** The code that Node and PostgreSQL give their errors; empty: none. */
export function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : '';
}
