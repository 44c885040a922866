#include "worker/ranks/nccl_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/mutex.h"

namespace causeway::worker {
namespace {

// Each function of the table by its name in the library.
class Symbols {
 public:
  Symbols(void* library, const std::string& file) : library_(library), file_(file) {}

  template <typename Function>
  void Find(const char* name, Function*& function) {
    FindWhereItIs(name, function);
    if (function == nullptr && status_.ok()) {
      status_ = absl::NotFoundError(absl::StrCat(
          "NCCL: expected the symbol ", name, " in ", file_, ", found none: ", "this is no NCCL of version ",
          NcclVersionName(kFirstNcclVersion), " or later; set CAUSEWAY_NCCL to one"));
    }
  }
  template <typename Function>
  void FindWhereItIs(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
  }

  const absl::Status& status() const { return status_; }

 private:
  void* const library_;
  const std::string& file_;
  absl::Status status_;
};

absl::StatusOr<std::unique_ptr<const NcclApi>> Load(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return absl::NotFoundError(absl::StrCat("NCCL: cannot load ", file, ": ", reason == nullptr ? "no reason" : reason,
                                            "; install NCCL or set CAUSEWAY_NCCL to its file"));
  }
  auto api = std::make_unique<NcclApi>();
  Symbols symbols(library, file);
  symbols.Find("ncclGetVersion", api->get_version);
  symbols.Find("ncclGetUniqueId", api->get_unique_id);
  symbols.Find("ncclCommInitRankConfig", api->init_rank_config);
  symbols.Find("ncclCommGetAsyncError", api->get_async_error);
  symbols.Find("ncclCommAbort", api->abort);
  symbols.Find("ncclCommFinalize", api->finalize);
  symbols.Find("ncclCommDestroy", api->destroy);
  symbols.Find("ncclAllReduce", api->all_reduce);
  symbols.Find("ncclReduceScatter", api->reduce_scatter);
  symbols.Find("ncclAllGather", api->all_gather);
  symbols.Find("ncclBroadcast", api->broadcast);
  symbols.Find("ncclSend", api->send);
  symbols.Find("ncclRecv", api->receive);
  symbols.Find("ncclGroupStart", api->group_start);
  symbols.Find("ncclGroupEnd", api->group_end);
  symbols.Find("ncclGetErrorString", api->get_error_string);
  symbols.FindWhereItIs("ncclGetLastError", api->get_last_error);
  // A library before 2.14 lacks symbols as well; its version is more informative than their names.
  const bool has_version = api->get_version != nullptr;
  if (has_version && api->get_version(&api->version) != NcclResult::kSuccess) {
    return absl::InternalError(absl::StrCat("NCCL: ", file, " does not say its version"));
  }
  if (has_version && api->version < kFirstNcclVersion) {
    return absl::FailedPreconditionError(absl::StrCat("NCCL: expected version ", NcclVersionName(kFirstNcclVersion),
                                                      " or later, got ", NcclVersionName(api->version), " in ", file));
  }
  RETURN_IF_ERROR(symbols.status());
  api->file = file;
  return api;
}

}  // namespace

std::string NcclVersionName(int version) {
  const int major = version < 10000 ? 1000 : 10000;  // 2.8 was the last version in the shorter form
  return absl::StrCat(version / major, ".", version % major / 100, ".", version % 100);
}

std::string NcclFile() {
  const char* const file = std::getenv("CAUSEWAY_NCCL");
  return file == nullptr || *file == '\0' ? "libnccl.so.2" : file;
}

absl::StatusOr<const NcclApi*> LoadNccl(const std::string& file) {
  static core::Mutex& mutex = *new core::Mutex;
  static auto& loaded = *new std::map<std::string, std::unique_ptr<const NcclApi>>;
  core::MutexLock lock(mutex);
  std::unique_ptr<const NcclApi>& api = loaded[file];
  if (api == nullptr) {
    ASSIGN_OR_RETURN(api, Load(file));
  }
  return api.get();
}

}  // namespace causeway::worker
