/*
 * A job's life under faults, to be read beside src/domain/state-machine.ts: two jobs of one batch, two workers, and anything
 * that can go wrong between them. `npm run model` has spin look at every order in which these steps can happen.
 * One atomic block is one transaction of the store, or one thing that a process does; a fault can come between any two.
 * Time is not counted: what takes time may happen at any moment, in the orders that the clocks of the real code keep.
 * A line with `rule:` is a promise; README.md has them all, what is left out, and how to read a counterexample.
 */

/* ------------------------------------------------------------------------------------------------ what a run looks at */
#ifndef WINDOWED
#define WINDOWED 1 /* a rate window of one start per period covers both jobs */
#endif
#ifndef DEDUPS
#define DEDUPS 1   /* the upstream knows a key again */
#endif
#ifndef HOLD
#define HOLD 0     /* on_unknown: hold */
#endif
#ifndef FAULTS
#define FAULTS 2   /* at most 2: crashes, cut connections, lapses of a lease, permits that run out, in one run */
#endif
#ifndef TROUBLE
#define TROUBLE 1  /* calls in one run that do not get a success for an answer; 255: any number */
#endif
#ifndef ACTS
#define ACTS 0     /* what people, receivers and expires_at do in one run */
#endif

#define MAX_ATTEMPTS 2
#define MAX_THROTTLES 1
/* More claims of one job than its budgets, the faults and the acts can explain. */
#define TOO_MANY ((MAX_ATTEMPTS + MAX_THROTTLES + 1) * (1 + ACTS) + FAULTS + ACTS)

/* -------------------------------------------- broken variants: a rule of the code each, and the promise that falls with it */
#ifndef BROKEN
#define BROKEN 0
#endif
#define broken(variant) (BROKEN == variant)

#define claim_pops 1           /* no-lost-job: a claim takes a job out of the queue and does not write who has it */
#define no_reaper 2            /* no-lost-job: nobody looks for jobs whose worker's lease is over */
#define reconcile_once 3       /* no-lost-job: a worker looks for what a cut claim leased once, before its next claim */
#define cooldown_for_ever 4    /* every-batch-ends: nothing opens an upstream after its cooldown */
#define throttles_free 5       /* every-batch-ends: a throttle spends nothing, of no budget */
#define unknown_free 6         /* every-batch-ends: a call without an answer spends no attempt */
#define reconcile_in_claim 7   /* bounded: jobs are compared while a claim is under way */
#define settle_by_id 8         /* no-late-write: an outcome is written to its job, whatever has become of it */
#define settle_by_state 9      /* no-late-write: an outcome is written to its job if that is running */
#define settle_by_worker 10    /* no-late-write: an outcome is written if its worker has the job, at whatever epoch */
#define permit_never_expires 11 /* no-start-without-permit: a permit is good however late */
#define window_unlocked 12     /* no-start-without-permit: a window is read without a lock, and charged afterwards */
#define charged_later 13       /* no-start-without-permit: a window is charged when the worker sends */
#define gives_back_used 14     /* no-start-without-permit: a throttled call gives its permit back */
#define gives_back_twice 15    /* no-start-without-permit: a permit is given back to a window that has let go of it */
#define lease_not_checked 16   /* no-start-without-lease: a worker that lost its lease still sends */
#define break_not_seen 17      /* no-start-without-lease: a lease that holds again covers claims from before the break */
#define reaped_alive 18        /* no-start-without-lease: jobs are taken back from a worker whose lease holds */
#define cooldown_unlocked 19   /* no-start-in-cooldown: a cooldown is written without waiting for claims in progress */
#define key_per_attempt 20     /* one-effect: every attempt has a key of its own */
#define unknown_is_not_sent 21 /* one-effect: a call without an answer counts as one that never left */
#define unwritten_not_known 22 /* one-effect: what ended and is not written yet is given back as untouched */
#define outcome_dropped 23     /* one-effect: an outcome that cannot be written is forgotten */
#define unknown_forgotten 24   /* true-answer: an error for an answer makes an earlier unknown outcome known */
#define success_by_reaper 25   /* true-answer: a call that a dead worker left behind counts as done */

#define NONE 255
#define IDS 4 /* a worker that starts again is another worker: 2, and as many as can crash */

