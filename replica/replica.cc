#include "replica/replica.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "codecs/compression.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/limits.h"
#include "core/stamp.h"
#include "core/value_place.h"

namespace causeway::replica {
namespace {

constexpr int64_t kTileValues = 4 * core::kUnitValues;  // 64 KiB of each array: they stay in cache

// The outer step by one chunk of an update, tile by tile, so that g stays in cache, and W and v until they are
// digested. Adds the digests of the chunk's units. The step s goes to `step`, if that is not empty.
void StepBy(const core::OuterParameters& outer, const codecs::ChunkView& view, std::span<float> momentum,
            std::span<float> anchor, std::span<float> step, core::HeldVersion& digests) {
  const codecs::ChunkSpan& span = view.span();
  std::array<float, kTileValues> tile;
  for (int64_t at = 0; at < span.values; at += kTileValues) {
    const int64_t first = span.first_value() + at, count = std::min(kTileValues, span.values - at);
    const int64_t unit = first / core::kUnitValues, padded = core::UnitsFor(count) * core::kUnitValues;
    const std::span<float> gradient = step.empty() ? std::span(tile).first(count) : step.subspan(first, count);
    view.Decode(unit, gradient);
    core::OuterStep(outer, gradient, momentum.subspan(first, count), anchor.subspan(first, count));
    if (!step.empty()) core::OuterDirection(outer, momentum.subspan(first, count), gradient);
    digests.anchor_digest += core::DigestUnits(anchor.subspan(first, padded), unit);
    digests.momentum_digest += core::DigestUnits(momentum.subspan(first, padded), unit);
  }
}

}  // namespace

// ---- Chunks ----

absl::StatusOr<CheckedChunks> CheckChunks(const core::Fragment& fragment, const codecs::LegCodec& leg,
                                          std::span<const std::string> chunks) {
  const std::vector<codecs::ChunkSpan> plan = codecs::PlanChunks(fragment, leg);
  if (plan.size() != chunks.size()) {
    return absl::InvalidArgumentError(absl::StrCat("fragment ", fragment.id, ": expected ", plan.size(), " chunks of ",
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
      return absl::InvalidArgumentError(absl::StrCat("fragment ", fragment.id, ", chunk ", i, ": expected ",
                                                     codecs::Describe(plan[i]), ", got ",
                                                     codecs::Describe(view.span())));
    }
    checked.views.push_back(view);
  }
  return checked;
}

AnchorReader::AnchorReader(const core::Fragment& fragment, std::span<float> anchor, std::span<float> momentum)
    : fragment_(fragment),
      plan_(codecs::PlanChunks(fragment, codecs::Unencoded())),
      anchor_(anchor),
      momentum_(momentum) {}

absl::Status AnchorReader::Add(const std::string& chunk) {
  if (next_ == 2 * plan_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("fragment ", fragment_.id, ": expected ", 2 * plan_.size(),
                                                   " chunks of the anchor and the momentum, got more"));
  }
  const codecs::ChunkSpan& span = plan_[next_ % plan_.size()];
  const std::span<float> to = next_ < plan_.size() ? anchor_ : momentum_;
  ++next_;
  if (to.empty()) return absl::OkStatus();
  std::string expanded;
  const bool compressed = codecs::IsCompressed(chunk);
  if (compressed) {
    ASSIGN_OR_RETURN(expanded, codecs::ExpandChunk(chunk));
  }
  ASSIGN_OR_RETURN(const codecs::ChunkView view, codecs::ChunkView::Parse(compressed ? expanded : chunk));
  if (view.span() != span) {
    return absl::InvalidArgumentError(absl::StrCat("fragment ", fragment_.id, ", chunk ", next_ - 1, ": expected ",
                                                   codecs::Describe(span), ", got ", codecs::Describe(view.span())));
  }
  view.Decode(span.first_unit, to.subspan(span.first_value(), span.values));
  return absl::OkStatus();
}

absl::Status AnchorReader::Finish(uint64_t digest) const {
  if (next_ != 2 * plan_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("fragment ", fragment_.id, ": expected ", 2 * plan_.size(),
                                                   " chunks of the anchor and the momentum, got ", next_));
  }
  if (const uint64_t own = core::DigestUnits(anchor_, 0); own != digest) {
    return absl::InternalError(absl::StrCat("anchor of fragment ", fragment_.id, ": expected digest ",
                                            core::DigestText(digest), ", got ", core::DigestText(own)));
  }
  return absl::OkStatus();
}

