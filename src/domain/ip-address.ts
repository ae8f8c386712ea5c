/**
 * Which addresses are on the public internet, by the registries of special-purpose addresses (RFC 6890 and its successors).
 * Everything else could be this machine, its network or its cloud's metadata service, and no job may reach that unless its
 * upstream says so. In doubt an address is not public.
 */
import { BlockList, isIP } from 'node:net';

const notPublic4 = listOf('ipv4', [
  '0.0.0.0/8', // this network
  '10.0.0.0/8', // private
  '100.64.0.0/10', // carrier-grade NAT; one cloud's metadata service is in it
  '127.0.0.0/8', // loopback
  '168.63.129.16/32', // the metadata service of one cloud, in public space
  '169.254.0.0/16', // link-local, and the metadata service of most clouds
  '172.16.0.0/12', // private
  '192.0.0.0/24', // protocol assignments
  '192.0.2.0/24', // documentation
  '192.88.99.0/24', // 6to4 relays
  '192.168.0.0/16', // private
  '198.18.0.0/15', // benchmarks
  '198.51.100.0/24', // documentation
  '203.0.113.0/24', // documentation
  '224.0.0.0/4', // multicast
  '240.0.0.0/4', // reserved, broadcast
]);

/** All that has been given out for global unicast; loopback, link-local, private, multicast and mapped are outside. */
const globalUnicast6 = listOf('ipv6', ['2000::/3']);
const notPublic6 = listOf('ipv6', [
  '2001::/23', // protocol assignments, Teredo among them: they carry other addresses inside
  '2001:db8::/32', // documentation
  '2002::/16', // 6to4: carries an IPv4 address
  '3fff::/20', // documentation
]);
/** NAT64 (RFC 6052): stands for the IPv4 address in its last 32 bits. */
const nat64 = listOf('ipv6', ['64:ff9b::/96']);

/** Whether `ip` (IPv4 in dotted form or IPv6, no brackets) is public. False for text that is no address. */
export function isPublicAddress(ip: string): boolean {
  const address = ip.split('%', 1)[0]!;
  switch (isIP(address)) {
    case 4:
      return !notPublic4.check(address, 'ipv4');
    case 6:
      if (nat64.check(address, 'ipv6')) return !notPublic4.check(lastFourBytes(address), 'ipv4');
      return globalUnicast6.check(address, 'ipv6') && !notPublic6.check(address, 'ipv6');
    default:
      return false;
  }
}

/**
 * The host of a URL as an address, if that is what it is written as; URL has already turned spellings such as `0x7f.1` into
 * dotted form. undefined: a name.
 */
export function literalAddress(url: URL): string | undefined {
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1');
  return isIP(host) === 0 ? undefined : host;
}

function listOf(family: 'ipv4' | 'ipv6', subnets: readonly string[]): BlockList {
  const list = new BlockList();
  for (const subnet of subnets) {
    const [net, bits] = subnet.split('/');
    list.addSubnet(net!, Number(bits), family);
  }
  return list;
}

function lastFourBytes(address: string): string {
  // URL writes it in the short form, in hexadecimal only.
  const groups = new URL(`http://[${address}]`).hostname.slice(1, -1).split(':');
  const [high, low] = groups.slice(-2).map((group) => Number.parseInt(group || '0', 16)) as [number, number];
  return [high >> 8, high & 255, low >> 8, low & 255].join('.');
}
