import t from 'tap';
import type { JobState } from '../../src/domain/job.ts';
import { isEnded, isLegalTransition, transitions } from '../../src/domain/state-machine.ts';

const states: readonly JobState[] = [
  'scheduled',
  'ready',
  'running',
  'succeeded',
  'failed',
  'held',
  'cancelled',
  'expired',
];

t.test('a state has ended where nothing but a person moves it', async (t) => {
  t.same(states.filter(isEnded), ['succeeded', 'failed', 'cancelled', 'expired']);
});

t.test(
  'a success is final; nothing starts but from ready; an expired outcome that is unknown can only be held',
  async (t) => {
    for (const to of states) t.equal(isLegalTransition('succeeded', to), false, `succeeded to ${to}`);
    t.same(
      transitions.filter(({ to }) => to === 'running').map(({ from }) => from),
      ['ready'],
    );
    t.equal(isLegalTransition('running', 'expired'), false);
    t.equal(isLegalTransition('running', 'cancelled'), false);
  },
);

t.test('a receipt ends any unfinished job, a person can call off any that does not run', async (t) => {
  const into = (state: JobState) => transitions.filter(({ to }) => to === state).map(({ from }) => from);
  t.same(into('succeeded').sort(), ['held', 'ready', 'running', 'scheduled']);
  t.same(into('cancelled').sort(), ['held', 'ready', 'scheduled']);
});

t.test('only dead letters are redriven', async (t) => {
  const redriven = transitions.filter(({ when }) => when.includes('redrives')).map(({ from }) => from);
  t.same([...new Set(redriven)].sort(), ['failed', 'held']);
});

t.test('every state can be reached from acceptance, and every unfinished one can end', async (t) => {
  const reach = (from: JobState | null): Set<JobState> => {
    const seen = new Set<JobState>();
    const visit = (state: JobState | null) => {
      for (const { to } of transitions.filter((transition) => transition.from === state)) {
        if (!seen.has(to)) {
          seen.add(to);
          visit(to);
        }
      }
    };
    visit(from);
    return seen;
  };
  t.same([...reach(null)].sort(), [...states].sort());
  for (const state of states) t.equal(isEnded(state) || reach(state).has('succeeded'), true, state);
});

t.test('each pair of states stands once in the table', async (t) => {
  const pairs = transitions.map(({ from, to }) => `${from} ${to}`);
  t.equal(new Set(pairs).size, pairs.length);
});