// ---- Replica ----

Replica::Replica(const core::FragmentMap& map, core::FragmentId id, const core::RunConfig& config,
                 core::BufferPool* pool, std::vector<core::DType> dtypes)
    : map_(map),
      id_(id),
      dtypes_(std::move(dtypes)),
      codec_config_(config.codec),
      next_codec_config_(config.codec),
      up_(codecs::UpLeg(config)),
      down_(codecs::DownLeg(config)),
      pool_(pool),
      anchor_(fragment().padded_values()),
      momentum_(fragment().padded_values()),
      feedback_(fragment().padded_values(), config.codec.feedback_up, pool) {}

void Replica::Use(const core::CodecConfig& codec, const core::CodecConfig& next) {
  codec_config_ = codec;
  next_codec_config_ = next;
  up_ = up_.With(codec.up);
  down_ = down_.With(codec.down);
}

core::HeldFragment Replica::Held() const {
  if (held_) return *held_;
  return {.fragment = id_,
          .held = {version_, core::DigestUnits(anchor_, 0), core::DigestUnits(momentum_, 0)},
          .before = std::nullopt};
}

std::span<const float> PartOf(std::span<const float> padded, const core::TensorPlace& place) {
  return padded.subspan(place.first_unit * core::kUnitValues, place.values);
}

std::span<float> PartOf(std::span<float> padded, const core::TensorPlace& place) {
  return padded.subspan(place.first_unit * core::kUnitValues, place.values);
}

void Replica::ClearPadding(std::span<float> padded) const {
  for (const core::TensorPlace& place : fragment().tensors) {
    const int64_t first = place.first_unit * core::kUnitValues;
    const int64_t padding = place.units() * core::kUnitValues - place.values;
    std::ranges::fill(padded.subspan(first + place.values, padding), 0.0f);
  }
}

absl::Status Replica::CheckFinite(std::span<const float> padded, const char* what) const {
  for (const core::TensorPlace& place : fragment().tensors) {
    const std::span<const float> values = PartOf(padded, place);
    const auto bad = std::ranges::find_if(values, [](float x) { return !(std::fabs(x) < core::kMaxMagnitude); });
    if (bad == values.end()) continue;
    const core::ValuePlace where{map_.manifest()[place.tensor].name,
                                 place.begin_unit * core::kUnitValues + (bad - values.begin())};
    return core::WithPlace(
        absl::InvalidArgumentError(absl::StrCat(what, " of ", where.tensor, " is ", *bad, " at index ", where.index,
                                                "; expected a finite value below 2^100")),
        where);
  }
  return absl::OkStatus();
}

std::span<const float> Replica::OuterGradientAt(std::span<const float> theta, int64_t first,
                                                std::span<float> tile) const {
  const auto& tensors = fragment().tensors;
  const auto after = std::ranges::upper_bound(tensors, first / core::kUnitValues, {}, &core::TensorPlace::first_unit);
  const auto index = after - tensors.begin() - 1;
  const auto count = std::ssize(tile);
  const std::span<const float> anchor = std::span<const float>(anchor_).subspan(first, count);
  const core::DType dtype = dtypes_.empty() ? core::DType::kFloat32 : dtypes_[index];
  if (dtype == core::DType::kFloat32) {
    core::OuterGradient(anchor, theta.subspan(first, count), tile);
  } else {
    core::RoundTo(dtype, anchor, tile);
    core::OuterGradient(tile, theta.subspan(first, count), tile);
  }
  return tile;
}

absl::StatusOr<std::vector<core::Bytes>> Replica::EncodeContribution(std::span<const float> theta) {
  feedback_.SetBeta(codec_config_.feedback_up);
  const auto source = [&](int64_t first, std::span<float> tile) { return OuterGradientAt(theta, first, tile); };
  return Named(feedback_.Encode(codecs::PlanChunks(fragment(), up_.With(chosen_up_.value_or(up_.codec))), source),
               [&](std::span<float> staging) {
                 std::ranges::copy(theta, staging.begin());
                 return absl::OkStatus();
               });
}

