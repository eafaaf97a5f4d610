/* The protocol of stream, interval and housekeeping, for Spin.
 *
 * What is modelled: one topic partition of OFFSETS records, one micro-batch a record; two drivers of one pipeline; one
 * interval over all records, delivered by attempt 0 into table partition 0 and, after a change of the code, by attempt 1
 * into table partition 1; two Airflow workers that build and publish these attempts in any order, any number of times;
 * housekeeping; doctor's repair. Every process may crash between any two steps, and every step may be arbitrarily late.
 * A lease may run out at any moment, as it does when a clock steps or a host is paused; a checkpoint may be lost.
 *
 * What one transaction of the ledger does is one `atomic` step; a write to the lake or to the catalog is a step of its own.
 *
 * Two parts are checked one after the other, -DSTREAM and -DINTERVAL: they meet in one place only, as an interval is pinned
 * when the archive has reached its end, and from then on its records do not change. With -DLOST_LOCKS a publisher may lose
 * its session, and the lock with it, and live on: it asks for the lock before each change, and stops without it. To ask and
 * to change is one step here.
 *
 * Controls, to show that each guard is needed: -DNO_FENCING, -DNO_CONTINUITY, -DNO_INTENT, -DNO_WAITING,
 * -DNO_DISCARD, -DNO_CHECK.
 */

#define OFFSETS     2
#define QUERIES     2   /* a lost checkpoint begins a new query id */
#define TOKENS      4
#define REVISIONS   3
#define NONE        15

#define ABSENT      0
#define BUILT       1
#define VALIDATED   2
#define REGISTERING 3
#define REGISTERED  4
#define RETIRED     5

/* The ledger. */
byte token = 0, holder = 0;
bool lease_over = true;
#ifdef INTERVAL
#define REACHED     OFFSETS
#else
#define REACHED     0
#endif
byte position = REACHED;                    /* of the archive query */
bool batch_known[4];                    /* by query * OFFSETS + batch: the micro-batch is committed */
bool pinned = false;
byte state[REVISIONS];                  /* of revisions */
byte attempt_of[REVISIONS];
bool dropping[2];                       /* the intent: table partitions to be dropped */
byte publisher = 0;                     /* holder of the advisory lock; PostgreSQL frees it when the session ends */

/* The checkpoint, the lake, the catalog. */
byte query = 0, checkpoint = 0;
byte archived[OFFSETS] = REACHED / OFFSETS; /* how often a record is in committed landing files */
byte quarantined[OFFSETS];                  /* how often it is in committed quarantine files */
bool landing = REACHED / OFFSETS;
bool files[REVISIONS];
byte catalog[2] = NONE;
byte next_revision = 0;

/* What really happened, for the invariants. */
bool validated[REVISIONS];
bool two_writers = false, valid_build_failed = false, ever_registered = false;
byte crashes = 0;

#ifndef CRASHES
#define CRASHES     2
#endif
#define MAY_CRASH   (crashes < CRASHES)

#if defined(LOST_LOCKS) && !defined(NO_CHECK)
#define HOLDS           (publisher == me)
#else
#define HOLDS           true
#endif
#ifdef LOST_LOCKS
#define UNFINISHED(r)   (state[r] == REGISTERING)
#else
#define UNFINISHED(r)   true
#endif
#define RELEASE     publisher = (publisher == me -> 0 : publisher)

proctype driver(byte me)
{
    byte mine, from;
    bool known;
starting:
    do
    :: atomic { (lease_over && token < TOKENS) -> token++; mine = token; holder = me; lease_over = false }
    :: (position == OFFSETS || token == TOKENS) -> goto ended
    :: break
    od;
    if :: (mine == 0) -> goto starting :: else fi;
    do
    :: from = checkpoint;
       if
       :: (from >= OFFSETS) -> break
       :: (from < OFFSETS) -> skip
       fi;
       /* The files are written; nothing refers to them yet. */
       atomic {
           known = batch_known[query * OFFSETS + from];
           if
           :: known -> skip
           :: else ->
#ifndef NO_FENCING
               if
               :: (mine != token || lease_over) -> break
               :: else -> skip
               fi;
#endif
#ifndef NO_CONTINUITY
               if
               :: (from != position) -> break
               :: else -> skip
               fi;
#endif
               if :: (mine != token) -> two_writers = true :: else fi;
               /* Another try may be of another code, which decodes the record as this one does not. */
               if :: archived[from]++ :: quarantined[from]++ fi;
               landing = true;
               batch_known[query * OFFSETS + from] = true;
               if :: (from + 1 > position) -> position = from + 1 :: else fi
           fi
       }
       checkpoint = from + 1
    :: atomic { MAY_CRASH -> crashes++; mine = 0; goto starting }
    od;
    atomic { if :: (mine == token) -> lease_over = true :: else fi; mine = 0 };
    if
    :: (position < OFFSETS && token < TOKENS) -> goto starting
    :: else
    fi;
ended:
    skip
}

