/** Fault points for what runs in the test's own process; a kill would end the test. */
import { systemClock } from '../../src/system/clock.ts';
import { armFaultPoints, type FaultPoint, type FaultPoints, parseFaultPlan } from '../../src/system/fault-points.ts';
import { createLogger } from '../../src/system/logger.ts';

export interface CountedFaultPoints extends FaultPoints {
  /** How often each point was passed. */
  passed(point: FaultPoint): number;
}

/** As SLUICE_FAULT_POINTS would arm them. */
export function faultPointsOf(text: string): CountedFaultPoints {
  const plan = parseFaultPlan(text);
  if (typeof plan === 'string') throw new Error(plan);
  const armed = armFaultPoints(plan, { clock: systemClock, logger: createLogger('silent') });
  const passed = new Map<FaultPoint, number>();
  return {
    pass(point) {
      passed.set(point, (passed.get(point) ?? 0) + 1);
      return armed.pass(point);
    },
    passed: (point) => passed.get(point) ?? 0,
  };
}
