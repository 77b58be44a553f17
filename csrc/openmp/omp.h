// The functions of OpenMP's interface that programs call in parallel regions, from libgomp. ziglang's clang lacks
// the header. Source: OpenMP 5.0, chapter 3.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

int omp_get_thread_num(void);
int omp_get_num_threads(void);
int omp_get_max_threads(void);
int omp_get_num_procs(void);
int omp_get_level(void);
int omp_in_parallel(void);
void omp_set_num_threads(int count);
int omp_get_dynamic(void);
void omp_set_dynamic(int is_dynamic);
int omp_get_max_active_levels(void);
void omp_set_max_active_levels(int count);
double omp_get_wtime(void);  // in seconds

#ifdef __cplusplus
}
#endif
