/** The live cooldowns of upstreams, for people to read. Reading changes nothing; one that is over and at full rate is not shown. */
import type { Database } from './database.ts';

export interface UpstreamCooldown {
  readonly upstream: string;
  /** Empty: of the whole upstream. */
  readonly partitionKey: string;
  /** `cooling`: closed until `until`; `probing`: it is over, and the rate is coming back. */
  readonly state: 'cooling' | 'probing';
  readonly until: Date;
  readonly reason: string;
  readonly status: number | null;
  readonly header: string | null;
  readonly jobId: string | null;
  readonly at: Date;
}

/** Most that is shown of one upstream: an account each may be cooling. */
const mostShown = 1_000;

/** Of all these upstreams, those that end last first. */
export async function readUpstreamCooldowns(
  database: Database,
  upstreams: readonly string[],
): Promise<UpstreamCooldown[]> {
  return database.query<UpstreamCooldown>(
    `select c.name as upstream, c.partition_key as "partitionKey",
            case when c.until > clock_timestamp() then 'cooling' else 'probing' end as state,
            c.until, c.reason, c.status, c.header, c.job_id as "jobId", c.at
       from unnest($1::text[]) u (name)
      cross join lateral (
        select * from sluice.cooldowns x
         where x.kind = 'upstream' and x.name = u.name and (x.until > clock_timestamp() or x.ramp is not null)
         order by x.until desc, x.partition_key limit $2) c`,
    [upstreams, mostShown],
  );
}
