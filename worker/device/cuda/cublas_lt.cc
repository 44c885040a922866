#include "worker/device/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/mutex.h"

namespace causeway::worker {
namespace {

const std::string& FileName() {
  static const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  return name;
}

absl::StatusOr<std::unique_ptr<const CublasLt>> Load(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return absl::NotFoundError(absl::StrCat("expected ", FileName(), " (of the CUDA toolkit, or --cuda_libs=DIR): ",
                                            reason == nullptr ? "no reason" : reason));
  }
  auto api = std::make_unique<CublasLt>();
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  find("cublasLtCreate", api->create);
  find("cublasLtDestroy", api->destroy);
  find("cublasLtMatmul", api->matmul);
  find("cublasLtMatmulAlgoGetHeuristic", api->heuristic);
  find("cublasLtMatmulAlgoCheck", api->algo_check);
  find("cublasLtMatmulDescCreate", api->desc_create);
  find("cublasLtMatmulDescDestroy", api->desc_destroy);
  find("cublasLtMatmulDescSetAttribute", api->desc_set);
  find("cublasLtMatrixLayoutCreate", api->layout_create);
  find("cublasLtMatrixLayoutDestroy", api->layout_destroy);
  find("cublasLtMatrixLayoutSetAttribute", api->layout_set);
  find("cublasLtMatmulPreferenceCreate", api->preference_create);
  find("cublasLtMatmulPreferenceDestroy", api->preference_destroy);
  find("cublasLtMatmulPreferenceSetAttribute", api->preference_set);
  find("cublasLtGetStatusName", api->status_name);
  find("cublasLtGetVersion", api->version);
  if (missing.empty()) return api;
  return absl::NotFoundError(absl::StrCat("expected ", file, " to have ", missing, ", it has none"));
}

}  // namespace

absl::StatusOr<const CublasLt*> LoadCublasLt(const std::string& directory) {
  static core::Mutex mutex;
  static std::map<std::string, std::unique_ptr<const CublasLt>> loaded;
  core::MutexLock lock(mutex);
  const std::string file = directory.empty() ? FileName() : absl::StrCat(directory, "/", FileName());
  auto& api = loaded[file];
  if (api == nullptr) {
    ASSIGN_OR_RETURN(api, Load(file));
  }
  return api.get();
}

}  // namespace causeway::worker
