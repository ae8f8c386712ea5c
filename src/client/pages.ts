/** Lists with cursors, as one sequence. */
import type { CallOptions, Query, Transport } from './transport.ts';

interface Page<T> {
  readonly items: readonly T[];
  readonly next_cursor: string | null;
}

/** The most that a page can have: as few requests as can be. */
const pageSize = 1000;

/** Every item of every page; the next page is asked for when the one before was read. */
export async function* itemsOf<T>(
  transport: Transport,
  path: string,
  filter: Query,
  options: CallOptions,
): AsyncGenerator<T> {
  let cursor: string | undefined;
  do {
    const query = { ...filter, limit: pageSize, cursor };
    const page: Page<T> = await transport.call<Page<T>>('GET', path, { ...options, query });
    yield* page.items;
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined);
}
