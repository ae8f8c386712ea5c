/** `sluice/client`: what a program imports that submits batches and follows them. Imports nothing of the service. */
export { AdminClient, type ApiKeys, type Definitions, type Pausable, type WindowOptions } from './admin.ts';
export type * from './api-types.ts';
export { type BatchEvent, type GetBatchOptions, type ItemFilter, SluiceClient, type SubmitOptions } from './client.ts';
export { SluiceConnectionError, SluiceError } from './errors.ts';
export type { FollowOptions } from './events.ts';
export type { Line, LineSource } from './ndjson.ts';
export {
  type LineDefaults,
  LineSubmission,
  type Lines,
  type LineVerdict,
  type SubmitLinesOptions,
} from './submit-lines.ts';
export type { ApiAnswer, ApiRequest, CallOptions, ClientOptions, Query } from './transport.ts';
