// The functions that clang compiles OpenMP into (__kmpc_*, of LLVM's libomp), on top of libgomp.
//
// torch's own ops run on libgomp. With libomp as a second runtime, both keep threads that wait for work on the same
// cores: a compiled kernel and an op of torch in turns took 350 us, and 74 us on libgomp alone (two cores). Linked into
// a library, these functions leave torch's libgomp as its only runtime, as with g++.
//
// They serve parallel regions, loops, single, masked, critical, barriers and reductions; not tasks, ordered loops,
// cancel and copyprivate. Compiles as C and as C++.
// Source: LLVM, openmp/runtime/src/kmp.h; GCC, libgomp/libgomp_g.h.
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "omp.h"

#define MOST_ARGUMENTS 256
#define FOUR(item, i) item(i), item(i + 1), item(i + 2), item(i + 3)
#define SIXTEEN(item, i) FOUR(item, i), FOUR(item, i + 4), FOUR(item, i + 8), FOUR(item, i + 12)
#define SIXTY_FOUR(item, i) SIXTEEN(item, i), SIXTEEN(item, i + 16), SIXTEEN(item, i + 32), SIXTEEN(item, i + 48)
#define ALL(item) SIXTY_FOUR(item, 0), SIXTY_FOUR(item, 64), SIXTY_FOUR(item, 128), SIXTY_FOUR(item, 192)
#define TYPE(i) void*
#define VALUE(i) values[i]

#ifdef __cplusplus
extern "C" {
#endif

void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);
void GOMP_parallel_start(void (*function)(void*), void* data, unsigned threads);
void GOMP_parallel_end(void);
bool GOMP_loop_static_start(long begin, long end, long step, long chunk, long* first, long* last);
bool GOMP_loop_dynamic_start(long begin, long end, long step, long chunk, long* first, long* last);
bool GOMP_loop_guided_start(long begin, long end, long step, long chunk, long* first, long* last);
bool GOMP_loop_runtime_start(long begin, long end, long step, long* first, long* last);
bool GOMP_loop_runtime_next(long* first, long* last);
void GOMP_loop_end_nowait(void);
void GOMP_barrier(void);
bool GOMP_single_start(void);
void GOMP_critical_name_start(void** lock);
void GOMP_critical_name_end(void** lock);

#pragma GCC diagnostic ignored "-Wunused-parameter"  // a program's flags also apply here
// Another library's libomp must not replace the functions below.
#pragma GCC visibility push(hidden)

struct Region {
  void* function;
  int32_t count;
  void* values[MOST_ARGUMENTS];
};

static __thread unsigned requested_threads;

// A function may be called with more arguments than it takes, on every Linux that ziglang compiles for.
static void run_region(void* data) {
  struct Region* region = (struct Region*)data;
  void** values = region->values;
  int32_t thread = omp_get_thread_num();
  if (region->count <= 16)
    ((void (*)(int32_t*, int32_t*, SIXTEEN(TYPE, 0)))region->function)(&thread, &thread, SIXTEEN(VALUE, 0));
  else
    ((void (*)(int32_t*, int32_t*, ALL(TYPE)))region->function)(&thread, &thread, ALL(VALUE));
}

void __kmpc_fork_call(void* place, int32_t count, void* function, ...) {
  if (count > MOST_ARGUMENTS) {
    fprintf(stderr, "A parallel region uses %d variables, more than %d.\n", count, MOST_ARGUMENTS);
    abort();
  }
  struct Region region = {function, count, {NULL}};
  va_list list;
  va_start(list, function);
  for (int32_t i = 0; i < count; ++i) region.values[i] = va_arg(list, void*);
  va_end(list);
  unsigned threads = requested_threads;
  requested_threads = 0;
  GOMP_parallel(run_region, &region, threads, 0);
}

// A region whose if() is false: the caller runs it between these, as a team of one thread.
static void not_run(void* data) {}
void __kmpc_serialized_parallel(void* place, int32_t thread) {
  requested_threads = 0;
  GOMP_parallel_start(not_run, NULL, 1);
}
void __kmpc_end_serialized_parallel(void* place, int32_t thread) { GOMP_parallel_end(); }