mtype:states = { accepted, scheduled, ready, running, succeeded, failed, held, cancelled, expired };
mtype:outcomes = { nothing, success, rejected, throttled, error, not_sent, unknown, untouched };
mtype:phases = { idle, asking, leased, sent, unanswered };

/* ------------------------------------------------------------------------------------------------------- the store */
mtype:states state[2] = accepted;
byte epoch[2], owner[2] = NONE, attempts[2], throttles[2];
bool outcome_unknown[2];
bool counted[2];         /* the row's permit is still in its window */
bool live[IDS];          /* a worker's lease, by the database's clock */
bool used_up;            /* the window has let its one start go out */
bool window_locked;
bool cooling;            /* the upstream's cooldown */
byte reading;            /* claims that have read it and not committed: a shared lock */
byte stray = NONE;       /* a worker's claim that the database goes on with, and nobody hears the answer */

/* --------------------------------------------------------------------------------------- the world around the store */
bool sure[IDS];          /* a worker's lease, by its own clock: over no later than in the database */
bool permit[IDS];        /* a worker's: what it has claimed may still be sent */
bool wire[2];            /* a request that nobody waits for any more, and that the upstream has not seen */
bool stored[2];          /* the upstream knows the key */
byte effects[2];
byte starts;             /* in the last period */
byte faults = FAULTS, trouble = TROUBLE, acts = ACTS, ids = 2;

#define mine(j, e, id) (state[j] == running && epoch[j] == e && owner[j] == id)
#define waiting(j) (state[j] == scheduled || state[j] == ready || state[j] == held)
#define over(j) (state[j] != accepted && state[j] != scheduled && state[j] != ready && state[j] != running)
#define ended(j) (over(j) && state[j] != held)
#define all_over (over(0) && over(1))

/* The only way from state to state: test/docs/model.test.ts holds every use of it against the table of the code. */
inline move(j, from, to) { assert(state[j] == from); state[j] = to }

/* ------------------------------------------------------------------------------------ src/postgres/claim-jobs.ts */
/* The code also asks when it is not sure of its lease: what it then gets goes back, as may_send has it. Left out. */
#define may_claim(id) (live[id] && sure[id] && !cooling && (!WINDOWED || (!used_up && (!window_locked || broken(window_unlocked)))) \
  && (state[0] == ready || state[1] == ready))

inline open_claim() { reading++; window_locked = WINDOWED }

inline close_claim() { reading--; window_locked = false }

/* Takes a job that is ready, counts its start, writes the lease: one commit. */
inline commit_claim(id, j) {
  if
  :: state[0] == ready -> j = 0
  :: state[0] != ready && state[1] == ready -> j = 1
  :: state[0] != ready && state[1] != ready -> j = NONE
  fi;
  if
  :: j == NONE -> skip
  :: else ->
    assert(!cooling); /* rule: no-start-in-cooldown */
    move(j, ready, running);
    epoch[j]++;
    assert(epoch[j] < TOO_MANY); /* rule: bounded */
    owner[j] = id;
    if
    :: WINDOWED && !broken(charged_later) -> used_up = true; counted[j] = true
    :: else
    fi
  fi;
  close_claim()
}

/* --------------------------------------------------------------- src/domain/settle.ts, src/postgres/settle-jobs.ts */
inline retry_or_end(j, to) {
  attempts[j]++;
  if
  :: attempts[j] >= MAX_ATTEMPTS -> move(j, running, failed)
  :: else -> move(j, running, to)
  fi
}

inline give_back(j) {
  if
  :: counted[j] || broken(gives_back_twice) -> used_up = false
  :: else
  fi
}

inline settle(j, what, next) {
  if
  :: what == success ->
    outcome_unknown[j] = false;
    assert(effects[j] > 0); /* rule: true-answer */
    move(j, running, succeeded)
  :: what == rejected -> move(j, running, failed)
  :: what == throttled ->
    cooling = true;
    throttles[j] = throttles[j] + !broken(throttles_free);
    if
    :: broken(gives_back_used) -> give_back(j)
    :: else
    fi;
    if
    :: throttles[j] > MAX_THROTTLES -> move(j, running, failed)
    :: else -> move(j, running, ready)
    fi
  :: what == error ->
    outcome_unknown[j] = outcome_unknown[j] && !broken(unknown_forgotten);
    retry_or_end(j, scheduled)
  :: what == not_sent || (what == unknown && broken(unknown_is_not_sent)) -> retry_or_end(j, scheduled)
  :: what == unknown && !broken(unknown_is_not_sent) ->
    outcome_unknown[j] = true;
    if
    :: HOLD -> move(j, running, held)
    :: else ->
      attempts[j] = attempts[j] - broken(unknown_free);
      retry_or_end(j, next)
    fi
  :: what == untouched -> give_back(j); move(j, running, ready)
  fi;
  owner[j] = NONE;
  counted[j] = false
}

