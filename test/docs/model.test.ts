/**
 * The model of a job's life and the code cannot drift apart: same states, same moves, same outcomes. What spin makes of the
 * model is shown by `npm run model`; this holds the names, without spin.
 */
import t from 'tap';
import { readModel } from '../../scripts/model/source.ts';
import type { OutcomeClass } from '../../src/domain/outcome.ts';
import { transitions } from '../../src/domain/state-machine.ts';
import { readDocument } from '../support/documents.ts';

const model = readModel();
/** In the model, a job that is about to come into being. */
const before = 'accepted';
/** Moves of the code that the model leaves out; the README of the model says why. */
const leftOut = ['accepted to held', 'ready to failed'];

const pair = (from: string | null, to: string): string => `${from ?? before} to ${to}`;

t.test('the model has the states of the code', async (t) => {
  const states = new Set(transitions.flatMap(({ from, to }) => [from ?? before, to]));
  t.same([...model.states].sort(), [...states].sort());
});

t.test('the model moves jobs along the table of the code, and along all of it', async (t) => {
  const moves = new Set(model.moves.map(({ from, to }) => pair(from, to)));
  const legal = new Set(transitions.map(({ from, to }) => pair(from, to)));
  t.same(
    [...moves].filter((move) => !legal.has(move)),
    [],
    'no move that the code does not have',
  );
  t.same(
    [...legal].filter((move) => !moves.has(move)),
    leftOut,
    'no move of the code is left out but by name',
  );
});

t.test('the model has the outcomes of the code, a timeout being an unknown one', async (t) => {
  const outcomes: Record<OutcomeClass, true> = {
    success: true,
    rejected: true,
    throttled: true,
    error: true,
    timeout: true,
    not_sent: true,
    unknown: true,
  };
  t.same(
    [...model.outcomes, 'timeout'].filter((outcome) => outcome !== 'nothing' && outcome !== 'untouched').sort(),
    Object.keys(outcomes).sort(),
  );
});

t.test('each broken variant breaks a promise of the model, and each promise has one that breaks it', async (t) => {
  t.same([...new Set(model.variants.map(({ rule }) => rule))].sort(), [...model.rules].sort());
  t.equal(new Set(model.variants.map(({ number }) => number)).size, model.variants.length, 'numbers are unique');
  t.notOk(
    model.variants.some(({ number }) => number === 0),
    'zero is the model itself',
  );
  for (const { name } of model.variants) {
    const uses = model.lines.filter((line) => line.includes(`broken(${name})`));
    t.ok(uses.length > 0, `${name} changes something`);
  }
});

t.test('the README of the model tells each promise, and what breaks it', async (t) => {
  const rows = readDocument('docs/model/README.md').split('\n');
  for (const rule of model.rules) {
    const row = rows.find((line) => line.startsWith(`| \`${rule}\` |`)) ?? '';
    const told = [
      ...row
        .split('|')
        .at(-2)!
        .matchAll(/`(\w+)`/g),
    ].map((match) => match[1]!);
    t.same(
      told,
      model.variants.filter((variant) => variant.rule === rule).map(({ name }) => name),
      rule,
    );
  }
});
