/**
 * Jobs of a tenant, newest first (ids ascend with acceptance), by what narrows them. What is looked at for one page is bounded
 * whatever the filters are: one of them leads, through an index that gives ids in order, and the others are checked on what it
 * gives; after some thousands of candidates the page is what was found, and the next one goes on from there.
 *
 * Who leads: a key, a batch or a correlation id; else the state, where an index knows its jobs (`done_jobs_unsuccessful`,
 * `parked_jobs`, `running_jobs`); else queue and upstream (`jobs_newest`, by a number made of them and of the tenant, so that a
 * small tenant does not walk the jobs of a large one, nor a rare queue those of the others). Ready jobs have no index by age,
 * since every claim would pay for it: where they are not among the newest of all jobs, the whole of `ready_jobs` is read once
 * a page.
 * Everything is joined by primary keys. Statements have no names: their plans are made for what is asked, not for anything.
 */
import type { JobState } from '../domain/job.ts';
import { jobsOfBatch } from './batch-jobs.ts';
import type { Database } from './database.ts';
import { jobRows, stateOfRows } from './job-state.ts';
import { type JobSummary, type SummaryRow, summaryColumns, summaryJoins, toSummary } from './job-summary.ts';
import type { StoredAttempt } from './read-jobs.ts';
import { jobsKind } from './schema.ts';

export interface JobFilter {
  /** null: any. */
  readonly states: readonly JobState[] | null;
  readonly reason: string | null;
  readonly queue: string | null;
  readonly upstream: string | null;
  readonly batchId: string | null;
  readonly key: string | null;
  readonly correlationId: string | null;
}

export interface JobWalk {
  readonly tenant: string;
  readonly filter: JobFilter;
  /** Jobs older than this one; null: from the newest. */
  readonly before: string | null;
  readonly limit: number;
}

export interface JobPage<T> {
  /** May be fewer than asked for, even none, though there is a next page. */
  readonly items: T[];
  /** Pass as `before` for the rest; null: there is none. */
  readonly next: string | null;
}

export interface ListedJob extends JobSummary {
  /** Of the attempt whose answer ended it; null: none did. */
  readonly response: Pick<StoredAttempt, 'truncated' | 'sha256'> | null;
}

/** What one page may cost. */
export interface WalkBounds {
  /** Candidates that are looked at, at most (and one statement's more). */
  readonly mostLookedAt: number;
  /** Candidates of one statement, at most: bounds its memory. */
  readonly largestLook: number;
  /** How many of the newest jobs are looked at for ready ones before all ready ones are read. */
  readonly looksForReady: number;
}

/** Some tens of milliseconds; some hundreds where all of a million ready jobs have to be read. */
const usualBounds: WalkBounds = { mostLookedAt: 20_000, largestLook: 5_000, looksForReady: 2_000 };

/** One page of jobs. */
export async function listJobs(database: Database, walk: JobWalk, bounds = usualBounds): Promise<JobPage<ListedJob>> {
  const { items, next } = await walkJobs<ListedRow>(database, walk, bounds, {
    columns: `${summaryColumns}, attempt.truncated, encode(attempt.sha256, 'hex') as sha256`,
    joins: `${summaryJoins('candidate.id')}
      left join lateral (
        select * from sluice.attempts x
         where done.status is not null and x.job_id = done.job_id and x.number = done.calls offset 0) attempt on true`,
  });
  return { items: items.map(toListedJob), next };
}

/** One page of ids, for whoever does something with these jobs. */
export async function listJobIds(database: Database, walk: JobWalk, bounds = usualBounds): Promise<JobPage<string>> {
  const { items, next } = await walkJobs<Found>(database, walk, bounds, {
    columns: 'job.id',
    joins: jobRows('candidate.id'),
  });
  return { items: items.map(({ id }) => id), next };
}

interface Found {
  readonly id: string;
}

type ListedRow = SummaryRow & Pick<StoredAttempt, 'sha256'> & { readonly truncated: boolean | null };

function toListedJob(row: ListedRow): ListedJob {
  const { truncated, sha256 } = row;
  return { ...toSummary(row, row.state!), response: truncated === null ? null : { truncated, sha256 } };
}

/** What a walk shows of a job. `joins` has those of `jobRows`, over `candidate.id`. */
interface View {
  readonly columns: string;
  readonly joins: string;
}

async function walkJobs<T extends Found>(
  database: Database,
  { tenant, filter, before, limit }: JobWalk,
  { mostLookedAt, largestLook, looksForReady }: WalkBounds,
  view: View,
): Promise<JobPage<T>> {
  const found: T[] = [];
  let lead = leadOf(filter);
  let from = before ?? afterAll;
  let looked = 0;
  // One more than asked for tells whether there is a next page.
  for (let look = limit + 1; ; look = Math.min(largestLook, look * 4)) {
    const values = new Values([tenant, from, look, limit + 1 - found.length]);
    const text = lookText(lead, filter, view, values);
    const rows = await database.query<T & { candidates: number; last: string | null }>(text, values.all);
    const { candidates, last } = rows[0]!;
    found.push(...rows.filter(({ id }) => id !== null));
    if (found.length > limit) {
      found.length = limit;
      return { items: found, next: found.at(-1)!.id };
    }
    if (candidates < look) return { items: found, next: null };
    from = last!;
    looked += candidates;
    if (looked >= mostLookedAt) return { items: found, next: from };
    if (lead === 'newest' && looked >= looksForReady && isReadyOnly(filter)) lead = 'ready';
  }
}

