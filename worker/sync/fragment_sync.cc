#include "worker/sync/fragment_sync.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "codecs/compression.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/limits.h"

namespace causeway::worker {

FragmentSync::FragmentSync(const core::FragmentMap& map, core::FragmentId id, const core::RunConfig& config,
                           std::vector<std::span<float>> tensors)
    : map_(map),
      id_(id),
      codec_config_(config.codec),
      up_(codecs::UpLeg(config)),
      down_(codecs::DownLeg(config)),
      tensors_(std::move(tensors)),
      anchor_(fragment().padded_values()),
      momentum_(fragment().padded_values()),
      staging_(fragment().padded_values()),
      feedback_(fragment().padded_values(), config.codec.feedback_up) {
  std::vector<int64_t> firsts = {0};
  for (std::span<float> tensor : tensors_) firsts.push_back(firsts.back() + std::ssize(tensor));
  for (const core::TensorPlace& place : fragment().tensors) firsts_.push_back(firsts[place.tensor]);
}

uint64_t FragmentSync::Digest() const { return core::DigestUnits(anchor_, 0); }

std::span<float> FragmentSync::PartOf(std::span<float> padded, const core::TensorPlace& place) const {
  return padded.subspan(place.first_unit * core::kUnitValues, place.values);
}

std::span<const float> FragmentSync::PartOf(std::span<const float> padded, const core::TensorPlace& place) const {
  return padded.subspan(place.first_unit * core::kUnitValues, place.values);
}

void FragmentSync::CopyLocal() {
  for (const Range& range : LocalRanges()) CopyLocal(range);
}

std::vector<FragmentSync::Range> FragmentSync::LocalRanges() const {
  std::vector<Range> ranges;
  for (size_t i = 0; i < firsts_.size(); ++i) ranges.push_back({firsts_[i], fragment().tensors[i].values});
  return ranges;
}

void FragmentSync::CopyLocal(const Range& piece) {
  const size_t i = std::ranges::upper_bound(firsts_, piece.first) - firsts_.begin() - 1;
  const core::TensorPlace& place = fragment().tensors[i];
  const int64_t first = piece.first - firsts_[i];
  std::copy_n(tensors_[place.tensor].begin() + first, piece.count, PartOf(std::span(staging_), place).begin() + first);
}

absl::Status FragmentSync::CheckFinite(std::span<const float> padded, const char* what) const {
  for (const core::TensorPlace& place : fragment().tensors) {
    const std::span<const float> values = PartOf(padded, place);
    const auto bad = std::ranges::find_if(values, [](float x) { return !(std::fabs(x) < core::kMaxMagnitude); });
    if (bad == values.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat(what, " of ", map_.manifest()[place.tensor].name, " is ", *bad,
                                                   " at index ", bad - values.begin(),
                                                   "; expected a finite value below 2^100"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FragmentSync::EncodeContribution() {
  // Padding is zero on both sides and stays so: W and θ have none.
  for (const core::TensorPlace& place : fragment().tensors) {
    const std::span<float> part = PartOf(std::span(staging_), place);
    core::OuterGradient(PartOf(std::span<const float>(anchor_), place), part, part);
  }
  const auto plan = codecs::PlanChunks(fragment(), up_.With(chosen_up_.value_or(up_.codec)));
  absl::StatusOr<std::vector<std::string>> chunks = feedback_.Encode(plan, staging_);
  if (!chunks.ok()) {
    RETURN_IF_ERROR(CheckFinite(staging_, "outer gradient"));  // names the tensor
    return chunks.status();
  }
  for (std::string& chunk : *chunks) {
    if (codec_config_.zstd) chunk = codecs::CompressChunk(std::move(chunk));
  }
  return chunks;
}

void FragmentSync::Resolve(bool merged) {
  if (!feedback_.pending()) return;
  if (merged) {
    feedback_.Admit();
  } else {
    feedback_.Refuse();
  }
}

absl::StatusOr<std::vector<std::string>> FragmentSync::EncodeInitial() {
  CopyLocal();
  RETURN_IF_ERROR(CheckFinite(staging_, "initial value"));
  std::vector<std::string> chunks;
  for (const codecs::ChunkSpan& span : codecs::PlanChunks(fragment(), codecs::Unencoded())) {
    const std::span<const float> values = std::span(staging_).subspan(span.first_value(), span.values);
    ASSIGN_OR_RETURN(std::string chunk, codecs::EncodeChunk(span, values, {}));
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

// Of the config's lists alone: the residual stays in their domain.
absl::Status FragmentSync::CheckCodecs(const ChosenCodecs& codecs) const {
  const auto check = [&](std::optional<core::CodecId> chosen, const std::vector<core::CodecId>& allowed,
                         core::CodecId otherwise, const char* leg) {
    if (!chosen || chosen == otherwise || std::ranges::count(allowed, *chosen) > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("fragment ", id_, ": expected a codec that the run's config allows ",
                                                   leg, ", got ", core::CodecName(*chosen)));
  };
  RETURN_IF_ERROR(check(codecs.down, codec_config_.allow_down, codec_config_.down, "down"));
  return check(codecs.up, codec_config_.allow_up, codec_config_.up, "up");
}

absl::StatusOr<FragmentSync::CheckedChunks> FragmentSync::Check(const codecs::LegCodec& leg,
                                                                std::span<const std::string> chunks) const {
  const std::vector<codecs::ChunkSpan> plan = codecs::PlanChunks(fragment(), leg);
  if (plan.size() != chunks.size()) {
    return absl::InvalidArgumentError(absl::StrCat("fragment ", id_, ": expected ", plan.size(), " chunks of ",
                                                   core::CodecName(leg.codec), ", got ", chunks.size()));
  }
  CheckedChunks checked;
  for (size_t i = 0; i < plan.size(); ++i) {
    const std::string* plain = &chunks[i];
    if (codecs::IsCompressed(*plain)) {
      ASSIGN_OR_RETURN(std::string expanded, codecs::ExpandChunk(*plain));
      plain = &checked.expanded.emplace_back(std::move(expanded));
    }
    ASSIGN_OR_RETURN(const codecs::ChunkView view, codecs::ChunkView::Parse(*plain));
    if (view.span() != plan[i]) {
      return absl::InvalidArgumentError(absl::StrCat("fragment ", id_, ", chunk ", i, ": expected ",
                                                     codecs::Describe(plan[i]), ", got ",
                                                     codecs::Describe(view.span())));
    }
    checked.views.push_back(view);
  }
  return checked;
}

void FragmentSync::Decode(const CheckedChunks& chunks, std::span<float> values) {
  for (const codecs::ChunkView& view : chunks.views) {
    view.Decode(view.span().first_unit, values.subspan(view.span().first_value(), view.span().values));
  }
}

absl::Status FragmentSync::TakeUpdate(const core::OuterParameters& outer, const std::vector<std::string>& chunks,
                                      const ChosenCodecs& codecs) {
  RETURN_IF_ERROR(CheckCodecs(codecs));
  ASSIGN_OR_RETURN(const CheckedChunks checked, Check(down_.With(codecs.down.value_or(down_.codec)), chunks));
  Decode(checked, staging_);
  core::OuterStep(outer, staging_, momentum_, anchor_);
  last_outer_ = outer;
  chosen_up_ = codecs.up;
  ++version_;
  return absl::OkStatus();
}

void FragmentSync::Mix(float alpha) {
  for (const core::TensorPlace& place : fragment().tensors) {
    core::MixAnchor(alpha, PartOf(std::span<const float>(anchor_), place), tensors_[place.tensor]);
  }
}

void FragmentSync::Rebase() {
  for (const core::TensorPlace& place : fragment().tensors) {
    core::Rebase(last_outer_, PartOf(std::span<const float>(staging_), place),
                 PartOf(std::span<const float>(momentum_), place), tensors_[place.tensor]);
  }
}

absl::Status FragmentSync::SetAnchor(core::Version version, const std::vector<std::string>& chunks, Local local,
                                     const ChosenCodecs& codecs) {
  RETURN_IF_ERROR(CheckCodecs(codecs));
  const std::span<const std::string> both(chunks);
  if (chunks.size() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("fragment ", id_,
                                                   ": expected as many chunks of the anchor as of the ",
                                                   "momentum, got ", chunks.size(), " in all"));
  }
  ASSIGN_OR_RETURN(const CheckedChunks anchor, Check(codecs::Unencoded(), both.first(chunks.size() / 2)));
  ASSIGN_OR_RETURN(const CheckedChunks momentum, Check(codecs::Unencoded(), both.last(chunks.size() / 2)));
  if (local == Local::kKeep) AddAnchorToLocal(-1);
  Decode(anchor, anchor_);
  Decode(momentum, momentum_);
  version_ = version;
  chosen_up_ = codecs.up;
  if (local == Local::kKeep) {
    AddAnchorToLocal(1);
    Resolve(/*merged=*/false);
  } else {
    feedback_.Reset();
  }
  return absl::OkStatus();
}

void FragmentSync::AddAnchorToLocal(float sign) {
  for (const core::TensorPlace& place : fragment().tensors) {
    const std::span<const float> anchor = PartOf(std::span<const float>(anchor_), place);
    const std::span<float> local = tensors_[place.tensor];
    for (size_t i = 0; i < local.size(); ++i) local[i] += sign * anchor[i];
  }
}

FragmentArrays FragmentSync::Arrays() const {
  return {.anchor = anchor_,
          .momentum = momentum_,
          .staging = staging_,
          .residual = feedback_.residual(),
          .next_residual = feedback_.next_residual(),
          .last_outer = last_outer_,
          .pending = feedback_.pending(),
          .up = chosen_up_};
}

void FragmentSync::Restore(core::Version version, const FragmentArrays& arrays) {
  version_ = version;
  std::ranges::copy(arrays.anchor, anchor_.begin());
  std::ranges::copy(arrays.momentum, momentum_.begin());
  std::ranges::copy(arrays.staging, staging_.begin());
  last_outer_ = arrays.last_outer;
  chosen_up_ = arrays.up;
  feedback_.Restore(arrays.residual);
  if (arrays.pending) feedback_.RestorePending(arrays.next_residual);
}

void FragmentSync::SetAnchorFromLocal() {
  CopyLocal();
  anchor_ = staging_;
  std::ranges::fill(momentum_, 0.0f);
  version_ = 0;
  chosen_up_.reset();
  feedback_.Reset();
}

void FragmentSync::CopyAnchorToLocal() { Mix(/*alpha=*/0.0f); }

}  // namespace causeway::worker
