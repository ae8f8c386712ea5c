import fc from 'fast-check';
import t from 'tap';
import { isPublicAddress } from '../../src/domain/ip-address.ts';

/** First and last address of each refused block, and the neighbours that are public. */
const blocks: readonly [what: string, refused: readonly string[], publicNeighbours: readonly string[]][] = [
  ['this network and unspecified', ['0.0.0.0', '0.255.255.255'], ['1.0.0.0']],
  ['private 10/8', ['10.0.0.0', '10.255.255.255'], ['9.255.255.255', '11.0.0.0']],
  ['carrier-grade NAT', ['100.64.0.0', '100.127.255.255'], ['100.63.255.255', '100.128.0.0']],
  ['loopback', ['127.0.0.0', '127.0.0.1', '127.255.255.255'], ['126.255.255.255', '128.0.0.0']],
  ['link-local', ['169.254.0.0', '169.254.255.255'], ['169.253.255.255', '169.255.0.0']],
  ['private 172.16/12', ['172.16.0.0', '172.31.255.255'], ['172.15.255.255', '172.32.0.0']],
  ['protocol assignments', ['192.0.0.0', '192.0.0.255'], ['191.255.255.255', '192.0.1.0']],
  ['documentation 1', ['192.0.2.0', '192.0.2.255'], ['192.0.1.255', '192.0.3.0']],
  ['AS112', ['192.31.196.0', '192.31.196.255', '192.175.48.1'], ['192.31.195.255', '192.31.197.0']],
  ['multicast tunnels', ['192.52.193.0'], ['192.52.192.255', '192.52.194.0']],
  ['6to4 relay anycast', ['192.88.99.0', '192.88.99.255'], ['192.88.98.255', '192.88.100.0']],
  ['private 192.168/16', ['192.168.0.0', '192.168.255.255'], ['192.167.255.255', '192.169.0.0']],
  ['benchmarking', ['198.18.0.0', '198.19.255.255'], ['198.17.255.255', '198.20.0.0']],
  ['documentation 2', ['198.51.100.0', '198.51.100.255'], ['198.51.99.255', '198.51.101.0']],
  ['documentation 3', ['203.0.113.0', '203.0.113.255'], ['203.0.112.255', '203.0.114.0']],
  [
    'multicast, reserved, broadcast',
    ['224.0.0.0', '239.255.255.255', '240.0.0.0', '255.255.255.255'],
    ['223.255.255.255'],
  ],
  [
    'metadata services',
    ['169.254.169.254', '100.100.100.200', '192.0.0.192', '168.63.129.16', 'fd00:ec2::254', 'fd20:ce::254'],
    ['168.63.129.15', '168.63.129.17'],
  ],
  ['IPv6 unspecified and loopback', ['::', '::1', '0:0:0:0:0:0:0:1'], []],
  [
    'IPv4-mapped, whatever is mapped',
    ['::ffff:127.0.0.1', '::ffff:7f00:1', '::ffff:8.8.8.8', '0:0:0:0:0:ffff:10.0.0.1'],
    [],
  ],
  ['IPv4-compatible and translated', ['::127.0.0.1', '::8.8.8.8', '::ffff:0:8.8.8.8'], []],
  [
    'NAT64 of refused IPv4',
    ['64:ff9b::127.0.0.1', '64:ff9b::a9fe:a9fe', '64:ff9b::10.0.0.1'],
    ['64:ff9b::8.8.8.8', '64:ff9b::808:808'],
  ],
  ['NAT64 of local use', ['64:ff9b:1::8.8.8.8', '64:ff9b:0:1::8.8.8.8'], []],
  ['discard-only and segment routing', ['100::1', '5f00::1'], []],
  [
    'Teredo, benchmarking, ORCHID',
    ['2001::1', '2001:0:4136:e378::', '2001:2::1', '2001:10::1', '2001:20::1', '2001:1ff:ffff::'],
    ['2001:200::1', '2000:ffff::1'],
  ],
  [
    'IPv6 documentation',
    ['2001:db8::', '2001:db8:ffff:ffff:ffff:ffff:ffff:ffff', '3fff::1', '3fff:fff::1'],
    ['2001:db7::1', '2001:db9::1', '3fff:1000::1'],
  ],
  ['6to4, whatever is inside', ['2002::', '2002:7f00:1::', '2002:808:808::1', '2002:ffff::'], ['2003::1']],
  ['AS112 IPv6', ['2620:4f:8000::1'], ['2620:4f:8001::1']],
  ['unique local', ['fc00::', 'fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'], []],
  ['link-local and site-local', ['fe80::1', 'febf::1', 'fec0::1', 'fe80::1%eth0'], []],
  ['IPv6 multicast', ['ff00::', 'ff02::1', 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'], []],
  [
    'never assigned',
    ['4000::1', '8000::1', '1fff:ffff::1', 'e000::1'],
    ['2606:4700:4700::1111', '2a00:1450:4001:82a::200e'],
  ],
];

for (const [what, refused, neighbours] of blocks) {
  t.test(`${what} is refused, its neighbours are not`, async (t) => {
    for (const ip of refused) t.equal(isPublicAddress(ip), false, ip);
    for (const ip of neighbours) t.equal(isPublicAddress(ip), true, ip);
  });
}

t.test('well-known public hosts are public', async (t) => {
  for (const ip of [
    '8.8.8.8',
    '1.1.1.1',
    '93.184.216.34',
    '2001:4860:4860::8888',
    '2606:2800:220:1:248:1893:25c8:1946',
  ]) {
    t.equal(isPublicAddress(ip), true, ip);
  }
});

t.test('what is no address, or can be read in two ways, is not public', async (t) => {
  const texts = [
    '',
    'localhost',
    '8.8.8',
    '8.8.8.8.8',
    '08.8.8.8',
    '0x8.8.8.8',
    '8.8.8.256',
    '134744072',
    ' 8.8.8.8',
    '8.8.8.8\n',
  ];
  const ipv6 = [
    ':',
    ':::',
    '1::2::3',
    '2606:4700',
    '2606:4700:4700:0:0:0:0:0:1111',
    '2606::47001',
    'g::1',
    '[2606::1]',
    '1:2:3:4:5:6:7::8:9',
    '2606::8.8.8',
    '2606::8.8.8.8:1',
    '2606:4700:4700::1111%eth0',
    '1:2:3:4::5:6:7:8',
  ];
  for (const text of [...texts, ...ipv6]) t.equal(isPublicAddress(text), false, JSON.stringify(text));
});

t.test('property: an IPv6 address is judged the same however it is written', async () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 0, max: 0xffff }), { minLength: 8, maxLength: 8 }),
      fc.nat(7),
      fc.nat(8),
      (groups, from, length) => {
        const to = Math.min(8, from + Math.max(1, length));
        const zeroed = groups.map((group, i) => (i >= from && i < to ? 0 : group));
        const hex = zeroed.map((group) => group.toString(16));
        const forms = [
          hex.join(':'),
          hex.map((group) => group.padStart(4, '0').toUpperCase()).join(':'),
          `${hex.slice(0, from).join(':')}::${hex.slice(to).join(':')}`,
        ];
        const [low, high] = [zeroed[7] as number, zeroed[6] as number];
        forms.push(`${hex.slice(0, 6).join(':')}:${high >> 8}.${high & 255}.${low >> 8}.${low & 255}`);
        return new Set(forms.map(isPublicAddress)).size === 1;
      },
    ),
    { examples: [[[0x2606, 0x4700, 0, 0, 0, 0, 0, 0x1111], 2, 5]] },
  );
});

t.test('property: any text gets an answer, and IPv4 agrees with its NAT64 form', async () => {
  fc.assert(fc.property(fc.string(), (text) => typeof isPublicAddress(text) === 'boolean'));
  fc.assert(fc.property(fc.ipV4(), (ip) => isPublicAddress(ip) === isPublicAddress(`64:ff9b::${ip}`)));
  fc.assert(fc.property(fc.ipV4(), (ip) => !isPublicAddress(`::ffff:${ip}`)));
});
