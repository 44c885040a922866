// cuBLASLt, loaded at run time: the same binary also starts where it is missing, and reports what it expected.
//
// The declarations are the toolkit's; nothing links the library. Its calls are thread-safe.
#pragma once

#include <cublasLt.h>

#include <string>

#include "absl/status/statusor.h"

namespace causeway::worker {

struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) algo_check = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
};

// `directory`: where to look first; empty: where the system looks. NOT_FOUND names the file, and the loader's reason or
// the missing symbol. Loaded once per directory, and kept.
absl::StatusOr<const CublasLt*> LoadCublasLt(const std::string& directory);

}  // namespace causeway::worker