absl::StatusOr<std::vector<core::Bytes>> Replica::EncodeKept(ThetaEncoder& encoder, int64_t ticket) {
  feedback_.SetBeta(codec_config_.feedback_up);
  bool begun = false;
  const auto encode = [&](const codecs::ChunkSpan& span, const codecs::EncodeJob& job) {
    if (!std::exchange(begun, true)) {
      RETURN_IF_ERROR(encoder.BeginEncode(ticket, {.anchor = anchor(),
                                                   .residual = feedback_.residual(),
                                                   .anchor_stamp = anchor_stamp_,
                                                   .residual_stamp = feedback_.residual_stamp(),
                                                   .next_stamp = feedback_.next_stamp()}));
    }
    return encoder.Encode(ticket, span.codec, job, span.first_value());
  };
  const auto allocate = [&](size_t bytes) { return encoder.ChunkMemory(bytes); };
  return Named(
      feedback_.EncodeBy(codecs::PlanChunks(fragment(), up_.With(chosen_up_.value_or(up_.codec))), allocate, encode),
      [&](std::span<float> staging) { return encoder.Read(ticket, staging); });
}

// Names the tensor of the value for which chunks were refused; compresses the others where the config says so.
absl::StatusOr<std::vector<core::Bytes>> Replica::Named(absl::StatusOr<std::vector<core::Bytes>> chunks,
                                                        absl::FunctionRef<absl::Status(std::span<float>)> read_theta) {
  if (absl::IsInvalidArgument(chunks.status())) {
    core::Buffer theta = pool_->Take(anchor_.size()), gradient = pool_->Take(anchor_.size());
    RETURN_IF_ERROR(read_theta(theta.values()));
    for (const core::TensorPlace& place : fragment().tensors) {
      OuterGradientAt(theta.values(), place.first_unit * core::kUnitValues, PartOf(gradient.values(), place));
    }
    RETURN_IF_ERROR(CheckFinite(gradient.values(), "outer gradient"));
  }
  if (!chunks.ok()) return chunks.status();
  for (core::Bytes& chunk : *chunks) {
    if (codec_config_.zstd) chunk = codecs::CompressChunk(std::string(chunk.begin(), chunk.end()));
  }
  return chunks;
}

void Replica::Resolve(bool merged) {
  if (!feedback_.pending()) return;
  if (merged) {
    feedback_.Admit();
  } else {
    feedback_.Refuse();
  }
}

void Replica::ForgetResidual() {
  feedback_.Reset();
  step_.buffer.Reset();
  staged_.reset();
}

absl::StatusOr<std::vector<core::Bytes>> Replica::EncodeInitial(std::span<const float> theta) const {
  RETURN_IF_ERROR(CheckFinite(theta, "initial value"));
  std::vector<core::Bytes> chunks;
  for (const codecs::ChunkSpan& span : codecs::PlanChunks(fragment(), codecs::Unencoded())) {
    ASSIGN_OR_RETURN(std::string chunk, codecs::EncodeChunk(span, theta.subspan(span.first_value(), span.values), {}));
    chunks.emplace_back(std::move(chunk));
  }
  return chunks;
}

// Accepts only codecs of the config's lists: the residual stays in their domain.
absl::Status Replica::CheckCodecs(const ChosenCodecs& codecs) const {
  const auto check = [&](std::optional<core::CodecId> chosen, const std::vector<core::CodecId>& allowed,
                         core::CodecId otherwise, const char* leg) {
    if (!chosen || chosen == otherwise || std::ranges::count(allowed, *chosen) > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("fragment ", id_, ": expected a codec that the run's config allows ",
                                                   leg, ", got ", core::CodecName(*chosen)));
  };
  RETURN_IF_ERROR(check(codecs.down, codec_config_.allow_down, codec_config_.down, "down"));
  return check(codecs.up, next_codec_config_.allow_up, next_codec_config_.up, "up");
}

absl::Status Replica::TakeUpdate(const core::OuterParameters& outer, std::span<const std::string> chunks,
                                 const ChosenCodecs& codecs, bool keep_step) {
  RETURN_IF_ERROR(CheckCodecs(codecs));
  ASSIGN_OR_RETURN(const CheckedChunks checked,
                   CheckChunks(fragment(), down_.With(codecs.down.value_or(down_.codec)), chunks));
  step_.buffer.Reset();  // θ did not move by it: θ does not follow W
  core::Buffer step;
  if (keep_step) {
    step = pool_->Take(anchor_.size());
    ClearPadding(step.values());
    step_.lr = outer.lr;
  }
  core::HeldVersion held{.version = version_ + 1};
  anchor_stamp_ = core::NewStamp();
  for (const codecs::ChunkView& view : checked.views) {
    const core::OuterParameters of_chunk = down_.OuterAt(fragment(), view.span().first_unit, outer);
    StepBy(of_chunk, view, momentum_, anchor_, step.values(), held);
    if (step.values().empty() || of_chunk.lr == outer.lr) continue;
    for (float& s : step.values().subspan(view.span().first_value(), view.span().values)) s *= of_chunk.lr / outer.lr;
  }
  held_ = core::HeldFragment{id_, held, held_ ? std::optional(held_->held) : std::nullopt};
  step_.buffer = std::move(step);
  chosen_up_ = codecs.up;
  ++version_;
  return absl::OkStatus();
}

