/**
 * Shapes of the API, generated from openapi/openapi.json by `npm run client-types`: a change here is lost, make it in the
 * schemas of the routes.
 */
/** A batch of calls to make */
export interface BatchInput {
  /**
   * The queue of items that name none. Default: `default`
   * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
   */
  queue?: string;
  /** Yours, kept with the batch and its jobs */
  correlation_id?: string | null;
  /** true: an item without a key gets `sluice-` and the hex of its fingerprint. Default: false */
  derive_keys?: boolean;
  /** Fills what an item leaves out, field by field */
  defaults?: {
    /**
     * The upstream to call; required here or in `defaults`
     * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
     */
    upstream?: string;
    /** Default: POST */
    method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
    /**
     * Starts with `/`, may carry a query; appended to the base URL of the upstream. Required here or in `defaults`
     * @maxLength 8192
     */
    path?: string;
    /** Headers of the call. Not allowed: headers of the connection, `host`, `content-length`, `Sluice-*` and the upstream's idempotency header. Replaces those of `defaults` as a whole */
    headers?: Partial<Record<string, string>>;
    /** Any JSON, sent equal in value (numbers as doubles). An integer beyond 2^53-1 or a number beyond the range of a double is rejected as `unsafe_number`: use `body_text`. No body and `null` differ */
    body?: unknown;
    /** Instead of `body`: sent byte for byte as UTF-8, with the `content-type` of `headers` */
    body_text?: string;
    /**
     * Default: the queue of the batch
     * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
     */
    queue?: string;
    /** The account or credential that a quota belongs to */
    partition_key?: string | null;
    /**
     * Higher first within a lane, then the order of acceptance. Default: 0. Not allowed in a fifo queue
     * @min -32768
     * @max 32767
     */
    priority?: number;
    /** Not before this time; in the past: now, without a queue jump */
    run_at?: string | null;
    /** Not started after this time */
    expires_at?: string | null;
    /**
     * Taken from each rate limit that covers it. Default: 1
     * @min 1
     * @max 2147483647
     */
    cost?: number;
    /** Default: the upstream's */
    max_attempts?: number | null;
    /** Goes out as `Sluice-Payload-Version` */
    payload_version?: string | null;
  };
  /**
   * Each gets its own verdict; a bad item never sinks another
   * @maxItems 10000
   * @minItems 1
   */
  items: {
    /** Names the intent, within the tenant: 1 to 255 Unicode code points, no control characters, no lone surrogates, no white space at the ends; compared code point by code point. Required unless `derive_keys` is true */
    idempotency_key?: string | null;
    /**
     * The upstream to call; required here or in `defaults`
     * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
     */
    upstream?: string;
    /** Default: POST */
    method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
    /**
     * Starts with `/`, may carry a query; appended to the base URL of the upstream. Required here or in `defaults`
     * @maxLength 8192
     */
    path?: string;
    /** Headers of the call. Not allowed: headers of the connection, `host`, `content-length`, `Sluice-*` and the upstream's idempotency header. Replaces those of `defaults` as a whole */
    headers?: Partial<Record<string, string>>;
    /** Any JSON, sent equal in value (numbers as doubles). An integer beyond 2^53-1 or a number beyond the range of a double is rejected as `unsafe_number`: use `body_text`. No body and `null` differ */
    body?: unknown;
    /** Instead of `body`: sent byte for byte as UTF-8, with the `content-type` of `headers` */
    body_text?: string;
    /**
     * Default: the queue of the batch
     * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
     */
    queue?: string;
    /** The account or credential that a quota belongs to */
    partition_key?: string | null;
    /**
     * Higher first within a lane, then the order of acceptance. Default: 0. Not allowed in a fifo queue
     * @min -32768
     * @max 32767
     */
    priority?: number;
    /** Not before this time; in the past: now, without a queue jump */
    run_at?: string | null;
    /** Not started after this time */
    expires_at?: string | null;
    /**
     * Taken from each rate limit that covers it. Default: 1
     * @min 1
     * @max 2147483647
     */
    cost?: number;
    /** Default: the upstream's */
    max_attempts?: number | null;
    /** Goes out as `Sluice-Payload-Version` */
    payload_version?: string | null;
  }[];
}

/** One item a line, each at most 1 MiB, any number of them; blank lines are passed over */
export interface StreamLineInput {
  /** Names the intent, within the tenant: 1 to 255 Unicode code points, no control characters, no lone surrogates, no white space at the ends; compared code point by code point. Required unless `derive_keys` is true */
  idempotency_key?: string | null;
  /**
   * The upstream to call; required here or in `defaults`
   * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
   */
  upstream?: string;
  /** Default: POST */
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /**
   * Starts with `/`, may carry a query; appended to the base URL of the upstream. Required here or in `defaults`
   * @maxLength 8192
   */
  path?: string;
  /** Headers of the call. Not allowed: headers of the connection, `host`, `content-length`, `Sluice-*` and the upstream's idempotency header. Replaces those of `defaults` as a whole */
  headers?: Partial<Record<string, string>>;
  /** Any JSON, sent equal in value (numbers as doubles). An integer beyond 2^53-1 or a number beyond the range of a double is rejected as `unsafe_number`: use `body_text`. No body and `null` differ */
  body?: unknown;
  /** Instead of `body`: sent byte for byte as UTF-8, with the `content-type` of `headers` */
  body_text?: string;
  /**
   * Default: the queue of the batch
   * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
   */
  queue?: string;
  /** The account or credential that a quota belongs to */
  partition_key?: string | null;
  /**
   * Higher first within a lane, then the order of acceptance. Default: 0. Not allowed in a fifo queue
   * @min -32768
   * @max 32767
   */
  priority?: number;
  /** Not before this time; in the past: now, without a queue jump */
  run_at?: string | null;
  /** Not started after this time */
  expires_at?: string | null;
  /**
   * Taken from each rate limit that covers it. Default: 1
   * @min 1
   * @max 2147483647
   */
  cost?: number;
  /** Default: the upstream's */
  max_attempts?: number | null;
  /** Goes out as `Sluice-Payload-Version` */
  payload_version?: string | null;
}

/** A key to make */
export interface ApiKeyRequestInput {
  /**
   * For people: who uses it, where
   * @minLength 1
   * @maxLength 200
   */
  name: string;
  /**
   * What it may do, exactly: no scope implies another. `submit`: bring work and steer it; `read`: look at it, and `/metrics`; `receipts`: put receipts; `admin`: everything under `/admin`
   * @maxItems 4
   * @minItems 1
   */
  scopes: ("submit" | "read" | "receipts" | "admin")[];
  /**
   * Whose batches, jobs, keys and receipts it works on; a tenant sees only its own. Same syntax as names of definitions
   * @default "default"
   * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
   */
  tenant?: string;
}

/** Which dead letters go on their way again: either `filter` or `job_ids` */
export interface RedriveInput {
  /** All dead letters that it fits; empty: all there are */
  filter?: {
    /** Only jobs in this state */
    state?: "failed" | "held";
    /** Only jobs with this `reason`, as `attempts_exhausted` or `outcome_unknown` */
    reason?: string;
    /** Only jobs of this upstream */
    upstream?: string;
    /** Only jobs of this queue */
    queue?: string;
    /**
     * Only jobs that this batch has brought
     * @format uuid
     */
    batch_id?: string;
  };
  /**
   * These jobs, as far as they are dead letters
   * @maxItems 10000
   * @minItems 1
   */
  job_ids?: string[];
  /**
   * Send a new idempotency key with each; jobs with a call whose outcome is not known are skipped
   * @default false
   */
  fresh_key?: boolean;
}

