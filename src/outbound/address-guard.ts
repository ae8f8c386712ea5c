/**
 * Opens the sockets of outbound calls, and refuses those that would lead anywhere but to the public Internet. The check is
 * made on the very addresses that the socket then connects to, so a DNS answer that changes between two look-ups does not
 * help; a host that resolves to public and private addresses together is refused as a whole.
 * Which addresses are public is decided in `domain/ip-address.ts`.
 */
import dns from 'node:dns';
import net from 'node:net';
import { buildConnector } from 'undici';
import { isPublicAddress } from '../domain/ip-address.ts';

/** Like `dns.lookup` with `all: true`. */
export type Lookup = (
  hostname: string,
  options: dns.LookupAllOptions,
  callback: (error: NodeJS.ErrnoException | null, addresses: dns.LookupAddress[]) => void,
) => void;

export interface GuardOptions {
  readonly allowPrivateAddresses: boolean;
  /** Resolver; `dns.lookup` by default. */
  readonly lookup?: Lookup | undefined;
  /** How long a socket to this origin may take to open, TLS included, in milliseconds. */
  readonly connectTimeoutMs: (origin: string) => number;
}

/** No socket was opened: the host is not on the public Internet. */
export class AddressRefusedError extends Error {
  readonly code = 'address_refused';

  constructor(hostname: string, address: string) {
    const which = hostname === address ? address : `${hostname} (${address})`;
    super(`${which} is not a public address, and allow_private_addresses of the upstream is off`);
    this.name = 'AddressRefusedError';
  }
}

/** A connector for undici. */
export function guardedConnector(options: GuardOptions): buildConnector.connector {
  const lookup = options.lookup ?? dns.lookup;
  const guarded: net.LookupFunction = (hostname, lookupOptions, callback) => {
    lookup(hostname, { ...lookupOptions, all: true }, (error, addresses) => {
      if (error !== null) return callback(error, []);
      const refused = options.allowPrivateAddresses
        ? undefined
        : addresses.find(({ address }) => !isPublicAddress(address));
      if (refused !== undefined) return callback(new AddressRefusedError(hostname, refused.address), []);
      // Node asks for one address or for all, as it is set up to try several families or not.
      if (lookupOptions.all === true) return callback(null, addresses);
      const [first] = addresses;
      if (first === undefined) return callback(new Error(`${hostname} has no address`), []);
      callback(null, first.address, first.family);
    });
  };
  // undici fixes the timeout when it builds a connector; there are as many as there are different timeouts.
  const connectors = new Map<number, buildConnector.connector>();
  const connectorFor = (timeout: number) => {
    let connector = connectors.get(timeout);
    if (connector === undefined) {
      connector = buildConnector({ timeout, lookup: guarded });
      connectors.set(timeout, connector);
    }
    return connector;
  };
  return (target, callback) => {
    const { hostname } = target;
    // For an address in the URL itself no resolver is asked.
    if (!options.allowPrivateAddresses && net.isIP(hostname) !== 0 && !isPublicAddress(hostname)) {
      queueMicrotask(() => callback(new AddressRefusedError(hostname, hostname), null));
      return;
    }
    connectorFor(options.connectTimeoutMs(`${target.protocol}//${target.host}`))(target, callback);
  };
}