/* Expiry, clock steps, and the loss of a checkpoint. */
proctype world()
{
    do
    :: atomic { (!lease_over && position < OFFSETS) -> lease_over = true }
    :: atomic { (query + 1 < QUERIES && checkpoint > 0 && position < OFFSETS) -> query++; checkpoint = 0 }
    :: (position == OFFSETS) -> break
    od
}

inline discard_earlier(a)
{
    /* What is registered or being registered is not an earlier try: it stays until a registration replaces it. */
    i = 0;
    do
    :: (i < REVISIONS) ->
       if
       :: (attempt_of[i] == a && (state[i] == BUILT || state[i] == VALIDATED)) -> state[i] = RETIRED
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0
}

inline finish_intents(me)
{
    /* At most one: who publishes next finishes it first. */
    d_step {
        i = 0;
        do
        :: (i < REVISIONS && state[i] != REGISTERING) -> i++
        :: else -> break
        od
    };
    if
    :: (i < REVISIONS) ->
       if
       :: atomic { HOLDS -> if :: dropping[1 - attempt_of[i]] -> catalog[1 - attempt_of[i]] = NONE :: else fi }
       :: atomic { !HOLDS -> goto again }
       fi;
       if
       :: atomic { HOLDS -> catalog[attempt_of[i]] = i }
       :: atomic { !HOLDS -> goto again }
       fi;
       d_step { if :: UNFINISHED(i) -> complete(i) :: else fi; i = 0 }
    :: else -> i = 0
    fi
}

inline complete(chosen)
{
    j = 0;
    do
    :: (j < REVISIONS) -> if :: (state[j] == REGISTERED) -> state[j] = RETIRED :: else fi; j++
    :: else -> break
    od;
    state[chosen] = REGISTERED;
    dropping[0] = false;
    dropping[1] = false;
    j = 0;
    ever_registered = true
}

/* An Airflow worker: tasks of either attempt, cleared, retried and repeated as it pleases. */
proctype worker(byte me)
{
    /* `mine`, `i` and `j` are reset where they are not needed, so that equal situations are one state. */
    byte i, j, mine, candidates, a;
waiting:
    atomic { (position == OFFSETS); pinned = true; mine = NONE; a = 0; i = 0; j = 0; candidates = 0 };
    do
    :: a = 0
    :: a = 1
    :: atomic { (next_revision < REVISIONS) -> mine = next_revision; next_revision++; attempt_of[mine] = a };
       files[mine] = true;
       if
       :: atomic { MAY_CRASH -> crashes++; goto again }
       :: atomic {
#ifndef NO_DISCARD
              discard_earlier(a);
#endif
              state[mine] = BUILT;
              mine = NONE
          }
       fi
    :: atomic { (publisher == 0) -> publisher = me };
       finish_intents(me);
       atomic {
           candidates = 0; mine = NONE; i = 0;
           do
           :: (i < REVISIONS) ->
              if
              :: (attempt_of[i] == a && (state[i] == BUILT || state[i] == VALIDATED)) -> candidates++; mine = i
              :: else
              fi;
              i++
           :: else -> break
           od;
           if
           :: (candidates == 0) -> RELEASE; goto again
           /* The rows are there twice: the row count fails, although each build was right. */
           :: (candidates > 1) -> valid_build_failed = true; RELEASE; goto again
           :: else -> skip
           fi
       };
       /* Validated and, in the same transaction, what the registration is about to change. */
       atomic {
           if
           :: (HOLDS && (state[mine] == BUILT || state[mine] == VALIDATED)) ->
              validated[mine] = true;
#ifdef NO_INTENT
              state[mine] = VALIDATED
#else
              state[mine] = REGISTERING;
              dropping[1 - a] = (catalog[1 - a] != NONE)
#endif
           /* The attempt was built again meanwhile, or the lock is lost. */
           :: else -> RELEASE; goto again
           fi
       };
       /* Dropped first: a reader finds rows that move not yet, never twice. */
       if
       :: atomic { MAY_CRASH -> crashes++; RELEASE; goto again }
       :: atomic { HOLDS -> catalog[1 - a] = NONE }
       :: atomic { !HOLDS -> goto again }
       fi;
       if
       :: atomic { MAY_CRASH -> crashes++; RELEASE; goto again }
       :: atomic { HOLDS -> catalog[a] = mine }
       :: atomic { !HOLDS -> goto again }
       fi;
       if
       :: atomic { MAY_CRASH -> crashes++; RELEASE; goto again }
       :: atomic { if :: UNFINISHED(mine) -> complete(mine) :: else fi; RELEASE }
       fi
    :: break
    od;
    goto ended;
again:
    goto waiting;
ended:
    skip
}