/** A third-party API, or a group of its endpoints with a quota of its own */
export interface UpstreamDefinitionInput {
  /**
   * A job's path is appended and cannot leave it
   * @format uri
   */
  base_url: string;
  /**
   * Sent with every call. Stored and shown as written, so a credential goes in as `${NAME}` only, which is read from the environment of the process at the time of the call
   * @default {}
   */
  headers?: Partial<Record<string, string>>;
  /**
   * Header that carries the key; null: the API knows none
   * @default "Idempotency-Key"
   */
  idempotency_header?: string | null;
  /**
   * How long the API remembers a key, in seconds
   * @min 1
   * @max 315360000
   * @default 86400
   */
  key_ttl_s?: number;
  /**
   * For the whole call, body included, in milliseconds
   * @min 1
   * @max 900000
   * @default 15000
   */
  timeout_ms?: number;
  /**
   * For the connection, TLS included, in milliseconds
   * @min 1
   * @max 900000
   * @default 5000
   */
  connect_timeout_ms?: number;
  /**
   * How often, and after which waits, a call is made again
   * @default {"max_attempts":5,"base_ms":500,"cap_ms":30000,"max_throttles":100,"retry_after_cap_s":86400}
   */
  retry?: {
    /**
     * Attempts a job may spend; throttles are counted apart
     * @min 1
     * @max 1000
     * @default 5
     */
    max_attempts?: number;
    /**
     * First backoff, in milliseconds, before jitter
     * @min 1
     * @max 86400000
     * @default 500
     */
    base_ms?: number;
    /**
     * Longest backoff, in milliseconds
     * @min 1
     * @max 86400000
     * @default 30000
     */
    cap_ms?: number;
    /**
     * Throttled answers a job may get
     * @min 0
     * @max 1000000
     * @default 100
     */
    max_throttles?: number;
    /**
     * Longest Retry-After that is believed, in seconds
     * @min 1
     * @max 2678400
     * @default 86400
     */
    retry_after_cap_s?: number;
  };
  /**
   * Replaces the default (2xx)
   * @default null
   */
  success_statuses?: number[] | null;
  /**
   * Replaces the default (408, 425, 5xx); 429 is always a throttle
   * @default null
   */
  retry_statuses?: number[] | null;
  /**
   * What to do when a call was sent and its answer never seen; null: hold for POST and PATCH without an idempotency header, else resend
   * @default null
   */
  on_unknown?: "resend" | "hold" | null;
  /**
   * Asks, before anything is sent again, what became of a call whose answer was never seen; spends no attempt. An answer that is neither applied nor absent is asked again with backoff, at most `retry.max_throttles` times in a row; then the job is held
   * @default null
   */
  reconcile?: {
    /**
     * GET of this path asks; `{key}` is replaced by the outbound key, percent-encoded
     * @pattern ^\/
     */
    path: string;
    /**
     * The effect is there: the job has succeeded
     * @minItems 1
     * @default [200]
     */
    applied_when?: number[];
    /**
     * It is not: the job is sent again
     * @minItems 1
     * @default [404]
     */
    absent_when?: number[];
  } | null;
  /**
   * Answers after which no call of the same batch would do, such as 401 for credentials: the job and the rest of what its batch has brought go on hold, unspent, until `POST /v1/batches/{batch_id}/resume`
   * @default {"statuses":[401]}
   */
  fuse?: {
    /**
     * Statuses of such an answer; `[]`: none. `success_statuses` go before them, and 429 is always a throttle
     * @default [401]
     */
    statuses?: number[];
  };
  /**
   * Its jobs wait
   * @default false
   */
  paused?: boolean;
  /**
   * Calls may go to loopback, private, link-local and metadata addresses
   * @default false
   */
  allow_private_addresses?: boolean;
}

/** How many starts per period, over which upstreams and queues */
export interface RateLimitDefinitionInput {
  /** Starts per period; 0 pauses; null: no start limit */
  limit: number | null;
  /**
   * Period in seconds
   * @min 1
   * @max 2678400
   * @default 1
   */
  per?: number;
  /**
   * How starts are counted: see the README for the bound that each gives
   * @default "sliding_window"
   */
  algorithm?: "sliding_window" | "fixed_window" | "token_bucket";
  /**
   * token_bucket: most tokens; 0: ceil(limit / per)
   * @min 0
   * @max 2147483647
   * @default 0
   */
  burst?: number;
  /**
   * Jitter between start and arrival that the bound absorbs, in milliseconds
   * @min 0
   * @max 10000
   * @default 25
   */
  slack_ms?: number;
  /**
   * Leased calls, fleet-wide
   * @default null
   */
  max_in_flight?: number | null;
  /**
   * One window per partition key
   * @default false
   */
  by_partition?: boolean;
  /**
   * Shared by all replicas through the database
   * @default "fleet"
   */
  scope?: "fleet";
  /**
   * A throttle under this limit closes everything under it
   * @default false
   */
  shares_cooldown?: boolean;
  /**
   * It covers jobs of these upstreams
   * @default []
   */
  upstreams?: string[];
  /**
   * It covers jobs of these queues
   * @default []
   */
  queues?: string[];
}

/** A named group of jobs */
export interface QueueDefinitionInput {
  /**
   * Its jobs wait
   * @default false
   */
  paused?: boolean;
  /**
   * `fifo`: one unfinished job at a time per lane, in order of acceptance
   * @default "none"
   */
  ordering?: "none" | "fifo";
}

/** The receiver's own evidence that the effect was applied */
export interface EvidenceInput {
  /** HTTP status that the effect would have answered */
  status?: number | null;
  /** What it would have answered: text as it is, any other value as JSON */
  body?: unknown;
  /** For people: where the evidence comes from */
  note?: string | null;
}

/** What was refused or went wrong (RFC 9457) */
export interface Problem {
  /** URI that names the kind of problem */
  type: string;
  /** The kind of problem, in words */
  title: string;
  /** Its status */
  status: number;
  /** What happened, with which value, and what is allowed */
  detail: string;
  /** Stable, for programs */
  code: string;
  /** Each thing that is wrong, all of them at once */
  errors: {
    /** JSON pointer (RFC 6901) into what was sent; absent where the whole is at fault */
    pointer?: string;
    /** Stable, for programs */
    code: string;
    /** For people */
    message: string;
  }[];
  /** Names this request in the log */
  request_id: string;
  /** Of the job or the batch, where that does not allow it (409) */
  state?: string;
}

/** Worked out from the rate limits over its jobs and how much of them is used, what stands before it, cooldowns, `run_at` and how its calls have gone so far. It moves as these do */
export interface Eta {
  /**
   * When the last of its jobs is expected to end, as things stand
   * @format date-time
   */
  at: string;
  /** The rate limit that decides it, or the upstream whose cooldown does; null: neither does, but the time of the calls themselves, worker slots, an order, or a `run_at` */
  limited_by: string | null;
}

/** One verdict per item, in order */
export interface BatchAnswer {
  /**
   * Id of the batch
   * @format uuid
   */
  batch_id: string;
  /** `completed`: no job behind it is unfinished, as where all items are rejected; `counts` has the verdicts */
  status: "processing" | "completed";
  /**
   * When it was stored
   * @format date-time
   */
  created_at: string;
  /** As given with the batch; null: none was */
  correlation_id: string | null;
  /** The request was sent before under the same Idempotency-Key; this is the first answer again */
  replayed: boolean;
  /** Items by verdict */
  counts: {
    /** All of them */
    total: number;
    /** Stored; they will run */
    accepted: number;
    /** The key is known with the same request */
    duplicate: number;
    /** The key is known with another request */
    conflict: number;
    /** Not taken; `errors` says why */
    rejected: number;
  };
  /** In the order of the items sent */
  items: {
    /** Place in the batch, from 0 */
    index: number;
    /** null: none, or not a legal one */
    idempotency_key: string | null;
    /** `derived`: the service made the key from the request */
    key_source?: "given" | "derived";
    /** `accepted`: durable, will run. `duplicate`: the key is known with the same request. `conflict`: the key is known with another request. `rejected`: see `errors` */
    verdict: "accepted" | "duplicate" | "conflict" | "rejected";
    /**
     * Of the new job, or of the one that has the key
     * @format uuid
     */
    job_id?: string;
    /** State of that job when this was answered */
    job_state?:
      | "scheduled"
      | "ready"
      | "running"
      | "succeeded"
      | "failed"
      | "held"
      | "cancelled"
      | "expired";
    /** The existing job ended as failed, cancelled or expired; it does not run again by itself */
    needs_retry?: true;
    /** What is wrong; empty or absent: nothing is */
    errors?: {
      /** JSON pointer (RFC 6901) into what was sent; absent where the whole is at fault */
      pointer?: string;
      /** Stable, for programs */
      code: string;
      /** For people */
      message: string;
    }[];
  }[];
}

