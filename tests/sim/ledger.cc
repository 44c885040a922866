
#include "tests/sim/ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "codecs/chunk_plan.h"
#include "codecs/compression.h"
#include "codecs/error_feedback.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "core/outer_step.h"

namespace causeway::sim {

namespace {

constexpr size_t kReadings = 3;
constexpr size_t kPast = 8;

}  // namespace

void Residuals::Read(const std::string& life, core::FragmentId fragment, std::span<const float> theta) {
  Readings& readings = readings_[{life, fragment}];
  ++unmatched_[{life.substr(0, life.find('#')), fragment}];
  readings.last.push_back({readings.number++, Values(theta.begin(), theta.end())});
  if (readings.last.size() > kReadings) readings.last.pop_front();
}

bool Residuals::Fits(const core::Fragment& fragment, std::span<const float> anchor, const Reading& reading,
                     const Values& residual, const std::map<int64_t, std::string>& chunks, Values* next) {
  Values delta(reading.theta.size());
  for (const core::TensorPlace& place : fragment.tensors) {
    const auto first = static_cast<size_t>(place.first_unit * core::kUnitValues);
    const auto count = static_cast<size_t>(place.values);
    core::OuterGradient(anchor.subspan(first, count), std::span(reading.theta).subspan(first, count),
                        std::span(delta).subspan(first, count));
  }
  codecs::ErrorFeedback feedback(fragment.padded_values(), config_.codec.feedback_up, &pool_);
  if (!residual.empty()) feedback.Restore(residual);
  const auto encoded = feedback.Encode(codecs::PlanChunks(fragment, codecs::UpLeg(config_)), delta);
  if (!encoded.ok() || encoded->size() != chunks.size()) return false;
  if (!std::ranges::equal(*encoded, chunks, {}, {}, [](const auto& each) { return each.second; })) return false;
  next->assign(feedback.next_residual().begin(), feedback.next_residual().end());
  return true;
}

std::string Residuals::Sent(const std::string& life, const std::string& site, const core::Fragment& fragment,
                            std::span<const float> anchor, const std::map<int64_t, std::string>& chunks) {
  Readings& readings = readings_[{life, fragment.id}];
  std::deque<Values>& past = past_[{site, fragment.id}];
  // Others may have been made in between, or, of the first one, the initial parameters read.
  int64_t& unmatched = unmatched_[{site, fragment.id}];
  if (unmatched > (past.empty() ? 2 : 1)) Lose(site, fragment.id);
  for (auto reading = readings.last.rbegin(); reading != readings.last.rend(); ++reading) {
    if (reading->number <= readings.matched) break;
    // Where a codec is coarse several fit, and each leaves another residual behind.
    std::deque<Values> fitting;
    bool sure = true;
    for (size_t i = 0; i <= past.size(); ++i) {
      if (fitting.size() + 2 > kPast) {
        sure = false;
        break;
      }
      const Values residual = i < past.size() ? past[i] : Values();
      Values next;
      if (!Fits(fragment, anchor, *reading, residual, chunks, &next)) continue;
      for (const Values& values : {residual, next}) {
        if (std::ranges::count(fitting, values) == 0) fitting.push_back(values);
      }
    }
    if (fitting.empty()) continue;
    ++verified_;
    unmatched = 0;
    readings.matched = reading->number;
    if (!sure) Lose(site, fragment.id);
    for (const Values& values : past) {
      if (fitting.size() < kPast && std::ranges::count(fitting, values) == 0) fitting.push_back(values);
    }
    past = std::move(fitting);
    return "";
  }
  // Another contribution may have been made in between that was not heard of.
  if (lost_.contains({site, fragment.id}) || readings.matched < 0 || readings.number - 1 != readings.matched + 1)
    return "";
  return absl::StrCat("fragment ", fragment.id, " of ", life,
                      ": what was sent is not the outer gradient and a residual that the site may have");
}

int64_t WatchedStore::BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) {
  const int64_t ticket = store_.BeginRead(ranges, staging);
  reading_[ticket] = {ranges, staging};
  return ticket;
}

absl::Status WatchedStore::AwaitRead(int64_t ticket) {
  RETURN_IF_ERROR(store_.AwaitRead(ticket));
  const auto found = reading_.find(ticket);
  heard_(found->second.first, found->second.second);
  reading_.erase(found);
  return absl::OkStatus();
}

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
