// Marks functions that CPUs and GPUs share: with one source text, both give the same bits.
#pragma once

#ifdef __CUDACC__
#define CAUSEWAY_ANYWHERE __host__ __device__ inline
#else
#define CAUSEWAY_ANYWHERE inline
#endif
