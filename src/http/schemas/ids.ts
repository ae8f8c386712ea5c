/** Ids as they come in a path. */
import { z } from 'zod';

/**
 * A UUID in the form that is stored and shown, in lower case, however it was written (RFC 9562, section 4); so whatever goes by
 * ids finds it. What is no UUID is left for the use case to not find.
 */
export const idInPath = z.string().toLowerCase();