/* The end of a publisher's session, of which it does not know. */
proctype sessions()
{
    do
    :: atomic { (publisher != 0 && MAY_CRASH) -> crashes++; publisher = 0 }
    od
}

proctype housekeeping()
{
    byte i;
    do
    :: d_step {
           (publisher == 0) ->
           i = 0;
           do
           :: (i < REVISIONS) ->
              if
              :: (state[i] == RETIRED) -> files[i] = false
              :: (state[i] == REGISTERED) -> landing = false
              :: else
              fi;
              i++
           :: else -> break
           od;
           i = 0
       }
    od
}

/* doctor --repair: what catalog and ledger disagree about, while nobody publishes and nothing is half done. */
proctype repair()
{
    byte i, open;
    do
    :: d_step {
           (publisher == 0) ->
           open = 0;
           i = 0;
           do
           :: (i < REVISIONS) -> if :: (state[i] == REGISTERING) -> open++ :: else fi; i++
           :: else -> break
           od;
           i = 0;
#ifdef NO_WAITING
           open = 0;
#endif
           do
           :: (open == 0 && i < REVISIONS) ->
              if
              :: (state[i] == REGISTERED) -> catalog[attempt_of[i]] = i
              :: else
              fi;
              i++
           :: else -> break
           od;
           i = 0;
           open = 0
       }
    od
}

#define visible     ((catalog[0] != NONE) + (catalog[1] != NONE))
#define half_done   (state[0] == REGISTERING || state[1] == REGISTERING || state[2] == REGISTERING)
#define quiet       (publisher == 0 && !half_done)

/* What the README promises, and what its promises rest on; the test knows which of these is part of which promise. */
#define one_writer              (!two_writers)
#define one_fate                (archived[0] + quarantined[0] <= 1 && archived[1] + quarantined[1] <= 1)
#define archived_once           (archived[0] <= 1 && archived[1] <= 1)
#define nothing_skipped         (position <= archived[0] + quarantined[0] + archived[1] + quarantined[1])
#define nothing_unvalidated     ((catalog[0] == NONE || validated[catalog[0]]) && (catalog[1] == NONE || validated[catalog[1]]))
#define visible_files_exist     ((catalog[0] == NONE || files[catalog[0]]) && (catalog[1] == NONE || files[catalog[1]]))
#define visible_once            (visible <= 1)
#define stays_registered        (!(quiet && ever_registered) || visible >= 1)
#define right_build_passes      (!valid_build_failed)
#define held(r)                 ((state[r] == REGISTERED || state[r] == REGISTERING) && files[r])
#define rows_are_somewhere      (position == 0 || landing || held(0) || held(1) || held(2))

/* -DWITHOUT leaves promises out (their sum): what a control breaks are these alone. */
#define ONE_WRITER           1
#define ARCHIVED_ONCE        2
#define NOTHING_SKIPPED      4
#define NOTHING_UNVALIDATED  8
#define VISIBLE_FILES_EXIST  16
#define VISIBLE_ONCE         32
#define STAYS_REGISTERED     64
#define RIGHT_BUILD_PASSES   128
#define ROWS_ARE_SOMEWHERE   256
#define ONE_FATE             512
#ifndef WITHOUT
#define WITHOUT 0
#endif

active proctype promises()
{
    do
    :: (!((WITHOUT) & ONE_WRITER) && !one_writer) -> assert(one_writer)
    :: (!((WITHOUT) & ONE_FATE) && !one_fate) -> assert(one_fate)
    :: (!((WITHOUT) & ARCHIVED_ONCE) && !archived_once) -> assert(archived_once)
    :: (!((WITHOUT) & NOTHING_SKIPPED) && !nothing_skipped) -> assert(nothing_skipped)
    :: (!((WITHOUT) & NOTHING_UNVALIDATED) && !nothing_unvalidated) -> assert(nothing_unvalidated)
    :: (!((WITHOUT) & VISIBLE_FILES_EXIST) && !visible_files_exist) -> assert(visible_files_exist)
    :: (!((WITHOUT) & VISIBLE_ONCE) && !visible_once) -> assert(visible_once)
    :: (!((WITHOUT) & STAYS_REGISTERED) && !stays_registered) -> assert(stays_registered)
    :: (!((WITHOUT) & RIGHT_BUILD_PASSES) && !right_build_passes) -> assert(right_build_passes)
    :: (!((WITHOUT) & ROWS_ARE_SOMEWHERE) && !rows_are_somewhere) -> assert(rows_are_somewhere)
    :: timeout -> break
    od
}

init
{
    atomic {
#ifdef STREAM
        run driver(1);
        run driver(2);
        run world()
#else
        run worker(1);
        run worker(2);
        run housekeeping();
        run repair();
#ifdef LOST_LOCKS
        run sessions()
#endif
#endif
    }
}