/** The verdicts that a batch would get, and when it would be done */
export interface DryRunAnswer {
  /** There is none: nothing was stored */
  batch_id: null;
  /** `completed`: no job behind it is unfinished, as where all items are rejected; `counts` has the verdicts */
  status: "processing" | "completed";
  /**
   * When it was stored
   * @format date-time
   */
  created_at: string;
  /** As given with the batch; null: none was */
  correlation_id: string | null;
  /** It was sent before; this is the first answer again */
  replayed: false;
  /** Items by verdict */
  counts: {
    /** All of them */
    total: number;
    /** Stored; they will run */
    accepted: number;
    /** The key is known with the same request */
    duplicate: number;
    /** The key is known with another request */
    conflict: number;
    /** Not taken; `errors` says why */
    rejected: number;
  };
  /** In the order of the items sent */
  items: {
    /** Place in the batch, from 0 */
    index: number;
    /** null: none, or not a legal one */
    idempotency_key: string | null;
    /** `derived`: the service made the key from the request */
    key_source?: "given" | "derived";
    /** `accepted`: durable, will run. `duplicate`: the key is known with the same request. `conflict`: the key is known with another request. `rejected`: see `errors` */
    verdict: "accepted" | "duplicate" | "conflict" | "rejected";
    /** Of the job that has the key; null where the batch itself would make it */
    job_id?: string | null;
    /** State of that job when this was answered */
    job_state?:
      | "scheduled"
      | "ready"
      | "running"
      | "succeeded"
      | "failed"
      | "held"
      | "cancelled"
      | "expired";
    /** The existing job ended as failed, cancelled or expired; it does not run again by itself */
    needs_retry?: true;
    /** What is wrong; empty or absent: nothing is */
    errors?: {
      /** JSON pointer (RFC 6901) into what was sent; absent where the whole is at fault */
      pointer?: string;
      /** Stable, for programs */
      code: string;
      /** For people */
      message: string;
    }[];
  }[];
  /** Nothing was stored */
  dry_run: true;
  /** When it would be done, were it submitted now */
  eta: Eta | null;
}

/** A batch, without what its jobs do */
export interface BatchSummary {
  /**
   * Id of the batch
   * @format uuid
   */
  batch_id: string;
  /** `incomplete`: it comes as a stream that has not been ended; more items may come. `completed`: all jobs behind it have ended; `held` is no end. `cancelled`: it was called off, and nothing that it has brought goes on */
  status: "incomplete" | "processing" | "completed" | "cancelled";
  /**
   * When it was stored
   * @format date-time
   */
  created_at: string;
  /** When it was called off */
  cancelled_at: string | null;
  /** As given with the batch; null: none was */
  correlation_id: string | null;
  /** Items by verdict */
  counts: {
    /** All of them */
    total: number;
    /** Stored; they will run */
    accepted: number;
    /** The key is known with the same request */
    duplicate: number;
    /** The key is known with another request */
    conflict: number;
    /** Not taken; `errors` says why */
    rejected: number;
  };
}

/** What has stopped a batch */
export interface HeldBy {
  /** An answer that the upstream's `fuse` lists */
  reason: "fuse";
  /**
   * Whose call was answered so; its attempt has the answer
   * @format uuid
   */
  job_id: string;
  /** Of the answer */
  status: number;
  /**
   * When that was
   * @format date-time
   */
  at: string;
}

/** How far a batch is */
export interface BatchProgress {
  /**
   * Id of the batch
   * @format uuid
   */
  batch_id: string;
  /** `incomplete`: it comes as a stream that has not been ended; more items may come. `completed`: all jobs behind it have ended; `held` is no end. `cancelled`: it was called off, and nothing that it has brought goes on */
  status: "incomplete" | "processing" | "completed" | "cancelled";
  /**
   * When it was stored
   * @format date-time
   */
  created_at: string;
  /** When the last of its jobs ended */
  completed_at: string | null;
  /** When it was called off */
  cancelled_at: string | null;
  /** As given with the batch; null: none was */
  correlation_id: string | null;
  /** Items by verdict */
  counts: {
    /** All of them */
    total: number;
    /** Stored; they will run */
    accepted: number;
    /** The key is known with the same request */
    duplicate: number;
    /** The key is known with another request */
    conflict: number;
    /** Not taken; `errors` says why */
    rejected: number;
  };
  /** Jobs behind its accepted and duplicate items, by state */
  jobs: {
    /**
     * Waits for its `run_at`, or for its next attempt
     * @min 0
     */
    scheduled: number;
    /**
     * May run as soon as windows and slots allow
     * @min 0
     */
    ready: number;
    /**
     * A worker has it
     * @min 0
     */
    running: number;
    /**
     * Done
     * @min 0
     */
    succeeded: number;
    /**
     * Ended without success
     * @min 0
     */
    failed: number;
    /**
     * A person has to decide
     * @min 0
     */
    held: number;
    /**
     * Called off by a person
     * @min 0
     */
    cancelled: number;
    /**
     * `expires_at` passed before a start
     * @min 0
     */
    expired: number;
  };
  /**
   * Ended jobs out of all; 1 where there is none
   * @min 0
   * @max 1
   */
  progress: number;
  /** The answer that has stopped it: what it has brought is `held` with the reason `fuse` until it is resumed. null: nothing has. Jobs that are held for other reasons, one by one, do not show here */
  held_by: HeldBy | null;
  /** When it is expected to be done. null: it is done; something in its way is paused, or a job of it is held, so that nobody can say; or nothing is known yet from which to tell (no rate limit, and no call made; no worker) */
  eta: Eta | null;
}

/** One item of a batch, and what became of it */
export interface BatchItem {
  /** Place in the batch, from 0 */
  index: number;
  /** The key that names the intent; null: it has none */
  idempotency_key: string | null;
  /** Who made the key; null: there is none */
  key_source: "given" | "derived" | null;
  /** What became of the item when it was submitted */
  verdict: "accepted" | "duplicate" | "conflict" | "rejected";
  /** Id of the job; null or absent: there is none */
  job_id: string | null;
  /** As it is now; null where no job is behind the item */
  job_state:
    | "scheduled"
    | "ready"
    | "running"
    | "succeeded"
    | "failed"
    | "held"
    | "cancelled"
    | "expired"
    | null;
  /** Of the answer that ended the job */
  response_status: number | null;
  /** What is wrong; empty or absent: nothing is */
  errors: {
    /** JSON pointer (RFC 6901) into what was sent; absent where the whole is at fault */
    pointer?: string;
    /** Stable, for programs */
    code: string;
    /** For people */
    message: string;
  }[];
}

/** One line of the answer */
export type StreamAnswer =
  | {
      /** Place in the batch, from 0 */
      index: number;
      /** null: none, or not a legal one */
      idempotency_key: string | null;
      /** `derived`: the service made the key from the request */
      key_source?: "given" | "derived";
      /** `accepted`: durable, will run. `duplicate`: the key is known with the same request. `conflict`: the key is known with another request. `rejected`: see `errors` */
      verdict: "accepted" | "duplicate" | "conflict" | "rejected";
      /**
       * Of the new job, or of the one that has the key
       * @format uuid
       */
      job_id?: string;
      /** State of that job when this was answered */
      job_state?:
        | "scheduled"
        | "ready"
        | "running"
        | "succeeded"
        | "failed"
        | "held"
        | "cancelled"
        | "expired";
      /** The existing job ended as failed, cancelled or expired; it does not run again by itself */
      needs_retry?: true;
      /** What is wrong; empty or absent: nothing is */
      errors?: {
        /** JSON pointer (RFC 6901) into what was sent; absent where the whole is at fault */
        pointer?: string;
        /** Stable, for programs */
        code: string;
        /** For people */
        message: string;
      }[];
      /** The line was stored before; this is its first verdict again */
      replayed?: true;
    }
  | {
      /** The last line of a stream that is complete */
      summary: BatchProgress;
    }
  | {
      /** The last line of a stream that failed; what is stored can be resumed */
      error: Problem;
    };

