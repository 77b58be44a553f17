// Marks functions that kernels on a GPU call, too.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define ACCEL_HOST_DEVICE __host__ __device__
#else
#define ACCEL_HOST_DEVICE
#endif
