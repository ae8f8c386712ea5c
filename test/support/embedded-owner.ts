/**
 * A process that owns an embedded PostgreSQL: `node embedded-owner.ts DATA_DIR [URL]`. Writes one JSON line with the
 * connection string once it is up (and `announced` if a URL was given), or with the error; stops on SIGTERM, and throws
 * an uncaught error on SIGUSR2.
 */
import { startEmbedded } from '../../src/postgres/embedded.ts';
import { createLogger } from '../../src/system/logger.ts';

const [dataDir = '', url] = process.argv.slice(2);
const keepAlive = setInterval(() => undefined, 60_000);
process.on('SIGUSR2', () => {
  throw new Error('as told');
});
try {
  const embedded = await startEmbedded({ dataDir, logger: createLogger('silent') });
  if (url !== undefined) await embedded.announce(url);
  process.once('SIGTERM', async () => {
    await embedded.stop();
    clearInterval(keepAlive);
  });
  process.stdout.write(`${JSON.stringify({ connectionString: embedded.connectionString })}\n`);
} catch (error) {
  process.stdout.write(`${JSON.stringify({ error: error instanceof Error ? error.message : String(error) })}\n`);
  process.exit(1);
}
