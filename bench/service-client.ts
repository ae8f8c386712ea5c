/** What the benches ask of a running service, over its public API. */
import { SluiceClient } from '../src/client/index.ts';

/** Declares an upstream on loopback, with its default retries. */
export async function declareUpstream(serviceUrl: string, name: string, baseUrl: string): Promise<void> {
  await new SluiceClient({ baseUrl: serviceUrl }).call('PUT', `/admin/upstreams/${name}`, {
    body: { base_url: baseUrl, allow_private_addresses: true },
  });
}

export async function declareRateLimit(serviceUrl: string, name: string, definition: object): Promise<void> {
  await new SluiceClient({ baseUrl: serviceUrl }).call('PUT', `/admin/rate-limits/${name}`, { body: definition });
}

export async function setPaused(serviceUrl: string, upstream: string, paused: boolean): Promise<void> {
  await new SluiceClient({ baseUrl: serviceUrl }).call(
    'POST',
    `/admin/upstreams/${upstream}/${paused ? 'pause' : 'resume'}`,
  );
}

/** Submits ready-made bodies of POST /v1/batches, one after the other. */
export async function submitAll(serviceUrl: string, bodies: readonly string[]): Promise<void> {
  const api = new SluiceClient({ baseUrl: serviceUrl });
  for (const body of bodies) await api.call('POST', '/v1/batches', { body });
}
