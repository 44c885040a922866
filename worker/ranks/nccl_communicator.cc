#include "worker/ranks/nccl_communicator.h"

#include <dlfcn.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/thread.h"

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

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Make(const NcclApi& nccl, const NcclUniqueId& id,
                                                                         int rank, int world, GiveUp give_up,
                                                                         std::chrono::nanoseconds most_finalize) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(nccl, std::move(give_up), most_finalize));
  const absl::Status status =
      made->Call(absl::StrCat("joining ", world, " ranks as rank ", rank), [&](const NcclApi& api, NcclComm*) {
        NcclConfig config;
        return api.init_rank_config(&made->comm_, world, id, rank, &config);
      });
  if (!status.ok()) {
    made->Abort();
    return status;
  }
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  if (const absl::Status finalized = Finalize(); !finalized.ok()) {
    spdlog::warn("a group of ranks is aborted at its end: {}", std::string(finalized.message()));
    Abort();
    return;
  }
  nccl_.destroy(comm_);
}

absl::Status NcclCommunicator::Finalize() {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  return Settle("ending a group", nccl_.finalize(comm_), [&]() -> absl::Status {
    if (core::SystemClock().Now() - begin <= most_finalize_) return give_up_();
    return absl::DeadlineExceededError(absl::StrFormat("NCCL: ending a group took longer than %.1f s",
                                                       std::chrono::duration<double>(most_finalize_).count()));
  });
}

absl::Status NcclCommunicator::Call(absl::string_view name,
                                    const std::function<NcclResult(const NcclApi&, NcclComm*)>& call) {
  return Settle(name, call(nccl_, comm_), give_up_);
}

absl::Status NcclCommunicator::Settle(absl::string_view name, NcclResult result, const GiveUp& give_up) const {
  PollPause pause;
  while (result == NcclResult::kInProgress) {
    RETURN_IF_ERROR(give_up());
    core::SleepUntil(core::SystemClock().Now() + pause.Next());
    if (const NcclResult asked = nccl_.get_async_error(comm_, &result); asked != NcclResult::kSuccess) result = asked;
  }
  return ErrorOf(name, result);
}

absl::Status NcclCommunicator::AsyncError(absl::string_view name) const {
  NcclResult result = NcclResult::kSuccess;
  const NcclResult asked = nccl_.get_async_error(comm_, &result);
  return ErrorOf(name, asked == NcclResult::kSuccess ? result : asked);
}

absl::Status NcclCommunicator::ErrorOf(absl::string_view name, NcclResult result) const {
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return absl::OkStatus();
  std::string text = absl::StrCat("NCCL: ", name, " has failed: ", nccl_.get_error_string(result));
  const char* const last = nccl_.get_last_error == nullptr ? nullptr : nccl_.get_last_error(comm_);
  if (last != nullptr && *last != '\0') absl::StrAppend(&text, " (", last, ")");
  const bool of_others = result == NcclResult::kRemoteError || result == NcclResult::kSystemError;
  return of_others ? absl::UnavailableError(text) : absl::InternalError(text);
}

void NcclCommunicator::Abort() {
  if (comm_ != nullptr) nccl_.abort(comm_);
  comm_ = nullptr;
}

}  // namespace causeway::worker