/** One item a line, in their order */
export type ExportLine =
  | BatchItem
  | {
      /** The last line of an export that broke off */
      error: Problem;
    };

/** A key, without what it is sent as */
export interface ApiKey {
  /**
   * Names the key in the log (`key_id`) and in this API; it is no secret
   * @format uuid
   */
  id: string;
  /** As it was given */
  name: string;
  /** Whose batches, jobs, keys and receipts it works on; a tenant sees only its own. Same syntax as names of definitions */
  tenant: string;
  /** What it may do, exactly: no scope implies another. `submit`: bring work and steer it; `read`: look at it, and `/metrics`; `receipts`: put receipts; `admin`: everything under `/admin` */
  scopes: ("submit" | "read" | "receipts" | "admin")[];
  /**
   * When it was made
   * @format date-time
   */
  created_at: string;
}

/** A key that was just made; `key` is shown this once */
export interface NewApiKey {
  /**
   * Names the key in the log (`key_id`) and in this API; it is no secret
   * @format uuid
   */
  id: string;
  /** As it was given */
  name: string;
  /** Whose batches, jobs, keys and receipts it works on; a tenant sees only its own. Same syntax as names of definitions */
  tenant: string;
  /** What it may do, exactly: no scope implies another. `submit`: bring work and steer it; `read`: look at it, and `/metrics`; `receipts`: put receipts; `admin`: everything under `/admin` */
  scopes: ("submit" | "read" | "receipts" | "admin")[];
  /**
   * When it was made
   * @format date-time
   */
  created_at: string;
  /** Send it as `Authorization: Bearer …`. Shown this once: only its hash is kept */
  key: string;
}

/** What a redrive has done */
export interface Redriven {
  /** On their way again */
  redriven: number;
  /** Left as they are: not dead letters (any more), or not to be retried as things are; retry one by itself to see why */
  skipped: number;
}

/** One call made for a job */
export interface Attempt {
  /** From 1; every call counts. Goes out as `Sluice-Attempt` */
  number: number;
  /** Of the lease it was made under */
  epoch: number;
  /**
   * The worker that made it
   * @format uuid
   */
  worker_id: string;
  /** What became of the call; `unknown`: sent, and never answered */
  outcome:
    | "success"
    | "rejected"
    | "throttled"
    | "error"
    | "timeout"
    | "not_sent"
    | "unknown";
  /** What it took from the budgets of the job */
  charged: "attempt" | "throttle" | "none";
  /** HTTP status of the answer; null: there was none */
  status: number | null;
  /**
   * When the worker began with it
   * @format date-time
   */
  started_at: string;
  /** When the request left the worker */
  sent_at: string | null;
  /**
   * When its end was known
   * @format date-time
   */
  ended_at: string;
  /** From eligible to admitted */
  slot_wait_ms: number | null;
  /** The wait that the answer asked for */
  retry_after_ms: number | null;
  /** It asked for more than `retry_after_cap_s`, and that is what is waited */
  retry_after_capped: boolean;
  /** First 64 KiB of the answer */
  excerpt: string | null;
  /** The answer had more than was read */
  truncated: boolean;
  /** Over what was read of the answer, hex */
  sha256: string | null;
  /** What went wrong, where no answer came; null: nothing did */
  error: string | null;
  /** What its worker saw after the job had gone on without it: evidence, which changes nothing */
  late: {
    /** What became of the call; `unknown`: sent, and never answered */
    outcome:
      | "success"
      | "rejected"
      | "throttled"
      | "error"
      | "timeout"
      | "not_sent"
      | "unknown";
    /** HTTP status of the late answer; null: there was none */
    status: number | null;
    /**
     * When that was
     * @format date-time
     */
    at: string;
  } | null;
}

/** The call behind an accepted item */
export interface Job {
  /**
   * Id of the job; null or absent: there is none
   * @format uuid
   */
  job_id: string;
  /**
   * The batch that brought it
   * @format uuid
   */
  batch_id: string;
  /** The key that names the intent; null: it has none */
  idempotency_key: string;
  /** Who made the key; null: there is none */
  key_source: "given" | "derived";
  /** The queue it is in */
  queue: string;
  /** The upstream it calls */
  upstream: string;
  /** The account or credential that the quota belongs to; null: none */
  partition_key: string | null;
  /** HTTP method of the call */
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Path of the call, after the base URL of the upstream */
  path: string;
  /** The item's own, masked but for a short list of harmless ones */
  headers: Partial<Record<string, string>>;
  /** Absent where there is none, or where it is `body_text` */
  body?: unknown;
  /** The body, where it was given as text */
  body_text?: string;
  /** Its state */
  state:
    | "scheduled"
    | "ready"
    | "running"
    | "succeeded"
    | "failed"
    | "held"
    | "cancelled"
    | "expired";
  /** Why it failed or is held */
  reason: string | null;
  /** Higher first within a lane */
  priority: number;
  /** What it takes from each rate limit that covers it */
  cost: number;
  /** Goes out as `Sluice-Payload-Version`; null: none */
  payload_version: string | null;
  /** As given with the batch; null: none was */
  correlation_id: string | null;
  /** Not before this time; null: at once */
  run_at: string | null;
  /** Not started after this time; null: no such time */
  expires_at: string | null;
  /** When it may run next; null where it runs, has ended, is held or paused */
  next_eligible_at: string | null;
  /** While it runs */
  lease_expires_at: string | null;
  /** The job's own, else the upstream's */
  max_attempts: number | null;
  /** Attempts spent; throttled answers spend none */
  attempts_used: number;
  /** Throttled answers, which spend no attempt */
  throttles: number;
  /** What tells the end. `response`: the upstream's answer to the call, a success or one that failed the job at once; `receipt`: the receiver's word; `reconciled`: what the upstream said when asked. null: it has not ended, or no answer decided it (a budget was spent, it was cancelled, it expired, its cost fits no limit) */
  evidence: "response" | "receipt" | "reconciled" | null;
  /** The answer that ended it */
  response: {
    /** HTTP status of the answer */
    status: number;
    /** First 64 KiB of the answer; null: none is kept */
    excerpt: string | null;
    /** The answer had more than is kept */
    truncated: boolean;
    /** Over what was read of the answer, hex; null: nothing was */
    sha256: string | null;
  } | null;
  /**
   * When it was stored
   * @format date-time
   */
  created_at: string;
  /** When it ended; null: it has not */
  ended_at: string | null;
  /** Every call made for it, in order */
  attempts: Attempt[];
  /** Calls that asked the upstream what became of an attempt; charged nothing */
  reconciliations: {
    /**
     * When that was
     * @format date-time
     */
    at: string;
    /** null: no answer came */
    status: number | null;
    /** `applied` ends the job, `absent` has it sent again; with the others it is asked again */
    verdict: "applied" | "absent" | "throttled" | "unclear";
  }[];
}

