#include "server/run/seeding.h"

#include <malloc.h>

#include <algorithm>
#include <span>

#include "core/check.h"

namespace causeway::server {

std::shared_ptr<Contribution> Seeding::Part(const core::Fragment& fragment) {
  std::shared_ptr<Contribution>& part = parts_[fragment.id];
  if (part == nullptr) {
    part = std::make_shared<Contribution>(codecs::PlanChunks(fragment, codecs::Unencoded()));
  }
  return part;
}

int64_t Seeding::NumArrived() const {
  return std::ranges::count_if(parts_, [](const auto& part) { return part != nullptr && part->complete(); });
}

bool Seeding::IsWhole(const core::FragmentMap& map, const core::Shard& shard) const {
  return expects() && std::ranges::all_of(map.fragments(), [&](const core::Fragment& fragment) {
           const auto& part = parts_[fragment.id];
           return !shard.Owns(fragment.id) || (part != nullptr && part->complete());
         });
}

// All anchors before the rest: the uploads take as much memory as they do, and are freed by then.
std::vector<StartingFragment> DecodeSeed(const core::FragmentMap& map, std::vector<std::shared_ptr<Contribution>> parts,
                                         bool with_residual) {
  std::vector<StartingFragment> fragments(parts.size());
  for (size_t p = 0; p < parts.size(); ++p) {
    if (parts[p] == nullptr) continue;
    core::AlignedFloats& anchor = fragments[p].state.anchor;
    anchor.resize(map.fragment(static_cast<core::FragmentId>(p)).padded_values());
    for (const codecs::ChunkView& view : parts[p]->Views()) {
      view.Decode(view.span().first_unit, std::span(anchor).subspan(view.span().first_value(), view.span().values));
    }
    parts[p].reset();
  }
#if defined(__GLIBC__)
  malloc_trim(0);  // gRPC's receive buffers: nothing that large comes again
#endif
  for (StartingFragment& fragment : fragments) {
    fragment.state.momentum.resize(fragment.state.anchor.size());
    if (with_residual) fragment.state.residual.resize(fragment.state.anchor.size());
  }
  return fragments;
}

absl::Status SaveSeed(const core::FragmentMap& map, const core::Shard& shard, std::vector<StartingFragment>& fragments,
                      Journal& journal) {
  for (core::FragmentId p = 0; p < std::ssize(fragments); ++p) {
    if (!shard.Owns(p)) continue;
    fragments[p].digest = fragments[p].state.Digest();
    RETURN_IF_ERROR(journal.SaveSnapshot(p, fragments[p].state, fragments[p].digest));
  }
  return journal.Begin(RunRecordOf(map));
}

}  // namespace causeway::server
