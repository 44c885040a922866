#include "worker/ranks/nccl_communicator.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/thread.h"

namespace causeway::worker {

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
    return absl::DeadlineExceededError(absl::StrFormat("NCCL: ending a group is not done after %.1f s",
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