absl::Status Replica::StageAnchor(core::Version version, std::span<const std::string> chunks,
                                  const ChosenCodecs& codecs, uint64_t digest) {
  RETURN_IF_ERROR(CheckCodecs(codecs));
  StagedAnchor staged{version, pool_->Take(anchor_.size()), pool_->Take(anchor_.size()), codecs.up};
  ClearPadding(staged.anchor.values());
  ClearPadding(staged.momentum.values());
  AnchorReader reader(fragment(), staged.anchor.values(), staged.momentum.values());
  for (const std::string& chunk : chunks) RETURN_IF_ERROR(reader.Add(chunk));
  RETURN_IF_ERROR(reader.Finish(digest));
  staged_ = std::move(staged);
  return absl::OkStatus();
}

void Replica::CommitAnchor(bool keep_residual) {
  CHECK(staged_.has_value());
  std::ranges::copy(staged_->anchor.values(), anchor_.begin());
  anchor_stamp_ = core::NewStamp();
  held_.reset();
  std::ranges::copy(staged_->momentum.values(), momentum_.begin());
  version_ = staged_->version;
  chosen_up_ = staged_->up;
  staged_.reset();
  step_.buffer.Reset();
  if (keep_residual) {
    Resolve(/*merged=*/false);
  } else {
    feedback_.Reset();
  }
}

// The residual is left alone: it is zero before the first contribution, and the task thread may read it.
void Replica::SetInitial(std::span<const float> theta) {
  std::ranges::copy(theta, anchor_.begin());
  ClearPadding(anchor_);
  anchor_stamp_ = core::NewStamp();
  held_.reset();
  std::ranges::fill(momentum_, 0.0f);
  version_ = 0;
  chosen_up_.reset();
}

ReplicaArrays Replica::Arrays() const {
  return {.anchor = anchor_,
          .momentum = momentum_,
          .step = step().values,
          .residual = feedback_.residual(),
          .next_residual = feedback_.next_residual(),
          .step_lr = step_.lr,
          .anchor_stamp = anchor_stamp_,
          .pending = feedback_.pending(),
          .up = chosen_up_};
}

absl::Status Replica::CheckSizes(const ReplicaArrays& arrays) const {
  const auto check = [&](const char* what, std::span<const float> values, size_t expected) {
    if (values.size() == expected) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(what, " of fragment ", id_, ": expected ", expected, " values, got ", values.size()));
  };
  const size_t all = anchor_.size(), residual = feedback_.residual().size();
  RETURN_IF_ERROR(check("anchor", arrays.anchor, all));
  RETURN_IF_ERROR(check("momentum", arrays.momentum, all));
  RETURN_IF_ERROR(check("step", arrays.step, arrays.step.empty() ? 0 : all));
  RETURN_IF_ERROR(check("residual", arrays.residual, residual));
  if (!arrays.pending) return absl::OkStatus();  // a checkpoint of format 1 has one that does not count
  return check("residual of an unresolved contribution", arrays.next_residual, residual);
}

absl::Status Replica::Restore(core::Version version, const ReplicaArrays& arrays) {
  feedback_.SetBeta(codec_config_.feedback_up);
  RETURN_IF_ERROR(CheckSizes(arrays));
  version_ = version;
  std::ranges::copy(arrays.anchor, anchor_.begin());
  anchor_stamp_ = core::NewStamp();
  held_.reset();
  std::ranges::copy(arrays.momentum, momentum_.begin());
  if (!arrays.step.empty()) {
    step_.buffer = pool_->Take(arrays.step.size());
    std::ranges::copy(arrays.step, step_.buffer.values().begin());
  }
  step_.lr = arrays.step_lr;
  chosen_up_ = arrays.up;
  feedback_.Restore(arrays.residual);
  if (arrays.pending) feedback_.RestorePending(arrays.next_residual);
  return absl::OkStatus();
}

}  // namespace causeway::replica
