#include "worker/parallel/held_tensors.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "replica/host_store.h"

namespace causeway::worker {
namespace {

// Views as for the whole model, empty where a tensor is not held.
MutableTensors ViewsOf(size_t size, const std::vector<int>& held, TensorValues& values) {
  MutableTensors all(size);
  for (size_t i = 0; i < held.size(); ++i) all[static_cast<size_t>(held[i])] = values[static_cast<int>(i)];
  return all;
}

// The number of values of the head's gradient on this rank, where it is separate from the embedding's.
size_t TiedHeadValuesOnRank(const PipelinePlaces& places, int rank) {
  const std::vector<int>& held = places.held[static_cast<size_t>(rank)];
  const bool has = std::ranges::find(places.head_devices, rank / places.width) != places.head_devices.end();
  return has && !held.empty() && held.front() == 0 ? static_cast<size_t>(places.manifest[0].NumValues()) : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedTensors>> HeldTensors::Open(const plan::PipelineFile& file, PipelinePlaces places,
                                                                  const TrainerRanks& ranks) {
  std::unique_ptr<HeldTensors> tensors(new HeldTensors(std::move(places), ranks));
  RETURN_IF_ERROR(tensors->OpenExchange(file));
  return tensors;
}

std::unique_ptr<ShardedTensors> HeldTensors::Everywhere(const core::Manifest& manifest, const TrainerRanks& ranks) {
  std::vector<int> all(manifest.size()), everyone(static_cast<size_t>(ranks.world()));
  std::iota(all.begin(), all.end(), 0);
  std::iota(everyone.begin(), everyone.end(), 0);
  PipelinePlaces places{.manifest = manifest,
                        .width = ranks.world(),
                        .ranks = std::vector<std::vector<int>>(manifest.size(), everyone),
                        .held = std::vector<std::vector<int>>(everyone.size(), all),
                        .stages = {all}};
  auto tensors =
      Open({.schedule = {.devices = 1, .stages = 1, .place = {{0}}}, .width = ranks.world()}, std::move(places), ranks);
  CHECK(tensors.ok());  // no group is made
  return *std::move(tensors);
}

HeldTensors::HeldTensors(PipelinePlaces places, const TrainerRanks& ranks)
    : HeldTensors(places, ranks, OwnTensors(HeldManifest(places, ranks.rank())), std::nullopt) {}

HeldTensors::HeldTensors(PipelinePlaces places, const TrainerRanks& ranks, OwnTensors own,
                         std::optional<std::span<float>> tied_head)
    : ShardedTensors(places.manifest),
      ranks_(ranks),
      places_(std::move(places)),
      own_(std::move(own)),
      tied_head_(tied_head ? 0 : TiedHeadValuesOnRank(places_, ranks.rank())),
      held_views_(ViewsOf(places_.manifest.size(), held(), own_.weights)),
      sum_views_(ViewsOf(places_.manifest.size(), held(), own_.gradients)) {
  sum_views_.push_back(tied_head.value_or(tied_head_));
  weights_.assign(held_views_.begin(), held_views_.end());
  gradients_ = sum_views_;
}

absl::Status HeldTensors::OpenExchange(const plan::PipelineFile& file, GradientExchange::AddHead add_head) {
  ASSIGN_OR_RETURN(
      exchange_, GradientExchange::Open(ranks_, file, places_, sum_views_, own_.gradients.Flat(), std::move(add_head)));
  return absl::OkStatus();
}

std::vector<Piece> HeldTensors::own_pieces(int rank) const {
  std::vector<Piece> pieces;
  for (const int tensor : places_.held[static_cast<size_t>(rank)]) {
    pieces.push_back({OwnerOf(tensor), tensor, 0, manifest()[static_cast<size_t>(tensor)].NumValues()});
  }
  return pieces;
}

std::vector<Piece> HeldTensors::pieces(int tensor) const {
  const std::vector<int>& holders = places_.ranks[static_cast<size_t>(tensor)];
  std::vector<Piece> pieces;
  if (ranks_.devices == 1 && holders.size() == places_.held.size()) return pieces;
  for (const int rank : holders) {
    pieces.push_back({rank, tensor, 0, manifest()[static_cast<size_t>(tensor)].NumValues()});
  }
  return pieces;
}

SquareGroups HeldTensors::square_groups() const {
  SquareGroups groups{.groups = {}, .group_of = held()};
  for (size_t i = 0; i < manifest().size(); ++i) {
    groups.groups.push_back({OwnerOf(static_cast<int>(i)), absl::StrCat("gradient of ", manifest()[i].name)});
  }
  return groups;
}

void HeldTensors::ForEachRun(int tensor, int64_t first, int64_t count, const UseRun& use) {
  const std::span<float> values = held_views_[static_cast<size_t>(tensor)];
  if (!values.empty()) use(first, values.subspan(static_cast<size_t>(first), static_cast<size_t>(count)));
}

std::unique_ptr<replica::ParameterStore> HeldTensors::MakeStore(offload::BusSchedule* bus) {
  return std::make_unique<replica::HostStore>(held_views_, bus);
}

void HeldTensors::ClearGradients() {
  own_.gradients.Clear();
  std::ranges::fill(tied_head_, 0.0f);
}

int64_t HeldTensors::bytes() const {
  return static_cast<int64_t>(2 * own_.weights.Flat().size_bytes() + tied_head_.size() * sizeof(float));
}

}  // namespace causeway::worker
