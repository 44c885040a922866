#include "worker/site/site_state.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/digest.h"

namespace causeway::worker {
namespace {

constexpr int kKeptRounds = 3;
constexpr double kMargin = 1.1;
constexpr double kMostWait = 3;         // times the duration of an update without the wait
constexpr double kNewestWeight = 0.05;  // weight of a step's time: about 20 steps to follow a change

}  // namespace

void SyncDelay::Stepped(double seconds) {
  step_s_ = step_s_ == 0 ? seconds : step_s_ + kNewestWeight * (seconds - step_s_);
}

SyncDelay::SyncDelay(core::Step sync_every, int num_fragments)
    : sync_every_(sync_every), kept_(static_cast<size_t>(kKeptRounds) * num_fragments) {}

void SyncDelay::Arrived(double latency_s, double waited_s) {
  const double wait_s = std::clamp(waited_s, 0.0, latency_s), transfer_s = latency_s - wait_s;
  times_.push_back(transfer_s + std::min(wait_s, kMostWait * transfer_s));
  if (times_.size() > kept_) times_.pop_front();
}

SyncDelay::Choice SyncDelay::Choose() const {
  const core::Step most = sync_every_ - 1;
  if (most < 1) return {most, "an update is needed at the step that it is sent in (sync_every 1)"};
  if (times_.empty() || step_s_ == 0) return {most, "nothing is measured yet: the longest there is"};
  const double longest = *std::ranges::max_element(times_);
  const double steps = std::ceil(kMargin * longest / step_s_) + 1;
  const std::string measured = absl::StrFormat("updates take %.0f ms, steps %.1f ms", longest * 1e3, step_s_ * 1e3);
  if (steps > static_cast<double>(most)) return {most, measured + ": the longest there is"};
  return {static_cast<core::Step>(steps), measured};
}

transport::HeldValues HeldValuesOf(core::Version version, const replica::ReplicaArrays& arrays) {
  constexpr size_t kPieceValues = (size_t{1} << 20) / sizeof(float);
  auto pieces = std::make_shared<std::vector<core::Bytes>>();
  for (std::span<const float> values : {arrays.anchor, arrays.momentum}) {
    while (!values.empty()) {
      const auto piece = values.first(std::min(values.size(), kPieceValues));
      pieces->emplace_back(std::string(reinterpret_cast<const char*>(piece.data()), piece.size_bytes()));
      values = values.subspan(piece.size());
    }
  }
  return {.version = version, .pieces = std::move(pieces)};
}

std::vector<core::HeldFragment> HeldFragmentsOf(const SiteCheckpoint& checkpoint) {
  std::vector<core::HeldFragment> held;
  for (size_t p = 0; p < checkpoint.arrays.size(); ++p) {
    const replica::ReplicaArrays& arrays = checkpoint.arrays[p];
    held.push_back({.fragment = static_cast<core::FragmentId>(p),
                    .held = {checkpoint.facts.fragments.at(p).version, core::DigestUnits(arrays.anchor, 0),
                             core::DigestUnits(arrays.momentum, 0)},
                    .before = std::nullopt,
                    .run_tokens = checkpoint.facts.fragments.at(p).run_tokens});
  }
  return held;
}

}  // namespace causeway::worker
