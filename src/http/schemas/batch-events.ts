/** Server-Sent Events of a batch: what each carries as `data`, for the handler and for the document. */
import { z } from 'zod';
import { jobState } from './batches.ts';

/** The data of a `job` event. */
export const jobEventSchema = z
  .object({
    job_id: z.uuid(),
    index: z.number().int().describe('Place of its item in the batch, from 0; the first where it has several'),
    idempotency_key: z.string().nullable(),
    state: jobState.describe('`succeeded`, `failed`, `cancelled` or `expired`; or `held`, which a person decides'),
    reason: z.string().nullable(),
    response_status: z.number().int().nullable().describe('Of the answer that ended the job'),
  })
  .meta({ id: 'JobEvent', description: 'The data of a `job` event' });

export type JobEventData = z.output<typeof jobEventSchema>;

/** How an event looks as text. */
const example = `retry: 2000

id: 7421:7421:
event: progress
data: {"batch_id":"0199a4b2-7c1e-7000-8000-2f4de8c1a001","status":"processing","progress":0.5}

id: 7421:7421:~7430:7430:~1
event: job
data: {"job_id":"0199a4b2-7c1e-7000-8000-2f4de8c1a002","index":1,"idempotency_key":"ord-2","state":"succeeded","reason":null,"response_status":200}

`;

export const eventStreamSchema = z
  .string()
  .describe(
    'Each event is a block of lines that ends with an empty one: `id`, `event` (`progress`, `job` or `done`) and `data`, JSON on one line. `progress` and `done` carry a BatchProgress, `job` a JobEvent',
  )
  .meta({ examples: [example] });
