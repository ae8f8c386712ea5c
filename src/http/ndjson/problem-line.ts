/** A fault after the head of an answer has left: the last line says what the status can say no more. */
import type { FastifyRequest } from 'fastify';
import type { Logger } from '../../system/logger.ts';
import { asProblem } from '../error-handler.ts';
import { problemDocument } from '../problem-details.ts';

/** `{"error": problem}` and the end of the line. What nobody foresaw is logged with its stack. */
export function problemLine(logger: Logger, request: FastifyRequest, error: unknown): string {
  const problem = asProblem(error, 0);
  request.problemCode = problem.code;
  if (problem.code === 'internal_error') {
    logger.error({ request_id: request.id, err: error }, 'a stream failed');
  }
  const document = problemDocument(problem.code, problem.message, request.id, problem.errors, problem.state);
  return `${JSON.stringify({ error: document })}\n`;
}
