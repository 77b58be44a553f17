// Loops of each schedule, and regions with if(): each iteration must run once. Prints what did not.
#include <omp.h>

#include <cstdio>
#include <vector>

int main(int argc, char**) {
  int bad = 0;
  omp_set_max_active_levels(3);
  for (long n : {0L, 1L, 7L, 1000L}) {
    std::vector<int> seen(n + 1);
    auto check = [&](const char* what, int times) {
      for (long i = 0; i < n; ++i) {
        if (seen[i] != times) std::printf("%s: %d of %d times, %ld of %ld\n", what, seen[i], times, i, n), ++bad;
        seen[i] = 0;
      }
    };
    long last = -1;
#pragma omp parallel for schedule(dynamic) num_threads(4) lastprivate(last)
    for (long i = 0; i < n; ++i) {
      ++seen[i];
      last = i;
    }
    if (n > 0 && last != n - 1) std::printf("lastprivate: %ld of %ld\n", last, n), ++bad;
    check("dynamic", 1);
#pragma omp parallel for schedule(guided, 3) num_threads(4)
    for (unsigned i = 0; i < (unsigned)n; ++i) ++seen[i];
    check("guided", 1);
#pragma omp parallel for schedule(runtime) num_threads(3)
    for (int i = (int)n - 1; i >= 0; i -= 1) ++seen[i];
    check("runtime", 1);
#pragma omp parallel for schedule(auto) num_threads(3)
    for (long i = 0; i < n; ++i) ++seen[i];
    check("auto", 1);
#pragma omp parallel for schedule(static, 3) num_threads(4)
    for (int i = (int)n - 1; i >= 0; i--) ++seen[i];
    check("static", 1);
    long total = 0, singles = 0;
#pragma omp parallel num_threads(4)
    {
#pragma omp single
      singles++;
#pragma omp for reduction(+ : total)
      for (long i = 0; i < n; ++i) total += omp_get_num_threads();
    }
    if (total != 4 * n || singles != 1) std::printf("sum: %ld, single: %ld\n", total, singles), ++bad;
#pragma omp parallel for schedule(dynamic, 5) num_threads(3)
    for (unsigned long i = 0; i < (unsigned long)n; i += 2) ++seen[i];
    for (long i = 1; i < n; i += 2) ++seen[i];
    check("step", 1);
#pragma omp parallel for if (n > 10)
    for (long i = 0; i < n; ++i) ++seen[i];
    check("if", 1);

    // Each thread of the outer team runs the whole inner loop, in a region of one and in one of two threads.
#pragma omp parallel for schedule(dynamic, 1) num_threads(2)
    for (long j = 0; j < 6; ++j) {
      std::vector<int> own(n + 1);
#pragma omp parallel for if (j % 2) schedule(dynamic, 2) num_threads(2)
      for (long i = 0; i < n; ++i) ++own[i];
#pragma omp parallel for if (j < 0)
      for (long i = 0; i < n; ++i) ++own[i];
      for (long i = 0; i < n; ++i) {
#pragma omp atomic
        seen[i] += own[i] == 2;
      }
    }
    check("nested", 6);
  }
  int threads = 0;
#pragma omp parallel num_threads(7) if (argc > 5)
  threads = 0;
#pragma omp parallel
#pragma omp masked
  threads = omp_get_num_threads();
  if (threads != omp_get_max_threads()) std::printf("%d threads after a region of one\n", threads), ++bad;
  threads = 0;
#pragma omp parallel if (argc > 5)
  {
#pragma omp barrier
#pragma omp critical
    threads += omp_get_num_threads() * 10 + 1;
  }
  if (threads != 11) std::printf("if: %d\n", threads), ++bad;
  std::printf("%d errors\n", bad);
}
