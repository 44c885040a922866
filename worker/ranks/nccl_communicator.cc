#include "worker/ranks/nccl_communicator.h"

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/thread.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Make(const NcclApi& nccl, const NcclUniqueId& id,
                                                                         int rank, int world, GiveUp give_up) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(nccl, std::move(give_up)));
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
  if (comm_ != nullptr) nccl_.destroy(comm_);
}

absl::Status NcclCommunicator::Call(absl::string_view name,
                                    const std::function<NcclResult(const NcclApi&, NcclComm*)>& call) {
  return Settle(name, call(nccl_, comm_));
}

absl::Status NcclCommunicator::Settle(absl::string_view name, NcclResult result) const {
  PollPause pause;
  while (result == NcclResult::kInProgress) {
    RETURN_IF_ERROR(give_up_());
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