/* Every write out of `running` matches job, worker and epoch; what does not is stale, and dropped. */
#define fenced(j, e, id) (mine(j, e, id) || broken(settle_by_id) || (state[j] == running && \
  (broken(settle_by_state) || (broken(settle_by_worker) && owner[j] == id))))

inline write(j, e, id, what, next) {
  if
  :: fenced(j, e, id) ->
    assert(mine(j, e, id)); /* rule: no-late-write */
    settle(j, what, next)
  :: else
  fi
}

/* ------------------------------------------------------------------------------------------------------ the upstream */
#define unheard_of(j) (!stored[j] || broken(key_per_attempt))

inline take_effect(j) {
  if
  :: unheard_of(j) ->
    effects[j]++;
    assert(effects[j] == 1); /* rule: one-effect */
    stored[j] = DEDUPS;
    wire[j] = wire[j] && !DEDUPS
  :: else
  fi
}

/* Requests whose call was given up have their effect late, or never. */
inline leave_on_wire(j) {
  if
  :: unheard_of(j) -> wire[j] = true
  :: true
  fi
}

proctype Upstream() {
end:
  do
  :: atomic { wire[0] -> wire[0] = false; take_effect(0) }
  :: atomic { wire[1] -> wire[1] = false; take_effect(1) }
  od
}

/* ------------------------------------------------------------------------------------------ src/worker, with one slot */
proctype Worker(byte me) {
  mtype:phases phase = idle;
  byte job = NONE, ep = 0;                       /* the lease of the call */
  mtype:outcomes outcome = nothing;
  bool reaches = false;
  mtype:outcomes kept = nothing;                 /* settler.ts: an outcome that could not be written yet */
  byte kept_job = NONE, kept_ep = 0;
  bool doubt = false;                            /* claimed before a break of the lease */
  bool cut_off = false;                          /* only of reconcile_once */

#define known(j) ((job == j && ep == epoch[j] && !(broken(reconcile_in_claim) && phase == leased)) || \
  (kept != nothing && kept_job == j && kept_ep == epoch[j] && !broken(unwritten_not_known)))
#define astray(j) (state[j] == running && !broken(claim_pops) && owner[j] == me && !known(j))
/* WorkerPool.#mayStillSend, asked at the last moment before the request is written. */
#define may_send (permit[me] && (sure[me] || broken(lease_not_checked)) && (!doubt || broken(break_not_seen)))

#define spend_trouble() trouble = trouble - (TROUBLE != 255)
#define put_down() job = NONE; ep = 0; phase = idle; permit[me] = false; doubt = false
#define keep() kept = (broken(outcome_dropped) -> nothing : outcome); kept_job = job; kept_ep = ep
#define forget() kept = nothing; kept_job = NONE; kept_ep = 0

