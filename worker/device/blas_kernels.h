// The right OpenBLAS kernels for this processor.
//
// OpenBLAS picks its kernels by the processor's model before main. It does not know models newer than itself, and falls
// back to kernels of 2004, with which a matrix product takes three times as long. It accepts a name from the
// environment, but only before it is loaded, so the program restarts itself once with the name set.
#pragma once

#include <cblas.h>

#include <cstdint>

namespace causeway::worker {

// C ← α·op(A)·op(B) + β·C for row-major float32 matrices: cblas_sgemm with its constants named once.
//
// op(A) is m × k, op(B) is k × n; the leading dimensions are the row strides of A, B, C as they lie in memory. The
// number of threads is OpenBLAS's (OPENBLAS_NUM_THREADS); with the same number the bits repeat on the same machine.
struct Matrix {
  const float* data;
  int64_t stride;  // values from one row to the next
  bool transposed = false;
};

inline void Gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix a, Matrix b, float beta, float* c,
                 int64_t c_stride) {
  cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
              static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a.data, static_cast<int>(a.stride),
              b.data, static_cast<int>(b.stride), beta, c, static_cast<int>(c_stride));
}

// Returns if OpenBLAS has chosen well, if its choice is already set, or if the program cannot be restarted; otherwise
// does not return, and main begins anew with the same arguments. REQUIRES: nothing was begun that may not begin twice.
void StartAgainWithBestBlasKernels(char** argv);

}  // namespace causeway::worker