/** A job, without what can be large */
export interface JobSummary {
  /**
   * Id of the job; null or absent: there is none
   * @format uuid
   */
  job_id: string;
  /**
   * The batch that brought it
   * @format uuid
   */
  batch_id: string;
  /** The key that names the intent; null: it has none */
  idempotency_key: string;
  /** Who made the key; null: there is none */
  key_source: "given" | "derived";
  /** The queue it is in */
  queue: string;
  /** The upstream it calls */
  upstream: string;
  /** The account or credential that the quota belongs to; null: none */
  partition_key: string | null;
  /** HTTP method of the call */
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Path of the call, after the base URL of the upstream */
  path: string;
  /** Its state */
  state:
    | "scheduled"
    | "ready"
    | "running"
    | "succeeded"
    | "failed"
    | "held"
    | "cancelled"
    | "expired";
  /** Why it failed or is held */
  reason: string | null;
  /** Higher first within a lane */
  priority: number;
  /** What it takes from each rate limit that covers it */
  cost: number;
  /** Goes out as `Sluice-Payload-Version`; null: none */
  payload_version: string | null;
  /** As given with the batch; null: none was */
  correlation_id: string | null;
  /** Not before this time; null: at once */
  run_at: string | null;
  /** Not started after this time; null: no such time */
  expires_at: string | null;
  /** When it may run next; null where it runs, has ended, is held or paused */
  next_eligible_at: string | null;
  /** While it runs */
  lease_expires_at: string | null;
  /** The job's own, else the upstream's */
  max_attempts: number | null;
  /** Attempts spent; throttled answers spend none */
  attempts_used: number;
  /** Throttled answers, which spend no attempt */
  throttles: number;
  /** What tells the end. `response`: the upstream's answer to the call, a success or one that failed the job at once; `receipt`: the receiver's word; `reconciled`: what the upstream said when asked. null: it has not ended, or no answer decided it (a budget was spent, it was cancelled, it expired, its cost fits no limit) */
  evidence: "response" | "receipt" | "reconciled" | null;
  /** The answer that ended it; its excerpt is with the job */
  response: {
    /** HTTP status of the answer */
    status: number;
    /** The answer had more than is kept */
    truncated: boolean;
    /** Over what was read of the answer, hex; null: nothing was */
    sha256: string | null;
  } | null;
  /**
   * When it was stored
   * @format date-time
   */
  created_at: string;
  /** When it ended; null: it has not */
  ended_at: string | null;
}

/** What a 429 or 503 has closed */
export interface Cooldown {
  /** null: of the whole upstream */
  partition_key: string | null;
  /** Its state */
  state: "cooling" | "probing";
  /**
   * Until when
   * @format date-time
   */
  until: string;
  /** Why; null: there is nothing to say */
  reason: string;
  /** Its status */
  status: number | null;
  /** The Retry-After that was seen */
  header: string | null;
  /** The job that met it; null: none did, or it is of another tenant */
  job_id: string | null;
  /**
   * When that was
   * @format date-time
   */
  at: string;
}

/** An upstream as it is stored, and what is closed of it */
export interface Upstream {
  /**
   * 1 to 63 characters: lower case letters, digits, dot, underscore, hyphen; starts with a letter or digit
   * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
   */
  name: string;
  /**
   * A job's path is appended and cannot leave it
   * @format uri
   */
  base_url: string;
  /**
   * Sent with every call. Stored and shown as written, so a credential goes in as `${NAME}` only, which is read from the environment of the process at the time of the call
   * @default {}
   */
  headers: Partial<Record<string, string>>;
  /**
   * Header that carries the key; null: the API knows none
   * @default "Idempotency-Key"
   */
  idempotency_header: string | null;
  /**
   * How long the API remembers a key, in seconds
   * @min 1
   * @max 315360000
   * @default 86400
   */
  key_ttl_s: number;
  /**
   * For the whole call, body included, in milliseconds
   * @min 1
   * @max 900000
   * @default 15000
   */
  timeout_ms: number;
  /**
   * For the connection, TLS included, in milliseconds
   * @min 1
   * @max 900000
   * @default 5000
   */
  connect_timeout_ms: number;
  /**
   * How often, and after which waits, a call is made again
   * @default {"max_attempts":5,"base_ms":500,"cap_ms":30000,"max_throttles":100,"retry_after_cap_s":86400}
   */
  retry: {
    /**
     * Attempts a job may spend; throttles are counted apart
     * @min 1
     * @max 1000
     * @default 5
     */
    max_attempts: number;
    /**
     * First backoff, in milliseconds, before jitter
     * @min 1
     * @max 86400000
     * @default 500
     */
    base_ms: number;
    /**
     * Longest backoff, in milliseconds
     * @min 1
     * @max 86400000
     * @default 30000
     */
    cap_ms: number;
    /**
     * Throttled answers a job may get
     * @min 0
     * @max 1000000
     * @default 100
     */
    max_throttles: number;
    /**
     * Longest Retry-After that is believed, in seconds
     * @min 1
     * @max 2678400
     * @default 86400
     */
    retry_after_cap_s: number;
  };
  /**
   * Replaces the default (2xx)
   * @default null
   */
  success_statuses: number[] | null;
  /**
   * Replaces the default (408, 425, 5xx); 429 is always a throttle
   * @default null
   */
  retry_statuses: number[] | null;
  /**
   * What to do when a call was sent and its answer never seen; null: hold for POST and PATCH without an idempotency header, else resend
   * @default null
   */
  on_unknown: "resend" | "hold" | null;
  /**
   * Asks, before anything is sent again, what became of a call whose answer was never seen; spends no attempt. An answer that is neither applied nor absent is asked again with backoff, at most `retry.max_throttles` times in a row; then the job is held
   * @default null
   */
  reconcile: {
    /**
     * GET of this path asks; `{key}` is replaced by the outbound key, percent-encoded
     * @pattern ^\/
     */
    path: string;
    /**
     * The effect is there: the job has succeeded
     * @minItems 1
     * @default [200]
     */
    applied_when: number[];
    /**
     * It is not: the job is sent again
     * @minItems 1
     * @default [404]
     */
    absent_when: number[];
  } | null;
  /**
   * Answers after which no call of the same batch would do, such as 401 for credentials: the job and the rest of what its batch has brought go on hold, unspent, until `POST /v1/batches/{batch_id}/resume`
   * @default {"statuses":[401]}
   */
  fuse: {
    /**
     * Statuses of such an answer; `[]`: none. `success_statuses` go before them, and 429 is always a throttle
     * @default [401]
     */
    statuses: number[];
  };
  /**
   * Its jobs wait
   * @default false
   */
  paused: boolean;
  /**
   * Calls may go to loopback, private, link-local and metadata addresses
   * @default false
   */
  allow_private_addresses: boolean;
  /** A config file overwrites it only with a higher one */
  revision: number;
  /**
   * When it was last changed
   * @format date-time
   */
  updated_at: string;
  /** What is closed just now after a 429 or 503, as a whole or by partition */
  cooldowns: Cooldown[];
}

/** A rate limit as it is stored */
export interface RateLimit {
  /**
   * 1 to 63 characters: lower case letters, digits, dot, underscore, hyphen; starts with a letter or digit
   * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
   */
  name: string;
  /** Starts per period; 0 pauses; null: no start limit */
  limit: number | null;
  /**
   * Period in seconds
   * @min 1
   * @max 2678400
   * @default 1
   */
  per: number;
  /**
   * How starts are counted: see the README for the bound that each gives
   * @default "sliding_window"
   */
  algorithm: "sliding_window" | "fixed_window" | "token_bucket";
  /**
   * token_bucket: most tokens; 0: ceil(limit / per)
   * @min 0
   * @max 2147483647
   * @default 0
   */
  burst: number;
  /**
   * Jitter between start and arrival that the bound absorbs, in milliseconds
   * @min 0
   * @max 10000
   * @default 25
   */
  slack_ms: number;
  /**
   * Leased calls, fleet-wide
   * @default null
   */
  max_in_flight: number | null;
  /**
   * One window per partition key
   * @default false
   */
  by_partition: boolean;
  /**
   * Shared by all replicas through the database
   * @default "fleet"
   */
  scope: "fleet";
  /**
   * A throttle under this limit closes everything under it
   * @default false
   */
  shares_cooldown: boolean;
  /**
   * It covers jobs of these upstreams
   * @default []
   */
  upstreams: string[];
  /**
   * It covers jobs of these queues
   * @default []
   */
  queues: string[];
  /** A config file overwrites it only with a higher one */
  revision: number;
  /**
   * When it was last changed
   * @format date-time
   */
  updated_at: string;
}

/** A queue as it is stored */
export interface Queue {
  /**
   * 1 to 63 characters: lower case letters, digits, dot, underscore, hyphen; starts with a letter or digit
   * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
   */
  name: string;
  /**
   * Its jobs wait
   * @default false
   */
  paused: boolean;
  /**
   * `fifo`: one unfinished job at a time per lane, in order of acceptance
   * @default "none"
   */
  ordering: "none" | "fifo";
  /** A config file overwrites it only with a higher one */
  revision: number;
  /**
   * When it was last changed
   * @format date-time
   */
  updated_at: string;
}

