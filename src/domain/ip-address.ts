/**
 * Which IP addresses are on the public Internet: what a call may reach unless its upstream allows private addresses.
 * IPv4 is a list of what is refused; IPv6 allows global unicast only and refuses the special blocks inside it. Both follow
 * the IANA special-purpose address registries (RFC 6890, RFC 8190); blocks that are reachable but serve no API (relays,
 * anycast services, tunnels) are refused too, since they lead to places that the address itself does not show.
 * Fails closed: what cannot be read as an address is not public.
 */

/** [network, prefix length] */
type Block = readonly [network: string, bits: number];

const refusedIpv4: readonly Block[] = [
  ['0.0.0.0', 8], // this network; 0.0.0.0 reaches the local host (RFC 791, 3.2; RFC 1122, 3.2.1.3)
  ['10.0.0.0', 8], // private (RFC 1918)
  ['100.64.0.0', 10], // shared by carrier-grade NAT (RFC 6598); a cloud's metadata service is 100.100.100.200
  ['127.0.0.0', 8], // loopback (RFC 1122, 3.2.1.3)
  ['168.63.129.16', 32], // a cloud's platform service, reachable only from inside it, on a public-looking address
  ['169.254.0.0', 16], // link-local (RFC 3927); 169.254.169.254 is the usual metadata service
  ['172.16.0.0', 12], // private (RFC 1918)
  ['192.0.0.0', 24], // IETF protocol assignments (RFC 6890); a cloud's metadata service is 192.0.0.192
  ['192.0.2.0', 24], // documentation (RFC 5737)
  ['192.31.196.0', 24], // AS112 (RFC 7535)
  ['192.52.193.0', 24], // automatic multicast tunnelling (RFC 7450)
  ['192.88.99.0', 24], // 6to4 relay anycast, deprecated (RFC 7526)
  ['192.168.0.0', 16], // private (RFC 1918)
  ['192.175.48.0', 24], // AS112 direct delegation (RFC 7534)
  ['198.18.0.0', 15], // benchmarking (RFC 2544)
  ['198.51.100.0', 24], // documentation (RFC 5737)
  ['203.0.113.0', 24], // documentation (RFC 5737)
  ['224.0.0.0', 4], // multicast (RFC 1112)
  ['240.0.0.0', 4], // reserved (RFC 1112, 4), 255.255.255.255 broadcast (RFC 919) with it
];

/**
 * All global unicast (RFC 4291, 2.4, and what IANA has given out of it). Outside of it, so refused: unspecified ::, loopback
 * ::1, IPv4-compatible ::/96 and IPv4-mapped ::ffff:0:0/96 (RFC 4291, 2.5), discard-only 100::/64 (RFC 6666), segment routing
 * 5f00::/16 (RFC 9602), unique local fc00::/7 (RFC 4193; metadata services are fd00:ec2::254 and fd20:ce::254), link-local
 * fe80::/10, site-local fec0::/10 (RFC 3879), multicast ff00::/8.
 */
const globalUnicast: Block = ['2000::', 3];

const refusedIpv6: readonly Block[] = [
  ['2001::', 23], // IETF protocol assignments (RFC 2928): Teredo (RFC 4380), benchmarking (RFC 5180), ORCHID (RFC 7343), …
  ['2001:db8::', 32], // documentation (RFC 3849)
  ['2002::', 16], // 6to4 (RFC 3056; deprecated, RFC 7526): an IPv4 address in disguise
  ['2620:4f:8000::', 48], // AS112 direct delegation (RFC 7534)
  ['3fff::', 20], // documentation (RFC 9637)
];

/** NAT64's well-known prefix (RFC 6052, 2.1): on a network without IPv4 this is how public IPv4 hosts look. */
const nat64: Block = ['64:ff9b::', 96];

/**
 * Whether a call to this address leaves for the public Internet. Takes textual addresses as resolvers and sockets give
 * them: dotted IPv4 (four decimal parts) or IPv6 (RFC 4291, 2.2; with a zone it is never public).
 */
export function isPublicAddress(ip: string): boolean {
  const ipv4 = parseIpv4(ip);
  if (ipv4 !== null) return isPublicIpv4(ipv4);
  const ipv6 = parseIpv6(ip);
  if (ipv6 === null) return false;
  // Behind a local-use prefix (64:ff9b:1::/48, RFC 8215) anything may be; only the well-known one tells where it leads.
  if (isWithin(ipv6, nat64, 128)) return isPublicIpv4(ipv6 & 0xffff_ffffn);
  return isWithin(ipv6, globalUnicast, 128) && !refusedIpv6.some((block) => isWithin(ipv6, block, 128));
}

function isPublicIpv4(address: bigint): boolean {
  return !refusedIpv4.some((block) => isWithin(address, block, 32));
}

function isWithin(address: bigint, [network, bits]: Block, width: 32 | 128): boolean {
  const first = width === 32 ? parseIpv4(network) : parseIpv6(network);
  const shift = BigInt(width - bits);
  return first !== null && address >> shift === first >> shift;
}

/** Four decimal parts without leading zeros: what else passes for IPv4 (octal, hex, fewer parts) is read in several ways. */
function parseIpv4(text: string): bigint | null {
  const parts = text.split('.');
  if (parts.length !== 4) return null;
  let address = 0n;
  for (const part of parts) {
    if (!/^(?:0|[1-9]\d{0,2})$/.test(part) || Number(part) > 255) return null;
    address = (address << 8n) | BigInt(part);
  }
  return address;
}

function parseIpv6(text: string): bigint | null {
  const halves = text.split('::');
  if (halves.length > 2) return null;
  const [head, tail] = halves.map(groupsOf) as [number[] | null, (number[] | null)?];
  if (head === null || tail === null) return null;
  const missing = 8 - head.length - (tail?.length ?? 0);
  // `::` stands for one group at least; without it all eight are there.
  if (tail === undefined ? missing !== 0 : missing < 1) return null;
  const groups = tail === undefined ? head : [...head, ...Array<number>(missing).fill(0), ...tail];
  return groups.reduce((address, group) => (address << 16n) | BigInt(group), 0n);
}

/** Groups of 16 bits between colons; the last one may be a dotted IPv4 address, which is two. */
function groupsOf(text: string): number[] | null {
  if (text === '') return [];
  const groups: number[] = [];
  const parts = text.split(':');
  for (const [index, part] of parts.entries()) {
    const ipv4 = index === parts.length - 1 ? parseIpv4(part) : null;
    if (ipv4 !== null) groups.push(Number(ipv4 >> 16n), Number(ipv4 & 0xffffn));
    else if (/^[0-9a-f]{1,4}$/i.test(part)) groups.push(Number.parseInt(part, 16));
    else return null;
  }
  return groups;
}
