/* A model of csrc/kernels/comm/phases.h and of its use by the collectives, for the model checker spin.
 *
 * Each rank writes into one of two slots, publishes, meets the others, and reads all slots. It may write for the next
 * phase before or after it reads, as the pipelined collectives do. A slot is written in two steps and read twice, so
 * that what is read too early or overwritten too late is seen. Who waits sleeps until it is woken: a lost wake-up is a
 * deadlock. With DEATHS a rank may die, or give up, at any phase; the others must end, too.
 *
 * What is wrong on purpose, so that a test knows that it would be found:
 *   ONE_SLOT      one slot instead of two
 *   NO_MEETING    a rank reads without waiting
 *   LOOKS_FIRST   a rank looks for sleepers before it publishes
 *   NO_NEWS       a rank that gives up does not say so
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef PHASES
#define PHASES 4
#endif
#define GARBAGE 255

#ifdef ONE_SLOT
#define SLOT(rank, p) slot[rank]
#else
#define SLOT(rank, p) slot[(rank) * 2 + (p) % 2]
#endif

byte phase[RANKS];    /* Board.phase */
byte sleepers[RANKS]; /* Bell.sleepers */
byte asleep[RANKS];   /* in futex_wait(): 1 + the rank waited for; else 0 */
bool is_dead[RANKS];
bool gave_up[RANKS];  /* Board.state */
byte slot[2 * RANKS];

inline wake_all(rank) {
  d_step {
    i = 0;
    do
    :: i < RANKS -> if :: asleep[i] == rank + 1 -> asleep[i] = 0 :: else fi; i++
    :: else -> break
    od;
    i = 0
  }
}

/* Whether the kernel would end a sleep by itself so that the sleeper looks around: only this matters of its slices. */
#define SOMEBODY_IS_GONE (is_dead[0] || is_dead[1] || is_dead[RANKS - 1] || gave_up[0] || gave_up[1] || gave_up[RANKS - 1])

#define IS_LOST(rank) (phase[rank] < p && (is_dead[rank] || gave_up[rank]))

inline give_up() {
#ifndef NO_NEWS
  gave_up[_pid] = true;
#endif
  wake_all(_pid);
  goto over
}

inline wait_for(other) {
  if
  :: phase[other] >= p
  :: else ->
    sleepers[other]++;
    do
    :: true ->
      seen = phase[other];
      if
      :: seen >= p -> break
      :: else
      fi;
      atomic { if :: phase[other] == seen -> asleep[_pid] = other + 1 :: else fi };
      if
      :: asleep[_pid] == 0
      :: SOMEBODY_IS_GONE -> asleep[_pid] = 0
      fi;
      if
      :: phase[other] >= p -> break
      :: else ->
        if
        :: atomic { (IS_LOST(0) || IS_LOST(1) || IS_LOST(RANKS - 1)) -> is_lost = true }
        :: else
        fi
      fi;
      if :: is_lost -> break :: else fi
    od;
    sleepers[other]--;
    if :: is_lost -> give_up() :: else fi
  fi
}

inline write_slot(which) {
  SLOT(_pid, which) = GARBAGE;
  SLOT(_pid, which) = which
}

inline read_slots(which) {
  o = 0;
  do
  :: o < RANKS -> assert(SLOT(o, which) == which); assert(SLOT(o, which) == which); o++
  :: else -> break
  od;
  o = 0
}

active [RANKS] proctype Rank() {
  byte p = 1, o = 0, seen = 0, i = 0, found = 0;
  bool is_lost = false;

  write_slot(1);
  do
  :: p <= PHASES ->
#ifdef DEATHS
    if
    :: skip
    :: is_dead[_pid] = true; goto over
    :: give_up()
    fi;
#endif
#ifdef LOOKS_FIRST
    found = sleepers[_pid];
    phase[_pid] = p;
#else
    phase[_pid] = p;
    found = sleepers[_pid];
#endif
    if :: found > 0 -> wake_all(_pid) :: else fi;
    found = 0;
#ifndef NO_MEETING
    o = 0;
    do
    :: o < RANKS -> if :: o != _pid -> wait_for(o) :: else fi; o++
    :: else -> break
    od;
    o = 0;
    seen = 0;
#endif
    if
    :: p == PHASES -> read_slots(p)
    :: p < PHASES -> read_slots(p); write_slot(p + 1)
#ifndef ONE_SLOT
    :: p < PHASES -> write_slot(p + 1); read_slots(p)
#endif
    fi;
    p++
  :: else -> break
  od;
over:
  skip
}
