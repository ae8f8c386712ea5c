/** What operators do: definitions, rate windows, dead letters, workers, keys. */
import type {
  ApiKey,
  ApiKeyRequestInput,
  CoolDownRateWindowPayload,
  JobSummary,
  ListDeadLettersParams,
  NewApiKey,
  Queue,
  QueueDefinitionInput,
  RateLimit,
  RateLimitDefinitionInput,
  RateWindow,
  RateWindowAudit,
  RedriveInput,
  Redriven,
  Stats,
  Upstream,
  UpstreamDefinitionInput,
  Worker,
} from './api-types.ts';
import { itemsOf } from './pages.ts';
import type { ApiRequest, CallOptions, Transport } from './transport.ts';

/** One window of a limit by partition; left out: the limit's own. */
export interface WindowOptions extends CallOptions {
  readonly partitionKey?: string | undefined;
}

export class AdminClient {
  readonly upstreams: Definitions<Upstream, UpstreamDefinitionInput> & Pausable<Upstream>;
  readonly rateLimits: Definitions<RateLimit, RateLimitDefinitionInput>;
  readonly queues: Definitions<Queue, QueueDefinitionInput> & Pausable<Queue>;
  readonly apiKeys: ApiKeys;
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
    this.upstreams = pausable<Upstream, UpstreamDefinitionInput>(transport, '/admin/upstreams');
    this.rateLimits = definitions<RateLimit, RateLimitDefinitionInput>(transport, '/admin/rate-limits');
    this.queues = pausable<Queue, QueueDefinitionInput>(transport, '/admin/queues');
    this.apiKeys = apiKeys(transport);
  }

  /** Live state of every rate limit, and of every partition of those that have them. */
  rateWindows(options: CallOptions = {}): AsyncGenerator<RateWindow> {
    return itemsOf(this.#transport, '/admin/rate-windows', {}, options);
  }

  /** Live state of one window; a limit by partition needs the partition. */
  rateWindow(limit: string, { partitionKey, signal }: WindowOptions = {}): Promise<RateWindow> {
    return this.#call('GET', windowPath(limit), { query: { partition_key: partitionKey }, signal });
  }

  /** The most starts in any period, from the send times on record. `since`: RFC 3339; default: an hour ago. */
  auditRateWindow(
    limit: string,
    { since, partitionKey, signal }: WindowOptions & { readonly since?: string } = {},
  ): Promise<RateWindowAudit> {
    return this.#call('GET', `${windowPath(limit)}/audit`, { query: { since, partition_key: partitionKey }, signal });
  }

  pauseRateWindow(limit: string, options: WindowOptions = {}): Promise<RateWindow> {
    return this.#steer(limit, 'pause', options);
  }

  resumeRateWindow(limit: string, options: WindowOptions = {}): Promise<RateWindow> {
    return this.#steer(limit, 'resume', options);
  }

  /** Forgets the count. */
  resetRateWindow(limit: string, options: WindowOptions = {}): Promise<RateWindow> {
    return this.#steer(limit, 'reset', options);
  }

  coolDownRateWindow(limit: string, body: CoolDownRateWindowPayload, options: CallOptions = {}): Promise<RateWindow> {
    return this.#call('POST', `${windowPath(limit)}/cooldown`, { ...options, body });
  }

  /** Failed and held jobs, newest first. */
  deadLetters(
    filter: Omit<ListDeadLettersParams, 'cursor' | 'limit'> = {},
    options: CallOptions = {},
  ): AsyncGenerator<JobSummary> {
    return itemsOf(this.#transport, '/admin/dead-letter', filter, options);
  }

  redriveDeadLetters(what: RedriveInput, options: CallOptions = {}): Promise<Redriven> {
    return this.#call('POST', '/admin/dead-letter/redrive', { ...options, body: what });
  }

  workers(options: CallOptions = {}): AsyncGenerator<Worker> {
    return itemsOf(this.#transport, '/admin/workers', {}, options);
  }

  stats(options: CallOptions = {}): Promise<Stats> {
    return this.#call('GET', '/admin/stats', options);
  }

  #steer(limit: string, lever: string, { partitionKey, signal }: WindowOptions): Promise<RateWindow> {
    const body = partitionKey === undefined ? {} : { partition_key: partitionKey };
    return this.#call('POST', `${windowPath(limit)}/${lever}`, { body, signal });
  }

  #call<T>(method: string, path: string, request: ApiRequest): Promise<T> {
    return this.#transport.call<T>(method, path, request);
  }
}

/** One kind of definition, each under its name. */
export interface Definitions<Stored, Definition> {
  list(options?: CallOptions): AsyncGenerator<Stored>;
  get(name: string, options?: CallOptions): Promise<Stored>;
  /** Creates or replaces it; in force in every replica when this resolves. */
  put(name: string, definition: Definition, options?: CallOptions): Promise<Stored>;
  delete(name: string, options?: CallOptions): Promise<void>;
}

export interface Pausable<Stored> {
  pause(name: string, options?: CallOptions): Promise<Stored>;
  resume(name: string, options?: CallOptions): Promise<Stored>;
}

/** Keys, each under its id; what a key is sent as is in the answer that made it, and never again. */
export interface ApiKeys {
  list(options?: CallOptions): AsyncGenerator<ApiKey>;
  get(id: string, options?: CallOptions): Promise<ApiKey>;
  create(key: ApiKeyRequestInput, options?: CallOptions): Promise<NewApiKey>;
  /** Ends it, in all replicas at once. */
  delete(id: string, options?: CallOptions): Promise<void>;
}

function apiKeys(transport: Transport): ApiKeys {
  const path = '/admin/api-keys';
  const at = (id: string) => `${path}/${encodeURIComponent(id)}`;
  return {
    list: (options = {}) => itemsOf<ApiKey>(transport, path, {}, options),
    get: (id, options = {}) => transport.call<ApiKey>('GET', at(id), options),
    create: (key, options = {}) => transport.call<NewApiKey>('POST', path, { ...options, body: key }),
    delete: async (id, options = {}) => {
      await transport.call('DELETE', at(id), options);
    },
  };
}

function definitions<Stored, Definition>(transport: Transport, path: string): Definitions<Stored, Definition> {
  const at = (name: string) => `${path}/${encodeURIComponent(name)}`;
  return {
    list: (options = {}) => itemsOf<Stored>(transport, path, {}, options),
    get: (name, options = {}) => transport.call<Stored>('GET', at(name), options),
    put: (name, definition, options = {}) => transport.call<Stored>('PUT', at(name), { ...options, body: definition }),
    delete: async (name, options = {}) => {
      await transport.call('DELETE', at(name), options);
    },
  };
}

function pausable<Stored, Definition>(
  transport: Transport,
  path: string,
): Definitions<Stored, Definition> & Pausable<Stored> {
  const lever = (name: string, action: string, options: CallOptions) =>
    transport.call<Stored>('POST', `${path}/${encodeURIComponent(name)}/${action}`, { ...options, repeatable: true });
  return {
    ...definitions<Stored, Definition>(transport, path),
    pause: (name, options = {}) => lever(name, 'pause', options),
    resume: (name, options = {}) => lever(name, 'resume', options),
  };
}

function windowPath(limit: string): string {
  return `/admin/rate-windows/${encodeURIComponent(limit)}`;
}
