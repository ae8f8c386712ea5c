/**
 * A walk over batches from the oldest on, in portions of a bounded number of items: many small batches at once, or a part of
 * a large one. Where it stands is the caller's, and moves on only once the portion's work is committed.
 * Indexes used: batches_age, batches_keys_left.
 */
import type { TransactionClient } from './transaction.ts';

/** Where a walk stands. */
export interface Place {
  /** The last batch that is done with. To the microsecond, so as text. */
  readonly createdAt: string;
  readonly id: string;
  /** The batch after that, where it is taken in several portions. */
  readonly large: {
    readonly id: string;
    readonly index: number;
    /** What was seen in the portions before this one speaks against what is to be done with it. */
    readonly stays: boolean;
  } | null;
}

export const beforeAll: Place = {
  createdAt: '-infinity',
  id: '00000000-0000-0000-0000-000000000000',
  large: null,
};

/** Batches, with their items from `from` up to but without `to`. */
export interface Portion {
  readonly ids: readonly string[];
  readonly from: number;
  readonly to: number;
  /** Of one large batch, begun or continued. */
  readonly large: { readonly stays: boolean; readonly isLast: boolean } | null;
  /** Of its last batch. */
  readonly createdAt: string;
}

/** Batches looked at by one portion, however small they are. */
const mostBatches = 200;
const allItems = 2_147_483_647;

/** The next portion of batches that were created more than `days` ago and grow no more; null: there is none. */
export async function nextPortion(
  client: TransactionClient,
  place: Place,
  { days, most, withKeysOnly }: { days: number; most: number; withKeysOnly: boolean },
): Promise<Portion | null> {
  const rows = await client.query<{ id: string; createdAt: string; total: number }>(
    `select b.id, b.created_at::text as "createdAt", b.total from sluice.batches b
      where (b.created_at, b.id) > ($1::timestamptz, $2::uuid)
        and b.created_at < clock_timestamp() - make_interval(secs => $3::float8)
        ${withKeysOnly ? 'and not b.keys_gone' : ''}
        and not exists (select 1 from sluice.batch_streams s where s.batch_id = b.id)
      order by b.created_at, b.id limit $4`,
    [place.createdAt, place.id, days * 86_400, mostBatches],
    withKeysOnly ? 'walk-batches-with-keys' : 'walk-batches',
  );
  const first = rows[0];
  if (first === undefined) return null;
  if (first.total > most) {
    const begun = place.large?.id === first.id ? place.large : { index: 0, stays: false };
    const to = begun.index + most;
    const large = { stays: begun.stays, isLast: to >= first.total };
    return { ids: [first.id], from: begun.index, to, large, createdAt: first.createdAt };
  }
  const portion: typeof rows = [];
  let items = 0;
  for (const row of rows) {
    items += row.total;
    if (items > most) break;
    portion.push(row);
  }
  return {
    ids: portion.map(({ id }) => id),
    from: 0,
    to: allItems,
    large: null,
    createdAt: portion.at(-1)!.createdAt,
  };
}

/** Where the walk stands after a portion; `large` where the same batch goes on. */
export function placeAfter({ ids, createdAt }: Portion, place: Place, large: Place['large'] = null): Place {
  if (large !== null) return { ...place, large };
  return { createdAt, id: ids.at(-1)!, large: null };
}