/** A live worker process */
export interface Worker {
  /**
   * New with each start of a process
   * @format uuid
   */
  worker_id: string;
  /** Host name of its machine */
  host: string;
  /** Its process id there */
  pid: number;
  /**
   * Worker slots of the process
   * @min 0
   */
  concurrency: number;
  /**
   * When it registered
   * @format date-time
   */
  started_at: string;
  /**
   * Renewed at a third of its length
   * @format date-time
   */
  lease_expires_at: string;
  /**
   * Jobs that it holds now
   * @min 0
   */
  running: number;
  /** What it runs, the longest running first, at most 200 */
  jobs: {
    /** The job; null: of another tenant */
    job_id: string | null;
    /** Its queue */
    queue: string;
    /** Its upstream */
    upstream: string;
    /** Its partition key */
    partition_key: string | null;
    /** Number of the call that is under way */
    attempt: number;
    /** Of the lease */
    epoch: number;
    /**
     * When the claim let it through
     * @format date-time
     */
    admitted_at: string;
  }[];
}

/** How the service stands, all tenants together */
export interface Stats {
  /**
   * When this was worked out, on the clock of the database
   * @format date-time
   */
  at: string;
  /** Jobs that are kept, by state */
  jobs: {
    /**
     * Waits for its `run_at`, or for its next attempt
     * @min 0
     */
    scheduled: number;
    /**
     * May run as soon as windows and slots allow
     * @min 0
     */
    ready: number;
    /**
     * A worker has it
     * @min 0
     */
    running: number;
    /**
     * Done
     * @min 0
     */
    succeeded: number;
    /**
     * Ended without success
     * @min 0
     */
    failed: number;
    /**
     * A person has to decide
     * @min 0
     */
    held: number;
    /**
     * Called off by a person
     * @min 0
     */
    cancelled: number;
    /**
     * `expires_at` passed before a start
     * @min 0
     */
    expired: number;
  };
  /** Beyond two million ended jobs `succeeded` is an estimate */
  succeeded_is_estimate: boolean;
  /** What has happened lately */
  rates: {
    /** Taken over so many seconds until now */
    seconds: number;
    /**
     * Calls that were started in that time and have ended
     * @min 0
     */
    attempts_per_second: number;
    /**
     * Jobs that have ended
     * @min 0
     */
    ended_per_second: number;
    /** Those calls by outcome */
    attempts: {
      /**
       * Calls that were done
       * @min 0
       */
      success: number;
      /**
       * Answers that end the job
       * @min 0
       */
      rejected: number;
      /**
       * Answers 429, and 503 with a Retry-After
       * @min 0
       */
      throttled: number;
      /**
       * Answers that are retried
       * @min 0
       */
      error: number;
      /**
       * Calls whose time was up before they were answered
       * @min 0
       */
      timeout: number;
      /**
       * Nothing left the worker
       * @min 0
       */
      not_sent: number;
      /**
       * Calls that were sent and never answered
       * @min 0
       */
      unknown: number;
    };
    /** Those jobs by state */
    ended: {
      /**
       * Done
       * @min 0
       */
      succeeded: number;
      /**
       * Ended without success
       * @min 0
       */
      failed: number;
      /**
       * Called off by a person
       * @min 0
       */
      cancelled: number;
      /**
       * `expires_at` passed before a start
       * @min 0
       */
      expired: number;
    };
  };
  /** Of the job that could run now and has waited longest; null: none could */
  oldest_eligible_age_seconds: number | null;
  /** Queues in which jobs are ready */
  queues: {
    /** Its name */
    queue: string;
    /**
     * Jobs that are due in it
     * @min 0
     */
    ready: number;
    /** Of what could run now */
    oldest_eligible_age_seconds: number | null;
    /** Of what a window or a cooldown keeps waiting */
    oldest_throttled_age_seconds: number | null;
  }[];
  /** The fleet */
  workers: {
    /**
     * Processes whose lease is good
     * @min 0
     */
    live: number;
    /**
     * Their worker slots
     * @min 0
     */
    slots: number;
    /**
     * Jobs that run
     * @min 0
     */
    running: number;
  };
}

/** Live state of a rate limit, or of one partition of it */
export interface RateWindow {
  /** Name of the rate limit */
  limit: string;
  /** The account or credential that the quota belongs to; null: none */
  partition_key: string | null;
  /** exhausted: no room now; cooling: it, or every upstream it covers, is closed until a time; probing: the rate is coming back after that; paused: by an operator, or limit 0 */
  state: "open" | "exhausted" | "cooling" | "probing" | "paused";
  /** How starts are counted: see the README for the bound that each gives */
  algorithm: "sliding_window" | "fixed_window" | "token_bucket";
  /** The limit, or the size of the bucket; null: no start limit */
  capacity: number | null;
  /** Seconds */
  per: number;
  /** Cost that counts now */
  used: number;
  /** Cost that would be admitted now */
  remaining: number | null;
  /** Of an open fixed window */
  window_started_at: string | null;
  /** When room next grows; null while nothing is used */
  resets_at: string | null;
  /** Leased calls of the jobs it covers */
  in_flight: number;
  /** Until when it is closed; null: it is not */
  cooldown_until: string | null;
  /** Why it is closed; null: it is not */
  cooldown: {
    /**
     * Until when
     * @format date-time
     */
    until: string;
    /** Why; null: there is nothing to say */
    reason: string;
    /** The answer that closed it; null: an operator did */
    status: number | null;
    /** The Retry-After that was seen */
    header: string | null;
    /** The job that met it; null: none did, or it is of another tenant */
    job_id: string | null;
    /**
     * When that was
     * @format date-time
     */
    at: string;
  } | null;
  /** Jobs that are due under it */
  waiting_jobs: number;
  /** How long an admission may be used */
  permit_ms: number;
}

/** The most starts in any period, from the send times on record */
export interface RateWindowAudit {
  /** Name of the rate limit */
  limit: string;
  /** The account or credential that the quota belongs to; null: none */
  partition_key: string | null;
  /** Seconds */
  per: number;
  /** Largest cost of starts in any interval of one period; their number where each costs 1 */
  max_starts: number;
  /** Start of the fullest interval; null: nothing was started */
  at: string | null;
  /** Most that the algorithm allows in any interval of one period, wherever it lies */
  bound: number | null;
  /**
   * From when on starts were counted: as asked for, or as the default came out
   * @format date-time
   */
  since: string;
}

/** The data of a `job` event */
export interface JobEvent {
  /**
   * Id of the job; null or absent: there is none
   * @format uuid
   */
  job_id: string;
  /** Place of its item in the batch, from 0; the first where it has several */
  index: number;
  /** The key that names the intent; null: it has none */
  idempotency_key: string | null;
  /** `succeeded`, `failed`, `cancelled` or `expired`; or `held`, which a person decides */
  state:
    | "scheduled"
    | "ready"
    | "running"
    | "succeeded"
    | "failed"
    | "held"
    | "cancelled"
    | "expired";
  /** Why; null: there is nothing to say */
  reason: string | null;
  /** Of the answer that ended the job */
  response_status: number | null;
}

/** Why a job has not run */
export interface Explanation {
  /**
   * The job that was asked about
   * @format uuid
   */
  job_id: string;
  /** As it is now */
  state:
    | "scheduled"
    | "ready"
    | "running"
    | "succeeded"
    | "failed"
    | "held"
    | "cancelled"
    | "expired";
  /** It is ready and waits for nothing but a worker slot */
  runnable: boolean;
  /** Its place in its lane, from 1: among what is due there, in a fifo queue among all that is unfinished; null: it runs or has ended */
  position: number | null;
  /** All that is in its way now, what keeps its whole lane first; empty: the next claim takes it */
  waiting_on: {
    /** `window`: a rate limit has no room for it and those before it, is paused, or has as many calls in flight as it may. `cooldown`: the upstream said 429 or 503, or the rate is coming back after that. `scheduled`: its `run_at`, or the backoff of a retry. `fifo`: a job before it in its lane is unfinished. `slot`: all worker slots are taken. `lease`: it runs, under the lease of a worker. `held`: a person decides. `ended`: there is nothing to wait for */
    kind:
      | "window"
      | "cooldown"
      | "upstream_paused"
      | "queue_paused"
      | "scheduled"
      | "fifo"
      | "slot"
      | "lease"
      | "held"
      | "ended";
    /** Of the limit, the upstream, the queue or the worker; of a held job its reason, of an ended one its state */
    name: string | null;
    /** Where the window or the cooldown is of one partition */
    partition_key: string | null;
    /** The earliest time at which this is over, as far as one is known */
    until: string | null;
    /** For people */
    detail: string;
  }[];
}

