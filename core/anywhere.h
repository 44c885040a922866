// For functions that CPUs and GPUs compute alike: one text, so that they give the same bits.
#pragma once

#ifdef __CUDACC__
#define CAUSEWAY_ANYWHERE __host__ __device__ inline
#else
#define CAUSEWAY_ANYWHERE inline
#endif
