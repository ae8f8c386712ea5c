/** Rate windows: live state, the audit of the service by its own records, and the operator's levers. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { type JobName, jobNames } from '../../application/job-names.ts';
import {
  auditRateWindow,
  coolRateWindow,
  getRateWindow,
  isPartitioned,
  listRateWindows,
  pauseRateWindow,
  type RateWindowDependencies,
  type RateWindowView,
  resetRateWindow,
  resumeRateWindow,
} from '../../application/rate-windows.ts';
import { decodeCursor, encodeCursor, listOf, listParameters } from '../schemas/lists.ts';
import {
  partitionParameter,
  rateWindowAuditSchema,
  rateWindowSchema,
  windowCooldownRequestSchema,
  windowTargetSchema,
} from '../schemas/rate-windows.ts';

const path = '/admin/rate-windows';
const tags = ['rate windows'];
const access = { scope: 'admin' } as const;
const limitParameter = z.object({ limit: z.string().describe('Name of a rate limit') });
const position = z.tuple([z.string(), z.string()]);

export function adminRateWindowRoutes(app: FastifyInstance, deps: RateWindowDependencies): void {
  addReads(app, deps);
  addAudit(app, deps);
  addLevers(app, deps);
}

function addReads(app: FastifyInstance, deps: RateWindowDependencies): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();

  const page = async (
    tenant: string,
    only: string | null,
    { cursor, limit }: { cursor?: string | undefined; limit: number },
  ) => {
    const [limitName, partitionKey] = decodeCursor(position, cursor) ?? ['', ''];
    const { items, next } = await listRateWindows(deps, { only, after: { limit: limitName, partitionKey }, limit });
    return {
      items: await show(deps, tenant, items),
      next_cursor: next === null ? null : encodeCursor([next.limit, next.partitionKey]),
    };
  };

  typed.get(
    path,
    {
      config: access,
      schema: {
        summary: 'List rate windows',
        description: 'By limit and partition key. Of a limit by partition the windows that have been used are listed.',
        tags,
        querystring: z.strictObject(listParameters),
        response: { 200: listOf(rateWindowSchema).describe('Live state') },
      },
    },
    (request) => page(request.principal.tenant, null, request.query),
  );

  typed.get(
    `${path}/:limit`,
    {
      config: access,
      schema: {
        summary: 'Read the window of a limit',
        description: 'Of a limit by partition: a list, or with `partition_key` one window. Reading changes nothing.',
        tags,
        params: limitParameter,
        querystring: z.strictObject({ ...listParameters, partition_key: partitionParameter }),
        response: { 200: z.union([rateWindowSchema, listOf(rateWindowSchema)]).describe('Live state') },
      },
    },
    async (request) => {
      const { limit } = request.params;
      const { partition_key: partitionKey } = request.query;
      if (partitionKey === undefined && (await isPartitioned(deps, limit))) {
        return page(request.principal.tenant, limit, request.query);
      }
      return showOne(
        deps,
        request.principal.tenant,
        await getRateWindow(deps, { limit, partitionKey: partitionKey ?? '' }),
      );
    },
  );
}

function addAudit(app: FastifyInstance, deps: RateWindowDependencies): void {
  app.withTypeProvider<ZodTypeProvider>().get(
    `${path}/:limit/audit`,
    {
      config: access,
      schema: {
        summary: 'Check a limit against what was sent',
        description:
          "The largest number of starts in any interval of one period, from the attempts' own send times and not from the counter. Calls that are still in flight are not in it yet. `bound` is that of the definition in force, so by default nothing is counted that was let through before the limit was last put: another limit, or none, allowed that.",
        tags,
        params: limitParameter,
        querystring: z.strictObject({
          since: z.iso
            .datetime({ offset: true })
            .optional()
            .describe(
              'RFC 3339, taken as it is. By default an hour ago, or when the limit was last put (created, changed) where that is later',
            ),
          partition_key: partitionParameter,
        }),
        response: { 200: rateWindowAuditSchema.describe('What was found') },
      },
    },
    async (request) => {
      const { since, partition_key: partitionKey } = request.query;
      const audit = await auditRateWindow(deps, {
        limit: request.params.limit,
        partitionKey: partitionKey ?? null,
        since: since === undefined ? null : new Date(since),
      });
      return {
        limit: audit.limit,
        partition_key: audit.partitionKey,
        per: audit.per,
        max_starts: audit.maxStarts,
        at: audit.at?.toISOString() ?? null,
        bound: audit.bound,
        since: audit.since.toISOString(),
      };
    },
  );
}

function addLevers(app: FastifyInstance, deps: RateWindowDependencies): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();
  const levers = {
    pause: {
      use: pauseRateWindow,
      summary: 'Pause a window',
      description: 'Nothing is admitted through it once this has answered.',
    },
    resume: { use: resumeRateWindow, summary: 'Resume a window', description: 'Waiting jobs go on at once.' },
    reset: {
      use: resetRateWindow,
      summary: 'Forget the count of a window',
      description: 'What was admitted until now counts no more. The definition stays as it is.',
    },
  } as const;
  for (const [action, { use, summary, description }] of Object.entries(levers)) {
    typed.post(
      `${path}/:limit/${action}`,
      {
        config: access,
        schema: {
          summary,
          description,
          tags,
          params: limitParameter,
          body: windowTargetSchema,
          response: { 200: rateWindowSchema.describe('Its state now') },
        },
      },
      async (request) =>
        showOne(
          deps,
          request.principal.tenant,
          await use(deps, { limit: request.params.limit, partitionKey: request.body?.partition_key ?? null }),
        ),
    );
  }

  typed.post(
    `${path}/:limit/cooldown`,
    {
      config: access,
      schema: {
        summary: 'Close a window until a time',
        description:
          'As a 429 with a Retry-After would. A cooldown only ever extends; after it come a probe and a ramp.',
        tags,
        params: limitParameter,
        body: windowCooldownRequestSchema,
        response: { 200: rateWindowSchema.describe('Its state now') },
      },
    },
    async (request) => {
      const { seconds, reason, partition_key: partitionKey } = request.body;
      return showOne(
        deps,
        request.principal.tenant,
        await coolRateWindow(deps, {
          limit: request.params.limit,
          partitionKey: partitionKey ?? null,
          seconds,
          reason,
        }),
      );
    },
  );
}

type Shown = z.input<typeof rateWindowSchema>;

async function showOne(deps: RateWindowDependencies, tenant: string, view: RateWindowView): Promise<Shown> {
  return (await show(deps, tenant, [view]))[0]!;
}

async function show(deps: RateWindowDependencies, tenant: string, views: readonly RateWindowView[]): Promise<Shown[]> {
  const nameOf = await jobNames(
    deps,
    tenant,
    views.map(({ cooldown }) => cooldown?.jobId ?? null),
  );
  return views.map((view) => showView(view, nameOf));
}

function showView(view: RateWindowView, nameOf: JobName): Shown {
  const { cooldown } = view;
  return {
    limit: view.limit,
    partition_key: view.partitionKey,
    state: view.state,
    algorithm: view.algorithm,
    capacity: view.capacity,
    per: view.per,
    used: view.used,
    remaining: view.remaining,
    window_started_at: view.windowStartedAt?.toISOString() ?? null,
    resets_at: view.resetsAt?.toISOString() ?? null,
    in_flight: view.inFlight,
    cooldown_until: view.cooldownUntil?.toISOString() ?? null,
    cooldown:
      cooldown === null
        ? null
        : {
            until: cooldown.until.toISOString(),
            reason: cooldown.reason,
            status: cooldown.status,
            header: cooldown.header,
            job_id: nameOf(cooldown.jobId),
            at: cooldown.at.toISOString(),
          },
    waiting_jobs: view.waitingJobs,
    permit_ms: view.permitMs,
  };
}
