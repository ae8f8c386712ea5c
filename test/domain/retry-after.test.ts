import fc from 'fast-check';
import t from 'tap';
import { parseHttpDate, parseRetryAfter, type RetryAfter } from '../../src/domain/retry-after.ts';

const now = Date.parse('2026-01-01T00:00:00Z');
const dayMs = 86_400_000;

function parse(value: string | string[] | undefined, responseDate?: string | string[]): RetryAfter {
  return parseRetryAfter(value, { responseDate, nowMs: now, capMs: dayMs });
}

const delay = (ms: number, raw: string, capped = false): RetryAfter => ({ kind: 'delay', ms, capped, raw });

t.test('no header is absent, an empty list of headers too', async (t) => {
  t.same(parse(undefined), { kind: 'absent' });
  t.same(parse([]), { kind: 'absent' });
});

t.test('delay-seconds are seconds, not milliseconds (Azure/azure-sdk-for-net#5268)', async (t) => {
  t.same(parse('2'), delay(2000, '2'));
  t.same(parse('120'), delay(120_000, '120'));
  t.same(parse('007'), delay(7000, '007'));
});

t.test(
  'a body that repeats the delay as float seconds changes nothing; its header counts (Javacord/Javacord#783)',
  async (t) => {
    t.same(parse('65'), delay(65_000, '65'));
  },
);

t.test('0 is a header that was honoured, garbage is one that was not (nodejs/undici#5519)', async (t) => {
  t.same(parse('0'), delay(0, '0'));
  t.same(parse('soon'), { kind: 'invalid', raw: 'soon' });
});

t.test(
  'what is not of the grammar is invalid as a whole, whatever number it begins with (open-telemetry/opentelemetry-js#7010)',
  async (t) => {
    const invalid = [
      '2abc',
      '30s',
      '1000abc',
      '120, 60',
      '-3',
      '+3',
      '1e3',
      '0x10',
      '1.',
      '.5',
      '1.5.2',
      '1_000',
      '∞',
      'NaN',
    ];
    for (const raw of [...invalid, 'Infinity', '', ' ', '１２', '1 2', 'null', '2\u00a0', '\u20282']) {
      t.same(parse(raw), { kind: 'invalid', raw }, encodeURIComponent(raw));
    }
  },
);

t.test('an unparsable date is invalid and never NaN (earendil-works/pi#9571)', async (t) => {
  for (const raw of ['garbage', 'Thu, 99 Foo 2026 00:00:00 GMT', '2026-01-01T00:02:00Z', 'tomorrow']) {
    t.same(parse(raw), { kind: 'invalid', raw });
  }
});

t.test('white space around the value is not part of it (RFC 9110, 5.5)', async (t) => {
  t.same(parse(' \t2 '), delay(2000, ' \t2 '));
});

t.test('a plain decimal is rounded up to the next millisecond', async (t) => {
  t.same(parse('2.0'), delay(2000, '2.0'));
  t.same(parse('1.5'), delay(1500, '1.5'));
  t.same(parse('0.001'), delay(1, '0.001'));
  t.same(parse('0.0001'), delay(1, '0.0001'));
  t.same(parse('1.0010000'), delay(1001, '1.0010000'));
  t.same(parse('1.0010001'), delay(1002, '1.0010001'));
  t.same(parse('0.0'), delay(0, '0.0'));
});

t.test('an HTTP-date is not taken for a number (nodejs/undici#4084)', async (t) => {
  t.same(parse('Thu, 01 Jan 2026 00:02:00 GMT'), delay(120_000, 'Thu, 01 Jan 2026 00:02:00 GMT'));
});

t.test('all three forms of HTTP-date name the same moment (RFC 9110, 5.6.7)', async (t) => {
  for (const raw of ['Thu, 01 Jan 2026 00:02:00 GMT', 'Thursday, 01-Jan-26 00:02:00 GMT', 'Thu Jan  1 00:02:00 2026']) {
    t.same(parse(raw), delay(120_000, raw), raw);
  }
});

