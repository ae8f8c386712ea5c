import t from 'tap';
import { didYouMean, nearName } from '../../src/domain/near-name.ts';

t.test('a slip finds the name that was meant', async (t) => {
  const known = ['stripe', 'mail', 'sms', 'timeout_ms', 'connect_timeout_ms', 'max_attempts'];
  const slips: [string, string | undefined][] = [
    ['strpie', 'stripe'],
    ['stripes', 'stripe'],
    ['Stripe', 'stripe'],
    ['mial', 'mail'],
    ['sm', 'sms'],
    ['timeout', 'timeout_ms'],
    ['timeoutMs', 'timeout_ms'],
    ['maxAttempts', 'max_attempts'],
    ['x', undefined],
    ['', undefined],
    ['twilio', undefined],
    ['x'.repeat(1_000_000), undefined],
  ];
  for (const [name, meant] of slips) t.equal(nearName(name, known), meant, name.slice(0, 20));
});

t.test('the nearest wins, and a name is never near itself', async (t) => {
  t.equal(nearName('abcdef', ['abxxef', 'abxdef']), 'abxdef');
  t.equal(nearName('mail', ['mail', 'mails']), 'mails');
});

t.test('without a near name nothing is said', async (t) => {
  t.equal(didYouMean('twilio', ['stripe']), '');
  t.equal(didYouMean('strpie', ['stripe']), ' (did you mean "stripe"?)');
});
