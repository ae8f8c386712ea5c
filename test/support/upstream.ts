/**
 * The simulated upstream for tests: started on a free port, closed at the end of the test. In-process where the test wants to
 * wait on its log; in a process of its own where arrival times are judged.
 */
import { startUpstream, type Upstream, type UpstreamOptions } from '../../src/simulator/upstream.ts';
import { startUpstreamProcess, type UpstreamProcess } from '../../src/simulator/upstream-process.ts';
import type { Scope } from './scope.ts';

export type { Answer, FaultMix, Rule } from '../../src/simulator/answers.ts';
export type { ArrivedRequest, RequestLog } from '../../src/simulator/request-log.ts';
export type { Upstream, UpstreamOptions, UpstreamProcess };

export async function useUpstream(t: Scope, options: UpstreamOptions = {}): Promise<Upstream> {
  const upstream = await startUpstream(options);
  t.teardown(() => upstream.close());
  return upstream;
}

export async function useUpstreamProcess(t: Scope, options: UpstreamOptions = {}): Promise<UpstreamProcess> {
  const upstream = await startUpstreamProcess(options);
  t.teardown(() => upstream.close());
  return upstream;
}
