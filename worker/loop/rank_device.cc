#include "worker/loop/rank_device.h"

#include <span>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

const char* DeviceKindName(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kProcessor: return "the processor";
    case DeviceKind::kFake: return "the fake device";
    case DeviceKind::kGpu: return "a GPU";
  }
  return "";
}

std::optional<int> GpuIndex(absl::string_view device, int visible, int local_rank) {
  int index = 0;
  if (device == "cuda" || device == "auto") return visible == 1 ? 0 : local_rank;
  if (absl::ConsumePrefix(&device, "cuda:") && absl::SimpleAtoi(device, &index) && index >= 0) return index;
  return std::nullopt;
}

absl::Status CheckSameKind(const TrainerRanks& ranks, DeviceKind mine) {
  if (ranks.world() == 1) return absl::OkStatus();
  std::vector<DeviceKind> kinds(static_cast<size_t>(ranks.world()));
  const Collectives::Ticket ticket =
      ranks.values->AllGather(BytesOf(std::span<const DeviceKind>(&mine, 1)), BytesOf(std::span(kinds)));
  RETURN_IF_ERROR(RankFailure(ranks.values->Await(ticket, TimeoutOf(ranks.timeout_s))));
  for (int rank = 1; rank < ranks.world(); ++rank) {
    if (kinds[rank] == kinds[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        ranks.values->NameOf(rank), ": expected ", DeviceKindName(kinds[0]), ", as rank 0 has, got ",
        DeviceKindName(kinds[rank]), ": the ranks of a site are on devices of one kind; --device names it on each"));
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
