#include "worker/device/blas_kernels.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

extern "C" char* openblas_get_corename();

namespace causeway::worker {
namespace {

constexpr char kVariable[] = "OPENBLAS_CORETYPE";
constexpr std::string_view kFallback = "Prescott";  // its choice for an unknown x86-64

// The kernels for the instruction sets that the processor has, or null if the fallback is right.
const char* BestKernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return "SkylakeX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return nullptr;
}

}  // namespace

void StartAgainWithBestBlasKernels(char** argv) {
  const char* best = BestKernels();
  if (best == nullptr || std::getenv(kVariable) != nullptr || openblas_get_corename() != kFallback) return;
  setenv(kVariable, best, /*overwrite=*/1);
  execv("/proc/self/exe", argv);  // returns only on failure: then continue slowly
}

}  // namespace causeway::worker