t.test('a date in the past is 0 and still counts as honoured', async (t) => {
  t.same(parse('Wed, 31 Dec 2025 23:59:55 GMT'), delay(0, 'Wed, 31 Dec 2025 23:59:55 GMT'));
});

t.test(
  'a date is read against the Date of its own answer, whichever way our clock is off (discord/discord-api-docs#5621)',
  async (t) => {
    const raw = 'Wed, 31 Dec 2025 23:59:00 GMT';
    t.same(parse(raw, 'Wed, 31 Dec 2025 23:58:00 GMT'), delay(60_000, raw), 'our clock is 120 s ahead');
    t.same(parse(raw), delay(0, raw), 'the control: without Date our clock counts');
    const later = 'Thu, 01 Jan 2026 00:10:00 GMT';
    t.same(parse(later, 'Thu, 01 Jan 2026 00:09:00 GMT'), delay(60_000, later), 'our clock is 9 minutes behind');
    t.same(parse(later, ['Thu, 01 Jan 2026 00:09:00 GMT', 'Thu, 01 Jan 2026 00:00:00 GMT']), delay(60_000, later));
  },
);

t.test('a Date that is none leaves our clock', async (t) => {
  const raw = 'Thu, 01 Jan 2026 00:02:00 GMT';
  t.same(parse(raw, 'yesterday'), delay(120_000, raw));
  t.same(parse('30', 'Thu, 01 Jan 2026 00:09:00 GMT'), delay(30_000, '30'), 'seconds need no Date');
});

t.test('several headers: the largest valid one (aaronpowell/httpstatus#153)', async (t) => {
  t.same(parse(['1', '30']), delay(30_000, '1, 30'));
  t.same(parse(['30', '1']), delay(30_000, '30, 1'));
  t.same(parse(['soon', '2']), delay(2000, 'soon, 2'));
  t.same(parse(['0', 'soon']), delay(0, '0, soon'));
  t.same(parse(['soon', 'later']), { kind: 'invalid', raw: 'soon, later' });
  t.same(parse(['5', 'Thu, 01 Jan 2026 00:02:00 GMT']).kind === 'delay', true);
});

t.test('a number that looks like a time since 1970 is capped, not guessed at (openclaw/clawhub#407)', async (t) => {
  t.same(parse('1771404540'), delay(dayMs, '1771404540', true));
  t.same(parse('999999999'), delay(dayMs, '999999999', true));
  t.same(parse('9999999999'), delay(dayMs, '9999999999', true));
  t.same(parse('9'.repeat(400)), delay(dayMs, '9'.repeat(400), true), 'beyond a double');
  t.same(parse('Fri, 01 Jan 2100 00:00:00 GMT'), delay(dayMs, 'Fri, 01 Jan 2100 00:00:00 GMT', true));
});

t.test('the cap itself is believed', async (t) => {
  t.same(parse('86400'), delay(dayMs, '86400'));
  t.same(parse('86400.001'), delay(dayMs, '86400.001', true));
});

t.test('invented dates and hours are none', async (t) => {
  for (const raw of [
    'Mon, 30 Feb 2026 00:00:00 GMT',
    'Sun, 29 Feb 2026 00:00:00 GMT',
    'Thu, 00 Jan 2026 00:00:00 GMT',
    'Thu, 32 Jan 2026 00:00:00 GMT',
    'Thu, 01 Jan 2026 24:00:00 GMT',
    'Thu, 01 Jan 2026 00:60:00 GMT',
    'Thu, 01 Jan 2026 00:00:61 GMT',
    'Thu, 01 Jan 2026 00:02:00 UTC',
    'Thu, 01 Jan 2026 00:02:00 +0100',
    'Thu, 1 Jan 2026 00:02:00 GMT',
    'thu, 01 jan 2026 00:02:00 gmt',
    'Xyz, 01 Jan 2026 00:02:00 GMT',
    'Thu, 01-Jan-26 00:02:00 GMT',
    'Thu Jan 01 00:02:00 2026 GMT',
  ]) {
    t.same(parse(raw), { kind: 'invalid', raw }, raw);
  }
  t.same(parseHttpDate('Thu, 29 Feb 2024 00:00:00 GMT', now), Date.UTC(2024, 1, 29), 'a leap day is real');
  t.same(
    parseHttpDate('Tue, 30 Jun 2026 23:59:60 GMT', now),
    Date.UTC(2026, 6, 1),
    'a leap second is the second after',
  );
});