/** Above every id. */
const afterAll = 'ffffffff-ffff-ffff-ffff-ffffffffffff';

/** The parameters of a statement, numbered as they are named in its text. */
class Values {
  readonly all: unknown[];
  constructor(first: readonly unknown[]) {
    this.all = [...first];
  }
  add(value: unknown): string {
    this.all.push(value);
    return `$${this.all.length}`;
  }
}

/** $1 tenant, $2 the id to come before, $3 how many candidates, $4 how many are wanted of them. */
function lookText(lead: Lead, filter: JobFilter, { columns, joins }: View, values: Values): string {
  const { states, reason, queue, upstream, batchId, key, correlationId } = filter;
  const conditions = ['job.tenant = $1', `${stateOfRows} is not null`];
  const equal = (column: string, value: string | null) => {
    if (value !== null) conditions.push(`${column} = ${values.add(value)}`);
  };
  if (states !== null) conditions.push(`${stateOfRows} = any (${values.add(states)}::text[])`);
  equal('coalesce(done.reason, parked.reason)', reason);
  equal('job.queue', queue);
  equal('job.upstream', upstream);
  equal('job.batch_id', batchId);
  equal('job.idempotency_key', key);
  equal('job.correlation_id', correlationId);
  return `
    with candidate as materialized (${leads[lead](filter, values)}),
    matched as (
      select ${columns} from candidate ${joins}
       where ${conditions.join(' and ')} order by candidate.id desc limit $4)
    select look.candidates, look.last, matched.*
      from (select count(*)::int as candidates, (select c.id from candidate c order by c.id limit 1) as last
              from candidate) look
      left join matched on true
     order by matched.id desc`;
}

type Lead =
  | 'key'
  | 'batch'
  | 'correlation'
  | 'running'
  | 'parked'
  | 'held'
  | 'unsuccessful'
  | 'dead'
  | 'ready'
  | 'newest';

function leadOf({ states, batchId, key, correlationId }: JobFilter): Lead {
  if (key !== null) return 'key';
  if (batchId !== null) return 'batch';
  if (correlationId !== null) return 'correlation';
  if (states === null) return 'newest';
  const only = (...some: JobState[]) => states.every((state) => some.includes(state));
  if (only('running')) return 'running';
  if (only('held')) return 'held';
  if (only('scheduled', 'held')) return 'parked';
  if (only('failed') || only('cancelled') || only('expired')) return 'unsuccessful';
  if (only('failed', 'held')) return 'dead';
  return 'newest';
}

function isReadyOnly({ states }: JobFilter): boolean {
  return states?.length === 1 && states[0] === 'ready';
}

const page = 'id < $2 order by id desc limit $3';

/** Ids in descending order, below $2, at most $3. */
const leads: Readonly<Record<Lead, (filter: JobFilter, values: Values) => string>> = {
  // Few have had one key: the one that has it now, and those whose use of it has expired.
  key: ({ key }, values) => {
    const byKey = `x.tenant = $1 and x.key = ${values.add(key)}`;
    return `
    select same.id from (select x.job_id as id from sluice.idempotency_keys x where ${byKey}
                         union select x.job_id from sluice.former_keys x where ${byKey}) same where ${page}`;
  },
  batch: ({ batchId }, values) =>
    jobsOfBatch(values.add(batchId), { and: 'and j.id < $2', order: 'desc', limit: '$3' }),
  correlation: ({ correlationId }, values) => `
    select j.id from sluice.jobs j where j.correlation_id = ${values.add(correlationId)} and ${page}`,
  running: () => `select r.job_id as id from sluice.running_jobs r where r.job_id < $2 order by r.job_id desc limit $3`,
  parked: () => `select p.job_id as id from sluice.parked_jobs p where p.job_id < $2 order by p.job_id desc limit $3`,
  held: () => held,
  unsuccessful: ({ states }) => ended(states![0]!),
  dead: () => `select dead.id from ((${ended('failed')}) union all (${held})) dead order by dead.id desc limit $3`,
  ready: ({ queue, upstream }, values) => `
    select r.job_id as id from sluice.ready_jobs r
      join sluice.lanes l on l.id = r.lane_id and l.tenant = $1
      join sluice.lane_groups g on g.id = l.group_id ${inGroup(queue, upstream, values)}
     where r.job_id < $2 order by r.job_id desc limit $3`,
  // Only what the index knows: with the texts as conditions of their own the planner expects few, and would sort them all.
  newest: ({ queue, upstream }, values) => `
    select newest.id from sluice.lane_groups g
     cross join lateral (
       select j.id from sluice.jobs j
        where ${jobsKind('j.tenant', 'j.queue', 'j.upstream')} = ${jobsKind('$1', 'g.queue', 'g.upstream')} and ${page}) newest
     where true ${inGroup(queue, upstream, values)}
     order by newest.id desc limit $3`,
};

const held = `
  select p.job_id as id from sluice.parked_jobs p where p.state = 'held' and p.job_id < $2 order by p.job_id desc limit $3`;

/** The state in the text, not as a parameter, so that the partial index is seen to apply. */
function ended(state: JobState): string {
  return `
    select d.job_id as id from sluice.done_jobs d
     where d.state = '${state}' and d.state <> 'succeeded' and d.job_id < $2 order by d.job_id desc limit $3`;
}

function inGroup(queue: string | null, upstream: string | null, values: Values): string {
  const byQueue = queue === null ? '' : `and g.queue = ${values.add(queue)}`;
  return upstream === null ? byQueue : `${byQueue} and g.upstream = ${values.add(upstream)}`;
}