end:
  do
  /* Claim: what others hold is read first, and committed upon later. */
  :: atomic { phase == idle && may_claim(me) && !cut_off -> open_claim(); phase = asking }
  :: atomic { phase == asking -> commit_claim(me, job);
       if
       :: job == NONE -> phase = idle; doubt = false
       :: else -> ep = epoch[job]; phase = leased; permit[me] = true
       fi }
  /* The connection is cut: the claim is rolled back, or goes on without us, or was committed and we do not know. */
  :: atomic { (phase == asking || phase == leased) && faults > 0 -> faults--;
       if
       :: phase == asking -> close_claim()
       :: phase == asking && stray == NONE -> stray = me
       :: phase == leased
       fi;
       cut_off = broken(reconcile_once);
       put_down() }

  /* Send, if that is still allowed at the last moment. */
  :: atomic { phase == leased && may_send ->
       assert(mine(job, ep, me) || state[job] == succeeded); /* rule: no-start-without-lease, but for a receipt */
       starts = starts + WINDOWED;
       assert(starts <= 1); /* rule: no-start-without-permit */
       if
       :: broken(charged_later) -> used_up = true
       :: else
       fi;
       permit[me] = false; doubt = false; phase = sent }
  /* The upstream has done it, and its answer is lost, or we are before it is written. */
  :: atomic { phase == sent && trouble > 0 && unheard_of(job) -> spend_trouble(); take_effect(job); phase = unanswered }
  /* The call ends: it was never made, or answered, or not. */
  :: atomic { (phase == leased && (!may_send || trouble > 0)) || phase == sent || phase == unanswered ->
       if
       :: phase == leased && may_send && trouble > 0 -> outcome = not_sent; spend_trouble()
       :: phase == leased && !may_send -> outcome = untouched
       :: phase == sent -> outcome = success; take_effect(job)
       :: phase == sent && trouble > 0 && !stored[job] -> outcome = rejected; spend_trouble()
       :: phase == sent && trouble > 0 && !stored[job] -> outcome = error; spend_trouble()
       :: phase == sent && trouble > 0 && (reading == 0 || broken(cooldown_unlocked)) -> outcome = throttled; spend_trouble()
       :: phase == sent && trouble > 0 -> outcome = unknown; leave_on_wire(job); spend_trouble()
       :: phase == unanswered -> outcome = unknown
       fi;
       if
       :: reaches = true                                                        /* written, and we hear so */
       :: faults > 0 && kept == nothing -> faults--; reaches = true; keep()     /* written, and we do not */
       :: faults > 0 && kept == nothing -> faults--; reaches = false; keep()    /* not written */
       fi;
       if
       :: reaches -> write(job, ep, me, outcome, scheduled)
       :: !reaches
       fi;
       outcome = nothing; reaches = false; put_down() }
  /* What could not be written is tried again, for as long as it takes; a cooldown waits for claims that have read it. */
  :: atomic { kept != nothing && (kept != throttled || reading == 0 || broken(cooldown_unlocked)) ->
       write(kept_job, kept_ep, me, kept, scheduled); forget() }

  /* Reconcile: what is leased in our name and not known here goes back untouched. Never beside a claim of ours. */
  :: atomic { phase != asking && (kept == nothing || broken(unwritten_not_known)) &&
       (cut_off || (!broken(reconcile_once) && (astray(0) || astray(1)))) ->
       if
       :: astray(0) -> kept = untouched; kept_job = 0; kept_ep = epoch[0]
       :: astray(1) -> kept = untouched; kept_job = 1; kept_ep = epoch[1]
       :: else
       fi;
       cut_off = false }

  /* Heartbeat: after a break, what was not sent yet is not ours any more. */
  :: atomic { !sure[me] -> live[me] = true; sure[me] = true; doubt = (phase == asking || phase == leased) }

  /* A crash, anywhere; the next process has another name. */
  :: atomic { faults > 0 -> faults--;
       if
       :: phase == asking -> close_claim()
       :: phase == asking && stray == NONE -> stray = me
       :: phase == sent -> leave_on_wire(job)
       :: phase != asking && phase != sent
       fi;
       sure[me] = false; put_down(); forget(); cut_off = false;
       me = ids; ids++; live[me] = true; sure[me] = true }
  od
}

/* --------------------------------------------------------------- src/worker/maintenance.ts, in some replica that lives */
#define orphan(j) (state[j] == running && !broken(claim_pops) && (!live[owner[j]] || broken(reaped_alive)))

proctype Reaper() {
  byte job = NONE, ep = 0, whose = NONE;

end:
  do
  /* Found, and its lease looked at; the worker may have renewed it by the time of the write. */
  :: atomic { !broken(no_reaper) && job == NONE && (orphan(0) || orphan(1)) ->
       if
       :: orphan(0) -> job = 0
       :: orphan(1) -> job = 1
       fi;
       ep = epoch[job]; whose = owner[job] }
  :: atomic { job != NONE ->
       write(job, ep, whose, (broken(success_by_reaper) -> success : unknown), ready);
       job = NONE; ep = 0; whose = NONE }
  od
}

/* The database goes on with what it was told, though nobody listens. */
proctype Stray() {
  byte j = NONE;

end:
  do
  :: atomic { stray != NONE -> commit_claim(stray, j); stray = NONE; j = NONE }
  od
}