void __kmpc_push_num_threads(void* place, int32_t thread, int32_t count) { requested_threads = (unsigned)count; }
int32_t __kmpc_global_thread_num(void* place) { return omp_get_thread_num(); }
void __kmpc_barrier(void* place, int32_t thread) { GOMP_barrier(); }
void __kmpc_flush(void* place) { __sync_synchronize(); }
int32_t __kmpc_single(void* place, int32_t thread) { return GOMP_single_start(); }
void __kmpc_end_single(void* place, int32_t thread) {}
int32_t __kmpc_master(void* place, int32_t thread) { return omp_get_thread_num() == 0; }
void __kmpc_end_master(void* place, int32_t thread) {}
int32_t __kmpc_masked(void* place, int32_t thread, int32_t chosen) { return omp_get_thread_num() == chosen; }
void __kmpc_end_masked(void* place, int32_t thread) {}
void __kmpc_push_proc_bind(void* place, int32_t thread, int32_t policy) {}  // torch decides where its threads run
void __kmpc_critical(void* place, int32_t thread, void* lock) { GOMP_critical_name_start((void**)lock); }
void __kmpc_critical_with_hint(void* place, int32_t thread, void* lock, uint32_t hint) {
  GOMP_critical_name_start((void**)lock);
}
void __kmpc_end_critical(void* place, int32_t thread, void* lock) { GOMP_critical_name_end((void**)lock); }

// 1: the caller adds its part to the result, here under the lock.
int32_t __kmpc_reduce_nowait(void* place, int32_t thread, int32_t count, size_t size, void* data, void* combine,
                             void* lock) {
  GOMP_critical_name_start((void**)lock);
  return 1;
}
int32_t __kmpc_reduce(void* place, int32_t thread, int32_t count, size_t size, void* data, void* combine, void* lock) {
  return __kmpc_reduce_nowait(place, thread, count, size, data, combine, lock);
}
void __kmpc_end_reduce_nowait(void* place, int32_t thread, void* lock) { GOMP_critical_name_end((void**)lock); }
void __kmpc_end_reduce(void* place, int32_t thread, void* lock) {
  GOMP_critical_name_end((void**)lock);
  GOMP_barrier();
}

// The iterations of this thread, [*lower, *upper] in steps of `step`: one block, or with schedule(static, chunk) the
// first of blocks that are `*stride` apart.
#define DEFINE_STATIC_LOOP(name, Number, Unsigned, Step)                                                             \
  void __kmpc_for_static_init_##name(void* place, int32_t thread, int32_t schedule, int32_t* is_last, Number* lower, \
                                     Number* upper, Step* stride, Step step, Step chunk) {                           \
    bool is_empty = step > 0 ? *upper < *lower : *lower < *upper;                                                    \
    *is_last = 0;                                                                                                    \
    *stride = step;                                                                                                  \
    if (is_empty) return;                                                                                            \
    Unsigned distance = step > 0 ? (Unsigned)*upper - (Unsigned)*lower : (Unsigned)*lower - (Unsigned)*upper;        \
    Unsigned count = distance / (step > 0 ? (Unsigned)step : (Unsigned)0 - (Unsigned)step) + 1;                      \
    Unsigned threads = (Unsigned)omp_get_num_threads(), index = (Unsigned)omp_get_thread_num(), first, size;         \
    if ((schedule & 0xffff) == 33) { /* kmp_sch_static_chunked */                                                    \
      size = chunk > 0 ? (Unsigned)chunk : 1;                                                                        \
      first = index * size;                                                                                          \
      *stride = (Step)(threads * size * (Unsigned)step);                                                             \
      *is_last = (count - 1) / size % threads == index;                                                              \
    } else {                                                                                                         \
      Unsigned extra = count % threads;                                                                              \
      size = count / threads + (index < extra);                                                                      \
      first = index * (count / threads) + (index < extra ? index : extra);                                           \
      *is_last = size > 0 && first + size == count;                                                                  \
    }                                                                                                                \
    *lower = (Number)((Unsigned)*lower + first * (Unsigned)step);                                                    \
    *upper = (Number)((Unsigned)*lower + (size - 1) * (Unsigned)step);                                               \
  }

