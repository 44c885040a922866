#include "worker/site/held_state.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/digest.h"

namespace causeway::worker {

transport::HeldFragment HeldFragmentOf(core::FragmentId fragment, core::Version version,
                                       const replica::ReplicaArrays& arrays) {
  return {.fragment = fragment,
          .version = version,
          .anchor_digest = core::DigestUnits(arrays.anchor, 0),
          .momentum_digest = core::DigestUnits(arrays.momentum, 0)};
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

std::vector<transport::HeldFragment> HeldFragmentsOf(const SiteCheckpoint& checkpoint) {
  std::vector<transport::HeldFragment> held;
  for (size_t p = 0; p < checkpoint.arrays.size(); ++p) {
    held.push_back(HeldFragmentOf(static_cast<core::FragmentId>(p), checkpoint.facts.fragments.at(p).version,
                                  checkpoint.arrays[p]));
  }
  return held;
}

}  // namespace causeway::worker
