/** How a worker goes on in lanes where it stopped: while looks from the start are cheap, and once dead rows have made them dear. */
import t from 'tap';
import type { Claim } from '../../src/postgres/claim-jobs.ts';
import { LanePlaces } from '../../src/worker/lane-places.ts';

const place = (laneId: number, seq: number) => ({ laneId, rank: 0, seq });
const windows = [{ window: 'quota', at: '(3,1)' }];
const whole = { from: [] };
const nowhere = { from: [], behind: [], turns: [], windows: [] };

function claim(lookMs: number, places: Claim['places'], turns: Claim['turns'] = []): Claim {
  return {
    lookMs,
    jobs: [],
    slots: 1,
    aheadId: null,
    definitionsVersion: 1,
    nextInMs: null,
    busy: false,
    more: true,
    leaseLost: false,
    places,
    windows,
    turns,
    lingers: false,
  };
}

/** One whose look from the start, back at 0, was dear. */
function dearPlaces(...places: Claim['places']): LanePlaces {
  const remembered = new LanePlaces();
  remembered.claimed(whole, claim(10, places, [{ groupId: 7, us: 5_000_000 }]), 0);
  return remembered;
}

t.test('the first claim looks from the start; for 50 ms the next ones go on from there', async (t) => {
  const places = new LanePlaces();
  t.same(places.at(0), nowhere);
  places.claimed(whole, claim(1, [place(1, 10)]), 5);
  t.same(places.at(6), { ...nowhere, from: [place(1, 10)] }, 'windows and turns are found by name where that is cheap');
  places.claimed(places.at(6), claim(1, [place(1, 20), place(2, 7)]), 9);
  t.same(places.at(54).from, [place(1, 20), place(2, 7)]);
  t.equal(places.trustedForMs(50), 5);
  t.same(places.at(55), nowhere, 'a look that goes on does not lengthen it');
  t.equal(places.trustedForMs(60), 0);
  t.equal(places.dueLook(60), null);
});

t.test('a look from the start forgets lanes that it did not take from', async (t) => {
  const places = new LanePlaces();
  places.claimed(whole, claim(1, [place(1, 10), place(2, 10)]), 1);
  places.claimed(whole, claim(1, [place(2, 20)]), 61);
  t.same(places.at(62).from, [place(2, 20)]);
});

t.test('work that came, or went back, is looked for from the start at once', async (t) => {
  const places = new LanePlaces();
  places.claimed(whole, claim(1, [place(1, 10)]), 0);
  places.workCame();
  t.same(places.at(1), nowhere);
});

t.test('where looks are dear no claim looks from the start; some start where the lane was a while ago', async (t) => {
  const places = dearPlaces(place(1, 10));
  t.same(places.at(0).from, [place(1, 10)], 'a step back, to the only place that is known');
  for (let at = 1; at <= 1_200; at += 1) places.claimed(places.at(at), claim(1, [place(1, 10 + at)]), at);
  t.equal(places.trustedForMs(1_200), 100 - (1_200 % 100));
  t.same(places.at(1_250).from, [place(1, 1_210)]);
  places.workCame();
  t.same(places.at(1_260).from, [place(1, 1_210)], 'work that came does not change that');
  const back = places.at(1_300).from[0]!.seq;
  t.ok(back >= 10 && back <= 10 + 1_300 - 500, `at least 500 ms ago: ${back}`);
  t.same(places.at(1_301).from, [place(1, 1_210)], 'only one of them');
  places.claimed({ from: [place(1, back)] }, claim(1, [place(1, back + 5)]), 1_302);
  t.same(places.at(1_303).from, [place(1, back + 5)], 'from what such a claim found it goes on');
});

t.test('there, windows are found where they were, and turns begin where they did', async (t) => {
  const places = dearPlaces(place(1, 10));
  places.at(0);
  t.same(places.at(1).windows, windows);
  t.same(places.at(1).turns, [{ groupId: 7, us: 4_900_000 }]);
  places.claimed(places.at(1), claim(1, [], [{ groupId: 7, us: 9_000_000 }]), 2);
  t.same(places.at(3).turns, [{ groupId: 7, us: 8_900_000 }]);
  t.same(places.at(100).turns, [], 'a step back begins where it did a while ago, be it at the start');
  for (const at of [600, 1_200]) places.claimed(places.at(at), claim(1, []), at);
  t.same(places.at(1_300).turns, [{ groupId: 7, us: 8_900_000 }]);
});

t.test('of more windows than are remembered, those of all partitions together are not the ones that go', async (t) => {
  const places = dearPlaces(place(1, 10));
  const parts = Array.from({ length: 700 }, (_, i) => ({ window: `account\np${i}`, at: '(4,1)' }));
  places.claimed(places.at(0), { ...claim(1, []), windows: [...windows, ...parts] }, 1);
  const kept = places.at(2).windows;
  t.same(kept[0], windows[0]);
  t.same(kept.slice(1), parts.slice(-500));
});

t.test('a look beside the claims finds what is behind, for a twentieth of the time', async (t) => {
  const places = dearPlaces(place(1, 10));
  t.same(places.dueLook(1), [place(1, 10)]);
  t.equal(places.dueLook(2), null, 'one at a time');
  places.looked({ jobs: [place(1, 4)], turns: [{ groupId: 7, us: 3_000_000 }] }, 200, 201);
  t.same(places.at(202).behind, [place(1, 4)]);
  t.same(places.at(203).behind, [], 'offered with each step back, not with each claim');
  t.same(places.at(203).turns, [{ groupId: 7, us: 2_900_000 }]);
  t.same(places.at(302).behind, [place(1, 4)]);
  t.equal(places.dueLook(4_200), null);
  t.same(places.dueLook(4_201), [place(1, 10)]);
  places.looked(null, 10, 4_300);
  t.same(places.at(4_400).behind, [place(1, 4)], 'a look that failed tells nothing');
  t.ok(places.dueLook(4_500));
  places.looked({ jobs: [], turns: [] }, 2, 4_502);
  t.same(places.at(4_503), nowhere, 'when it is cheap again, claims look from the start');
});

t.test('a lane that has given nothing for long is looked at from the start once', async (t) => {
  const places = dearPlaces(place(1, 10), place(2, 10));
  places.claimed(places.at(0), claim(1, [place(2, 20)]), 4_000);
  t.same(places.at(4_999).from.length, 2);
  t.same(
    places.at(5_200).from.map(({ laneId }) => laneId),
    [2],
  );
  t.same(places.at(5_400).from.length, 2, 'afterwards its place is as good as before');
  places.claimed({ from: [place(1, 10)] }, claim(1, [place(1, 30)]), 6_000);
  t.same(
    places.at(9_100).from.map(({ laneId }) => laneId),
    [1],
    'the other one',
  );
  t.same(
    places.at(11_200).from.map(({ laneId }) => laneId),
    [2],
    'and again, once it has given something since',
  );
});

t.test('a claim that failed ends it', async (t) => {
  const places = dearPlaces(place(1, 10));
  places.clear();
  t.same(places.at(1), nowhere);
});
