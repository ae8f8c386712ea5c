/** For how long a worker goes on in a lane where it stopped, before it looks from the start again. */
import t from 'tap';
import type { Claim } from '../../src/postgres/claim-jobs.ts';
import { LanePlaces } from '../../src/worker/lane-places.ts';

const place = (laneId: number, seq: number) => ({ laneId, rank: 0, seq });
const windows = [{ limit: 'quota', at: '(3,1)' }];

function claim(lookMs: number, ...places: Claim['places']): Claim {
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
    lingers: false,
  };
}

t.test('the first claim looks from the start; for 50 ms the next ones go on from there', async (t) => {
  const places = new LanePlaces();
  t.same(places.at(0), []);
  places.claimed([], claim(1, place(1, 10)), 5);
  t.same(places.at(6), [place(1, 10)]);
  places.claimed(places.at(6), claim(1, place(1, 20), place(2, 7)), 9);
  t.same(places.at(54), [place(1, 20), place(2, 7)]);
  t.equal(places.trustedForMs(50), 5);
  t.same(places.at(55), [], 'a look that goes on does not lengthen it');
  t.equal(places.trustedForMs(60), 0);
});

t.test('a look from the start forgets lanes that it did not take from', async (t) => {
  const places = new LanePlaces();
  places.claimed([], claim(1, place(1, 10), place(2, 10)), 1);
  places.claimed([], claim(1, place(2, 20)), 61);
  t.same(places.at(62), [place(2, 20)]);
});

t.test('a dear look comes less often, but within 5 s, and then windows are found where they were', async (t) => {
  const places = new LanePlaces();
  places.claimed([], claim(5, place(1, 10)), 5);
  t.same(places.windowsAt(6), [], 'a look by name is cheap');
  places.claimed([], claim(100, place(1, 10)), 200);
  t.same(places.windowsAt(201), windows);
  t.same(places.at(2199), [place(1, 10)], 'a twentieth of the time goes into such looks');
  t.same(places.at(2200), []);
  t.same(places.windowsAt(2200), []);
  places.claimed([], claim(1_000, place(1, 10)), 10_000);
  t.same(places.at(14_999), [place(1, 10)]);
  t.same(places.at(15_000), []);
});

t.test('work that came ends it where a look is cheap, and where it is dear waits for the next one', async (t) => {
  const places = new LanePlaces();
  places.claimed([], claim(1, place(1, 10)), 0);
  places.workCame();
  t.same(places.at(1), []);
  places.claimed([], claim(50, place(1, 10)), 100);
  places.workCame();
  t.same(places.at(101), [place(1, 10)]);
});

t.test('a job that goes back, and a claim that failed, end it at once', async (t) => {
  const places = new LanePlaces();
  places.claimed([], claim(100, place(1, 10)), 100);
  places.forget();
  t.same(places.at(101), []);
  places.claimed([], claim(100, place(1, 10)), 300);
  places.clear();
  t.same(places.at(301), []);
  t.same(places.windowsAt(301), []);
});