/* ----------------------------------------------------------------------------------------------------- time passes */
#define permit_out (permit[0] || permit[1] || permit[2] || permit[3])

#define clocks_of(id) \
  :: atomic { sure[id] && faults > 0 -> faults--; sure[id] = false } \
  :: atomic { !sure[id] && live[id] -> live[id] = false } \
  :: atomic { WINDOWED && permit[id] && faults > 0 -> faults--; permit[id] = false }

proctype Clock() {
end:
  do
  :: atomic { state[0] == scheduled -> move(0, scheduled, ready) }
  :: atomic { state[1] == scheduled -> move(1, scheduled, ready) }
  :: atomic { cooling && !broken(cooldown_for_ever) -> cooling = false }
  /* A window lets go of a start when every permit that it gave has run out, and a period more has passed. */
  :: atomic { used_up && (!permit_out || broken(permit_never_expires)) ->
       used_up = false; starts = 0; counted[0] = false; counted[1] = false }
  clocks_of(0)
  clocks_of(1)
  clocks_of(2) /* nothing befalls the last: two crashes have used up the faults */
  od
}

/* ------------------------------------------------ people, receivers, and expires_at: what ends a job moves its epoch on */
inline retry(j, from) {
  if
  :: move(j, from, ready)
  :: move(j, from, scheduled) /* before its run_at */
  fi;
  attempts[j] = 0;
  throttles[j] = 0
}

inline act_on(j) {
  if
  :: state[j] == scheduled -> move(j, scheduled, cancelled); epoch[j]++
  :: state[j] == ready -> move(j, ready, cancelled); epoch[j]++
  :: state[j] == held -> move(j, held, cancelled); epoch[j]++
  :: state[j] == scheduled && !outcome_unknown[j] -> move(j, scheduled, expired); epoch[j]++
  :: state[j] == ready && !outcome_unknown[j] -> move(j, ready, expired); epoch[j]++
  :: state[j] == scheduled && outcome_unknown[j] -> move(j, scheduled, held); epoch[j]++
  :: state[j] == ready && outcome_unknown[j] -> move(j, ready, held); epoch[j]++
  /* The receiver knows: it puts a receipt for what it has done. */
  :: state[j] == scheduled && effects[j] > 0 -> move(j, scheduled, succeeded); epoch[j]++
  :: state[j] == ready && effects[j] > 0 -> move(j, ready, succeeded); epoch[j]++
  :: state[j] == running && effects[j] > 0 -> move(j, running, succeeded); epoch[j]++
  :: state[j] == held && effects[j] > 0 -> move(j, held, succeeded); epoch[j]++
  /* A person sends it on its way again, who answers for an effect that no key keeps from being done twice. */
  :: state[j] == held && DEDUPS -> retry(j, held)
  :: state[j] == failed && DEDUPS -> retry(j, failed)
  :: state[j] == cancelled && DEDUPS -> retry(j, cancelled)
  :: state[j] == expired && DEDUPS -> retry(j, expired)
  fi;
  owner[j] = NONE;
  counted[j] = false
}

#define acts_on(j) (state[j] != succeeded && (state[j] != running || effects[j] > 0) \
  && (state[j] != failed || DEDUPS) && (state[j] != cancelled || DEDUPS) && (state[j] != expired || DEDUPS))

proctype Others() {
end:
  do
  :: atomic { acts > 0 && acts_on(0) -> acts--; act_on(0) }
  :: atomic { acts > 0 && acts_on(1) -> acts--; act_on(1) }
  od
}

/* ------------------------------------------------------------------------------------------------ how it begins, and ends */
inline accept(j) {
  if
  :: move(j, accepted, ready)
  :: move(j, accepted, scheduled)
  fi
}

/* What failed, was called off or expired had no effect, or says that it may have had one. */
#define true_answer(j) (!ended(j) || state[j] == succeeded || effects[j] == 0 || outcome_unknown[j])

init {
  atomic {
    accept(0); accept(1);
    live[0] = true; sure[0] = true;
    live[1] = true; sure[1] = true;
    run Worker(0); run Worker(1); run Reaper(); run Stray(); run Upstream(); run Clock(); run Others()
  }
  /* Nothing can move any more. */
  timeout;
  assert(all_over); /* rule: no-lost-job */
  assert(true_answer(0) && true_answer(1)) /* rule: true-answer */
}

ltl every_batch_ends { <> all_over }
