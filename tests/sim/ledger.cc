#include "tests/sim/ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "codecs/chunk_plan.h"
#include "codecs/compression.h"
#include "core/check.h"
#include "core/model_manifest.h"

namespace causeway::sim {
namespace {

constexpr core::Version kAnchors = 12;

// The bytes without compression, by the first unit.
absl::StatusOr<std::pair<int64_t, std::string>> Expand(std::string chunk) {
  ASSIGN_OR_RETURN(std::string expanded, codecs::ExpandChunk(std::move(chunk)));
  ASSIGN_OR_RETURN(const codecs::ChunkView view, codecs::ChunkView::Parse(expanded));
  return std::pair(view.span().first_unit, std::move(expanded));
}

}  // namespace

void Ledger::Begin(const core::SyntheticConfig& model) {
  const core::Manifest manifest = core::SyntheticManifest(model);
  map_ = *core::BuildFragmentMap(manifest, config_.sync);
  states_.clear();
  anchors_.clear();
  for (const core::Fragment& fragment : map_->fragments()) {
    core::FragmentState& state = states_.emplace_back();
    state.anchor.resize(fragment.padded_values());
    state.momentum.resize(fragment.padded_values());
    if (config_.codec.feedback_down > 0) state.residual.resize(fragment.padded_values());
    for (const core::TensorPlace& place : fragment.tensors) {
      const auto values =
          std::span(state.anchor).subspan(place.first_unit * core::kUnitValues, manifest[place.tensor].NumValues());
      std::ranges::fill(values, model.tensors[place.tensor].init);
    }
    anchors_[{fragment.id, 0}] = state.anchor;
  }
}

void Ledger::ReadTheta(const std::string& life, const replica::UnitRanges& ranges, std::span<const float> theta) {
  if (!map_) return;
  for (const core::Fragment& fragment : map_->fragments()) {
    if (replica::RangesOf(fragment) == ranges) return residuals_.Read(life, fragment.id, theta);
  }
}

std::string Ledger::SentUp(const v1::UploadHeader& header, const std::string& life, const std::string& sending,
                           std::string chunk) {
  const core::SiteId& site = header.context().site();
  auto expanded = Expand(std::move(chunk));
  if (!expanded.ok()) return absl::StrCat("a chunk of ", site, " is damaged: ", expanded.status().ToString());
  Chunks& chunks = sent_[{header.fragment(), header.base_version(), site}][sending];
  const auto [known, is_new] = chunks.emplace(expanded->first, expanded->second);
  if (is_new && IsWhole(header.fragment(), chunks)) {
    const auto anchor = anchors_.find({header.fragment(), header.base_version()});
    if (anchor == anchors_.end()) {
      residuals_.Lose(site, header.fragment());
      return "";
    }
    return residuals_.Sent(life, site, map_->fragment(header.fragment()), anchor->second, chunks);
  }
  if (is_new || known->second == expanded->second) return "";
  return absl::StrCat("fragment ", header.fragment(), " base ", header.base_version(), " of ", site, ", unit ",
                      expanded->first, ": it sends other bytes than at its first attempt");
}

void Ledger::Merged(core::FragmentId fragment, const v1::DownloadHeader& header) {
  if (map_) updates_[{fragment, header.version()}].header = header;
}

std::string Ledger::SentDown(core::FragmentId fragment, core::Version version, std::string chunk) {
  auto expanded = Expand(std::move(chunk));
  if (!expanded.ok())
    return absl::StrCat("a chunk of version ", version, " is damaged: ", expanded.status().ToString());
  const auto [known, is_new] = updates_[{fragment, version}].chunks.insert(*std::move(expanded));
  if (is_new || known->second == expanded->second) return "";
  return absl::StrCat("fragment ", fragment, " version ", version, ", unit ", expanded->first,
                      ": the update's bytes differ from before");
}

std::string Ledger::Digest(core::FragmentId fragment, core::Version version, uint64_t digest) {
  if (!map_) return "";
  updates_[{fragment, version}].digest = digest;
  return Advance(fragment);
}

std::string Ledger::Advance(core::FragmentId fragment) {
  while (true) {
    const core::FragmentState& state = states_[static_cast<size_t>(fragment)];
    const auto next = updates_.find({fragment, state.version + 1});
    if (next == updates_.end() || !next->second.header || !next->second.digest) return "";
    if (std::string wrong = MergeOne(fragment, next->second); !wrong.empty()) return wrong;
    // Nothing refers to older ones. Chunks of the last versions may be fetched again; they are compared as they are.
    const core::Version old = states_[static_cast<size_t>(fragment)].version - kAnchors;
    updates_.erase(updates_.lower_bound({fragment, 0}), updates_.upper_bound({fragment, old}));
    sent_.erase(sent_.lower_bound({fragment, 0, ""}), sent_.lower_bound({fragment, old, ""}));
  }
}

bool Ledger::IsWhole(core::FragmentId fragment, const Chunks& chunks) const {
  return chunks.size() == codecs::PlanChunks(map_->fragment(fragment), codecs::UpLeg(config_)).size();
}

std::string Ledger::MergeOne(core::FragmentId fragment, const Update& update) {
  const v1::DownloadHeader& header = *update.header;
  std::vector<std::vector<const Chunks*>> choices{{}};
  for (int i = 0; i < header.merged_size(); ++i) {
    std::vector<std::vector<const Chunks*>> longer;
    for (const auto& [name, sending] : sent_[{fragment, header.merged_bases(i), header.merged(i)}]) {
      if (!IsWhole(fragment, sending)) continue;
      for (std::vector<const Chunks*> choice : choices) {
        choice.push_back(&sending);
        longer.push_back(std::move(choice));
      }
    }
    if (longer.empty()) {
      return absl::StrCat("fragment ", fragment, " version ", header.version(), " merges ", header.merged(i),
                          "'s base ", header.merged_bases(i), ", of which not all was sent");
    }
    choices = std::move(longer);
  }
  for (const std::vector<const Chunks*>& choice : choices) {
    Result result = Merge(fragment, header, choice);
    if (result.digest != *update.digest) continue;
    for (const auto& [unit, chunk] : update.chunks) {
      if (result.chunks[unit] == chunk) continue;
      return absl::StrCat("fragment ", fragment, " version ", header.version(), ", unit ", unit,
                          ": the update has other bytes than the merge of what was sent");
    }
    anchors_[{fragment, header.version()}] = result.state.anchor;
    anchors_.erase({fragment, header.version() - kAnchors});
    states_[static_cast<size_t>(fragment)] = std::move(result.state);
    ++verified_;
    return "";
  }
  return absl::StrCat("fragment ", fragment, " version ", header.version(),
                      ": the anchor's digest is not that of the merge of what was sent");
}

Ledger::Result Ledger::Merge(core::FragmentId fragment, const v1::DownloadHeader& header,
                             const std::vector<const Chunks*>& chosen) const {
  const core::Fragment& planned = map_->fragment(fragment);
  Result result{.state = states_[static_cast<size_t>(fragment)], .chunks = {}, .digest = 0};
  std::vector<std::vector<codecs::ChunkView>> views;
  for (const Chunks* chunks : chosen) {
    auto& of_site = views.emplace_back();
    for (const auto& [unit, chunk] : *chunks) of_site.push_back(*codecs::ChunkView::Parse(chunk));
  }
  std::vector<server::MergeInput> inputs;
  for (int i = 0; i < header.merged_size(); ++i) {
    inputs.push_back({header.merged(i), static_cast<float>(header.merged_weights(i)), views[static_cast<size_t>(i)]});
  }
  codecs::LegCodec down = codecs::DownLeg(config_);
  if (config_.codec.sparse_down()) down = down.With(core::SparseDown(config_.codec.up, header.merged_size()));
  const server::MergeSettings settings{.outer = {.lr = header.outer_lr(), .momentum = header.outer_momentum()},
                                       .down = down,
                                       .feedback_down = config_.codec.feedback_down,
                                       .zstd = false,
                                       .rule = config_.membership.merge,
                                       .threads = nullptr};
  result.digest = server::Merge(planned, inputs, settings, result.state, [&](std::string chunk) {
                    result.chunks.insert(*Expand(std::move(chunk)));
                  }).digest;
  return result;
}

}  // namespace causeway::sim