t.test('a two-digit year is at most 50 years ahead (RFC 9110, 5.6.7)', async (t) => {
  const year = (text: string, at: number) => new Date(parseHttpDate(text, at) as number).getUTCFullYear();
  t.equal(year('Sunday, 06-Nov-94 08:49:37 GMT', now), 1994);
  t.equal(year('Sunday, 06-Nov-76 08:49:37 GMT', now), 2076);
  t.equal(year('Sunday, 06-Nov-77 08:49:37 GMT', now), 1977);
  t.equal(year('Sunday, 06-Nov-05 08:49:37 GMT', Date.UTC(2090, 0, 1)), 2105);
});

t.test('a year before 100 is that year and not 1900 later', async (t) => {
  t.equal(parseHttpDate('Thu, 01 Jan 0099 00:00:00 GMT', now), Date.parse('0099-01-01T00:00:00Z'));
});

const httpDate = fc.date({ min: new Date('1980-01-01'), max: new Date('2070-01-01'), noInvalidDate: true });

t.test('property: every second of every day is read back from all three forms', async () => {
  fc.assert(
    fc.property(httpDate, (date) => {
      const seconds = Math.floor(date.getTime() / 1000) * 1000;
      const [day, dd, month, yyyy, time] = date.toUTCString().replace(',', '').split(' ') as [
        string,
        string,
        string,
        string,
        string,
      ];
      const long = {
        Mon: 'Monday',
        Tue: 'Tuesday',
        Wed: 'Wednesday',
        Thu: 'Thursday',
        Fri: 'Friday',
        Sat: 'Saturday',
        Sun: 'Sunday',
      }[day];
      const forms = [
        date.toUTCString(),
        `${long}, ${dd}-${month}-${yyyy.slice(2)} ${time} GMT`,
        `${day} ${month} ${String(Number(dd)).padStart(2)} ${time} ${yyyy}`,
      ];
      return forms.every((form) => parseHttpDate(form, now) === seconds);
    }),
  );
});

t.test('property: any text gives absent, invalid, or a whole number of milliseconds within the cap', async () => {
  const text = fc.oneof(
    fc.string(),
    fc.string({ unit: 'binary' }),
    fc.double().map(String),
    fc.integer().map(String),
    httpDate.map((d) => d.toUTCString()),
  );
  fc.assert(
    fc.property(
      fc.array(text),
      fc.option(text, { nil: undefined }),
      fc.integer({ min: 1, max: 1e10 }),
      (values, responseDate, capMs) => {
        const parsed = parseRetryAfter(values, { responseDate, nowMs: now, capMs });
        return parsed.kind !== 'delay' || (Number.isInteger(parsed.ms) && parsed.ms >= 0 && parsed.ms <= capMs);
      },
    ),
  );
});

t.test('property: a decimal is never rounded down', async () => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 80_000 }), fc.integer({ min: 0, max: 999_999 }), (whole, micros) => {
      const raw = `${whole}.${String(micros).padStart(6, '0')}`;
      const parsed = parse(raw);
      const exact = whole * 1000 + micros / 1000;
      return parsed.kind === 'delay' && parsed.ms >= exact && parsed.ms < exact + 1;
    }),
  );
});