/** What became of an idempotency key; lives as long as the key */
export interface Receipt {
  /** The key that names the intent; null: it has none */
  idempotency_key: string;
  /**
   * Id of the job; null or absent: there is none
   * @format uuid
   */
  job_id: string;
  /** Of the job, also while it is unfinished */
  state:
    | "scheduled"
    | "ready"
    | "running"
    | "succeeded"
    | "failed"
    | "held"
    | "cancelled"
    | "expired";
  /** Why it failed or is held */
  reason: string | null;
  /** How many calls were made */
  attempts: number;
  /** Of the answer that ended the job, or as the receiver told it */
  status: number | null;
  /** First 64 KiB of that answer */
  excerpt: string | null;
  /** The answer had more than the excerpt */
  truncated: boolean;
  /** Over what was read of the answer, hex */
  sha256: string | null;
  /** What tells the end: the upstream's answer, the receiver's word, or what the upstream said when asked */
  evidence: "response" | "receipt" | "reconciled" | null;
  /** What the receiver said with its evidence */
  note: string | null;
  /** First call that may have had an effect */
  first_sent_at: string | null;
  /** When it ended; null: it has not */
  ended_at: string | null;
  /** When the key is forgotten; null: the job has not ended */
  expires_at: string | null;
}

/** It answers */
export interface GetLivenessData {
  /** Its status */
  status: "alive";
}

/** Ready */
export interface GetReadinessData {
  /** Its status */
  status: "ready";
}

export interface ListUpstreamsParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /**
   * Most items of a page
   * @min 1
   * @max 1000
   */
  limit?: number;
}

/** The upstreams */
export interface ListUpstreamsData {
  /** Of this page, in order */
  items: Upstream[];
  /** Pass it as `cursor` for the next page; null: there is none */
  next_cursor: string | null;
}

export interface GetUpstreamParams {
  /** Name of the definition */
  name: string;
}

export type GetUpstreamData = Upstream;

export interface PutUpstreamParams {
  /** Name of the definition */
  name: string;
}

export type PutUpstreamData = Upstream;

export interface DeleteUpstreamParams {
  /** Name of the definition */
  name: string;
}

export type DeleteUpstreamData = unknown;

export interface ListRateLimitsParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /**
   * Most items of a page
   * @min 1
   * @max 1000
   */
  limit?: number;
}

/** The rate limits */
export interface ListRateLimitsData {
  /** Of this page, in order */
  items: RateLimit[];
  /** Pass it as `cursor` for the next page; null: there is none */
  next_cursor: string | null;
}

export interface GetRateLimitParams {
  /** Name of the definition */
  name: string;
}

export type GetRateLimitData = RateLimit;

export interface PutRateLimitParams {
  /** Name of the definition */
  name: string;
}

export type PutRateLimitData = RateLimit;

export interface DeleteRateLimitParams {
  /** Name of the definition */
  name: string;
}

export type DeleteRateLimitData = unknown;

export interface ListQueuesParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /**
   * Most items of a page
   * @min 1
   * @max 1000
   */
  limit?: number;
}

/** The queues */
export interface ListQueuesData {
  /** Of this page, in order */
  items: Queue[];
  /** Pass it as `cursor` for the next page; null: there is none */
  next_cursor: string | null;
}

export interface GetQueueParams {
  /** Name of the definition */
  name: string;
}

export type GetQueueData = Queue;

export interface PutQueueParams {
  /** Name of the definition */
  name: string;
}

export type PutQueueData = Queue;

export interface DeleteQueueParams {
  /** Name of the definition */
  name: string;
}

export type DeleteQueueData = unknown;

export interface PauseUpstreamParams {
  /** Name of the definition */
  name: string;
}

export type PauseUpstreamData = Upstream;

export interface ResumeUpstreamParams {
  /** Name of the definition */
  name: string;
}

export type ResumeUpstreamData = Upstream;

export interface PauseQueueParams {
  /** Name of the definition */
  name: string;
}

export type PauseQueueData = Queue;

export interface ResumeQueueParams {
  /** Name of the definition */
  name: string;
}

export type ResumeQueueData = Queue;

export interface ListRateWindowsParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /**
   * Most items of a page
   * @min 1
   * @max 1000
   */
  limit?: number;
}

/** Live state */
export interface ListRateWindowsData {
  /** Of this page, in order */
  items: RateWindow[];
  /** Pass it as `cursor` for the next page; null: there is none */
  next_cursor: string | null;
}

export interface GetRateWindowParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /** Name of a rate limit */
  limit: string;
  /**
   * One window of a limit by partition
   * @minLength 1
   * @maxLength 255
   */
  partition_key?: string;
}

/** Live state */
export type GetRateWindowData =
  | RateWindow
  | {
      /** Of this page, in order */
      items: RateWindow[];
      /** Pass it as `cursor` for the next page; null: there is none */
      next_cursor: string | null;
    };

export interface AuditRateWindowParams {
  /**
   * RFC 3339, taken as it is. By default an hour ago, or when the limit was last put (created, changed) where that is later
   * @format date-time
   */
  since?: string;
  /**
   * One window of a limit by partition
   * @minLength 1
   * @maxLength 255
   */
  partition_key?: string;
  /** Name of a rate limit */
  limit: string;
}

export type AuditRateWindowData = RateWindowAudit;

export type PauseRateWindowPayload = {
  /** Which window of a limit by partition */
  partition_key?: string | null;
} | null;

export interface PauseRateWindowParams {
  /** Name of a rate limit */
  limit: string;
}

export type PauseRateWindowData = RateWindow;

export type ResumeRateWindowPayload = {
  /** Which window of a limit by partition */
  partition_key?: string | null;
} | null;

export interface ResumeRateWindowParams {
  /** Name of a rate limit */
  limit: string;
}

export type ResumeRateWindowData = RateWindow;

export type ResetRateWindowPayload = {
  /** Which window of a limit by partition */
  partition_key?: string | null;
} | null;

export interface ResetRateWindowParams {
  /** Name of a rate limit */
  limit: string;
}

export type ResetRateWindowData = RateWindow;

export interface CoolDownRateWindowPayload {
  /**
   * From now on; an earlier cooldown is never shortened
   * @exclusiveMin 0
   * @max 2678400
   */
  seconds: number;
  /**
   * Why; null: there is nothing to say
   * @minLength 1
   * @maxLength 500
   * @default "closed by an operator"
   */
  reason?: string;
  /** Left out of a limit by partition: everything under it */
  partition_key?: string | null;
}

export interface CoolDownRateWindowParams {
  /** Name of a rate limit */
  limit: string;
}

export type CoolDownRateWindowData = RateWindow;

export interface ListDeadLettersParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /**
   * Most items of a page
   * @min 1
   * @max 1000
   */
  limit?: number;
  /** Only jobs in this state */
  state?: "failed" | "held";
  /** Only jobs with this `reason`, as `attempts_exhausted` or `outcome_unknown` */
  reason?: string;
  /** Only jobs of this upstream */
  upstream?: string;
  /** Only jobs of this queue */
  queue?: string;
  /**
   * Only jobs that this batch has brought
   * @format uuid
   */
  batch_id?: string;
}

/** A page of jobs */
export interface ListDeadLettersData {
  /** Of this page, in order */
  items: JobSummary[];
  /** Pass it as `cursor` for the next page; null: there is none */
  next_cursor: string | null;
}

