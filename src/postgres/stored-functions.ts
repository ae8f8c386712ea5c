/**
 * The stored functions in the order of their installation; postgres/migrate.ts installs each whose text has changed.
 * Their texts stand beside the code that calls them.
 */
import { cancelJobsFunctions } from './cancel-jobs.ts';
import { claimAtIntakeFunction } from './claim-at-intake.ts';
import { claimJobsFunction } from './claim-jobs.ts';
import { countBatchJobsFunctions } from './count-batch-jobs.ts';
import { dueJobsFunctions } from './due-jobs.ts';
import { fuseFunctions } from './fuses.ts';
import { insertSingleFunction } from './insert-single.ts';
import { batchActivityFunction } from './list-batches.ts';
import { putReceiptFunction } from './put-receipt.ts';
import { clockFunctions, rateWindowFunctions } from './rate-windows.ts';
import { batchEventsFunction } from './read-batch-events.ts';
import { etaFunctions } from './read-eta.ts';
import { unfinishedFunctions } from './read-unfinished.ts';
import { readyBehindFunction } from './ready-behind.ts';
import { settleJobsFunction } from './settle-jobs.ts';
import { windowRowsFunctions } from './window-rows.ts';

export const storedFunctions: readonly { readonly name: string; readonly sql: string }[] = [
  clockFunctions,
  rateWindowFunctions,
  dueJobsFunctions,
  windowRowsFunctions,
  claimJobsFunction,
  claimAtIntakeFunction,
  insertSingleFunction,
  readyBehindFunction,
  cancelJobsFunctions,
  fuseFunctions,
  settleJobsFunction,
  putReceiptFunction,
  batchActivityFunction,
  countBatchJobsFunctions,
  batchEventsFunction,
  etaFunctions,
  unfinishedFunctions,
];