DEFINE_STATIC_LOOP(4, int32_t, uint32_t, int32_t)
DEFINE_STATIC_LOOP(4u, uint32_t, uint32_t, int32_t)
DEFINE_STATIC_LOOP(8, int64_t, uint64_t, int64_t)
DEFINE_STATIC_LOOP(8u, uint64_t, uint64_t, int64_t)
void __kmpc_for_static_fini(void* place, int32_t thread) {}

// Loops with another schedule. libgomp starts a loop with its first chunk, which the first call of `next` takes; its
// ends are exclusive. A loop in a nested region may run on this thread between two chunks of the outer one.
#define MOST_LEVELS 32
static __thread struct DynamicLoop {
  bool is_new, has_chunk;
  long first, last, end;
} dynamic_loops[MOST_LEVELS];

static struct DynamicLoop* dynamic_loop(void) {
  int level = omp_get_level();
  if (level >= MOST_LEVELS) {
    fprintf(stderr, "A loop with a dynamic schedule is nested in %d parallel regions.\n", level);
    abort();
  }
  return &dynamic_loops[level];
}

static void start_loop(int32_t schedule, long first, long end, long step, long chunk) {
  struct DynamicLoop* loop = dynamic_loop();
  loop->is_new = true;
  loop->end = end;
  switch (schedule & 0xffff) {
    case 36: /* kmp_sch_guided_chunked */
      loop->has_chunk = GOMP_loop_guided_start(first, end, step, chunk, &loop->first, &loop->last);
      break;
    case 37: /* kmp_sch_runtime */
      loop->has_chunk = GOMP_loop_runtime_start(first, end, step, &loop->first, &loop->last);
      break;
    case 38: /* kmp_sch_auto */
      loop->has_chunk = GOMP_loop_static_start(first, end, step, 0, &loop->first, &loop->last);
      break;
    default:
      loop->has_chunk = GOMP_loop_dynamic_start(first, end, step, chunk > 0 ? chunk : 1, &loop->first, &loop->last);
  }
}

static struct DynamicLoop* next_chunk(void) {
  struct DynamicLoop* loop = dynamic_loop();
  // GOMP_loop_runtime_next continues a loop of any schedule.
  if (!loop->is_new) loop->has_chunk = GOMP_loop_runtime_next(&loop->first, &loop->last);
  loop->is_new = false;
  if (!loop->has_chunk) GOMP_loop_end_nowait();
  return loop;
}

// clang counts iterations from 0 in steps of 1.
#define DEFINE_DYNAMIC_LOOP(name, Number, Step)                                                                  \
  void __kmpc_dispatch_init_##name(void* place, int32_t thread, int32_t schedule, Number lower, Number upper,    \
                                   Step step, Step chunk) {                                                      \
    start_loop(schedule, (long)lower, (long)upper + 1, (long)step, (long)chunk);                                 \
  }                                                                                                              \
  int32_t __kmpc_dispatch_next_##name(void* place, int32_t thread, int32_t* is_last, Number* lower, Number* upper, \
                                      Step* stride) {                                                            \
    struct DynamicLoop* loop = next_chunk();                                                                     \
    if (!loop->has_chunk) return 0;                                                                              \
    *lower = (Number)loop->first;                                                                                \
    *upper = (Number)(loop->last - 1);                                                                           \
    *is_last = loop->last == loop->end;                                                                          \
    return 1;                                                                                                    \
  }                                                                                                              \
  void __kmpc_dispatch_fini_##name(void* place, int32_t thread) {}

DEFINE_DYNAMIC_LOOP(4, int32_t, int32_t)
DEFINE_DYNAMIC_LOOP(4u, uint32_t, int32_t)
DEFINE_DYNAMIC_LOOP(8, int64_t, int64_t)
DEFINE_DYNAMIC_LOOP(8u, uint64_t, int64_t)
void __kmpc_dispatch_deinit(void* place, int32_t thread) {}

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