export type RedriveDeadLettersData = Redriven;

export interface ListWorkersParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /**
   * Most items of a page
   * @min 1
   * @max 1000
   */
  limit?: number;
}

/** A page of workers */
export interface ListWorkersData {
  /** Of this page, in order */
  items: Worker[];
  /** Pass it as `cursor` for the next page; null: there is none */
  next_cursor: string | null;
}

export type GetStatsData = Stats;

export type CreateApiKeyData = NewApiKey;

export interface ListApiKeysParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /**
   * Most items of a page
   * @min 1
   * @max 1000
   */
  limit?: number;
}

/** A page of keys */
export interface ListApiKeysData {
  /** Of this page, in order */
  items: ApiKey[];
  /** Pass it as `cursor` for the next page; null: there is none */
  next_cursor: string | null;
}

export interface GetApiKeyParams {
  /** Of an API key */
  id: string;
}

export type GetApiKeyData = ApiKey;

export interface DeleteApiKeyParams {
  /** Of an API key */
  id: string;
}

export type DeleteApiKeyData = unknown;

export interface GetBatchParams {
  /**
   * Seconds to wait for the end of the batch: answers when it is `completed` or `cancelled`, or the time is up, with the batch as it stands then
   * @min 0
   * @max 60
   */
  wait?: number;
  /** Id of the batch, as the answer to its submission has it */
  batchId: string;
}

export type GetBatchData = BatchProgress;

export interface ListBatchItemsParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /**
   * Most items of a page
   * @min 1
   * @max 1000
   */
  limit?: number;
  /** Only items with this verdict */
  verdict?: "accepted" | "duplicate" | "conflict" | "rejected";
  /** Only items whose job is in this state */
  state?:
    | "scheduled"
    | "ready"
    | "running"
    | "succeeded"
    | "failed"
    | "held"
    | "cancelled"
    | "expired";
  /** Id of the batch, as the answer to its submission has it */
  batchId: string;
}

export interface ListBatchItemsData {
  /** Of this page, in order */
  items: BatchItem[];
  /** Pass it as `cursor` for the next page; null: there is none */
  next_cursor: string | null;
}

export interface FollowBatchParams {
  /** Id of the batch, as the answer to its submission has it */
  batchId: string;
}

/** Each event is a block of lines that ends with an empty one: `id`, `event` (`progress`, `job` or `done`) and `data`, JSON on one line. `progress` and `done` carry a BatchProgress, `job` a JobEvent */
export type FollowBatchData = string;

export interface ListBatchesParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /**
   * Most items of a page
   * @min 1
   * @max 1000
   */
  limit?: number;
}

/** A page of batches */
export interface ListBatchesData {
  /** Of this page, in order */
  items: BatchSummary[];
  /** Pass it as `cursor` for the next page; null: there is none */
  next_cursor: string | null;
}

export interface SubmitBatchParams {
  /**
   * Of a stream (`application/x-ndjson`): the queue of lines that name none. Default: `default`
   * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
   */
  queue?: string;
  /** Of a stream (`application/x-ndjson`): yours, kept with the batch and its jobs */
  correlation_id?: string;
  /** Of a stream (`application/x-ndjson`): true: a line without a key gets `sluice-` and the hex of its fingerprint */
  derive_keys?: "true" | "false";
  /**
   * Of a stream (`application/x-ndjson`): default of the lines
   * @pattern ^[a-z0-9][a-z0-9._-]{0,62}$
   */
  upstream?: string;
  /** Of a stream (`application/x-ndjson`): default of the lines */
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /**
   * Of a stream (`application/x-ndjson`): default of the lines
   * @maxLength 8192
   */
  path?: string;
  /** Of a stream (`application/x-ndjson`): default of the lines */
  partition_key?: string;
  /**
   * Of a stream (`application/x-ndjson`): default of the lines
   * @min -32768
   * @max 32767
   */
  priority?: number;
  /**
   * Of a stream (`application/x-ndjson`): default of the lines
   * @format date-time
   */
  run_at?: string;
  /**
   * Of a stream (`application/x-ndjson`): default of the lines
   * @format date-time
   */
  expires_at?: string;
  /**
   * Of a stream (`application/x-ndjson`): default of the lines
   * @min 1
   * @max 2147483647
   */
  cost?: number;
  /**
   * Of a stream (`application/x-ndjson`): default of the lines
   * @min 1
   * @max 1000
   */
  max_attempts?: number;
  /**
   * Of a stream (`application/x-ndjson`): default of the lines
   * @pattern ^[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?$
   */
  payload_version?: string;
  /** true: say what would become of the batch, and store nothing. For JSON batches */
  dry_run?: "true" | "false";
}

export type SubmitBatchData = DryRunAnswer;

export interface CancelBatchParams {
  /** Id of the batch, as the answer to its submission has it */
  batchId: string;
}

export type CancelBatchData = BatchProgress;

export interface ResumeBatchParams {
  /** Id of the batch, as the answer to its submission has it */
  batchId: string;
}

export type ResumeBatchData = BatchProgress;

export interface CloseBatchParams {
  /** Id of the batch, as the answer to its submission has it */
  batchId: string;
}

export type CloseBatchData = BatchProgress;

export interface GetJobParams {
  /** Id of the job, as the verdict on its item has it */
  jobId: string;
}

export type GetJobData = Job;

export interface ListJobsParams {
  /** `next_cursor` of the page before */
  cursor?: string;
  /**
   * Most items of a page
   * @min 1
   * @max 1000
   */
  limit?: number;
  /** Only jobs in this state */
  state?:
    | "scheduled"
    | "ready"
    | "running"
    | "succeeded"
    | "failed"
    | "held"
    | "cancelled"
    | "expired";
  /** Only jobs of this queue */
  queue?: string;
  /** Only jobs of this upstream */
  upstream?: string;
  /**
   * Only jobs that this batch has brought
   * @format uuid
   */
  batch_id?: string;
  /** Only jobs with this key: one, or more where a key was forgotten in between */
  idempotency_key?: string;
  /** Only jobs of batches with this correlation id */
  correlation_id?: string;
}

/** A page of jobs */
export interface ListJobsData {
  /** Of this page, in order */
  items: JobSummary[];
  /** Pass it as `cursor` for the next page; null: there is none */
  next_cursor: string | null;
}

export interface ExplainJobParams {
  /** Id of the job, as the verdict on its item has it */
  jobId: string;
}

export type ExplainJobData = Explanation;

export interface CancelJobParams {
  /** Id of the job, as the verdict on its item has it */
  jobId: string;
}

export type CancelJobData = Job;

export type RetryJobPayload = {
  /**
   * Send a new idempotency key, for an API that replays the errors it has stored under the old one. Refused while the outcome of a call is not known
   * @default false
   */
  fresh_key?: boolean;
} | null;

export interface RetryJobParams {
  /** Id of the job, as the verdict on its item has it */
  jobId: string;
}

export type RetryJobData = Job;

export interface GetReceiptParams {
  /** The idempotency key */
  key: string;
}

export type GetReceiptData = Receipt;

export type PutReceiptPayload = EvidenceInput | null;

export interface PutReceiptParams {
  /** The idempotency key */
  key: string;
}

export type PutReceiptData = Receipt;

export interface GetReceiptByPathParams {
  /** The idempotency key, percent-encoded */
  key: string;
}

export type GetReceiptByPathData = Receipt;

export type PutReceiptByPathPayload = EvidenceInput | null;

export interface PutReceiptByPathParams {
  /** The idempotency key, percent-encoded */
  key: string;
}

export type PutReceiptByPathData = Receipt;

export interface LookUpReceiptsPayload {
  /**
   * The keys to look up
   * @maxItems 1000
   */
  keys: string[];
}

/** In the order of the keys */
export interface LookUpReceiptsData {
  /** One for each key, in their order */
  items: (
    | Receipt
    | {
        /** The key that names the intent; null: it has none */
        idempotency_key: string;
        /** Its state */
        state: "unknown_key";
      }
  )[];
}
