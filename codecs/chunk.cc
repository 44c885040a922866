#include "codecs/chunk.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "codecs/chunk_layout.h"
#include "codecs/chunk_writer.h"
#include "codecs/codec.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

int64_t PadTo64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t MaxUnitsPerChunk(core::CodecId codec) {
  int64_t units = 1;
  while (ChunkBytes(codec, (units + 1) * core::kUnitValues) <= core::kMaxChunkBytes) ++units;
  return units;
}

// d = fma(β, e, x) for a piece of a chunk; x itself without feedback.
CAUSEWAY_MULTIVERSION
void AddFeedback(float beta, const float* residual, const float* values, size_t count, float* sum) {
  for (size_t i = 0; i < count; ++i) sum[i] = std::fma(beta, residual[i], values[i]);
}

void MakeInput(std::span<const float> values, const ChunkFeedback& feedback, size_t begin, std::span<float> input) {
  if (feedback.beta > 0) {
    AddFeedback(feedback.beta, &feedback.residual[begin], &values[begin], input.size(), input.data());
  } else {
    std::copy_n(values.begin() + begin, input.size(), input.begin());
  }
}

// Calls visit(begin, input) with each unit's input; false from it ends the walk.
template <typename Visit>
void ForEachUnit(std::span<const float> values, const ChunkFeedback& feedback, Visit visit) {
  float unit[core::kUnitValues];
  for (size_t begin = 0; begin < values.size(); begin += core::kUnitValues) {
    const std::span<float> input(unit, std::min<size_t>(core::kUnitValues, values.size() - begin));
    MakeInput(values, feedback, begin, input);
    if (!visit(begin, std::span<const float>(input))) return;
  }
}

absl::Status CheckRange(std::span<const float> values, const ChunkFeedback& feedback) {
  absl::Status status = absl::OkStatus();
  ForEachUnit(values, feedback, [&](size_t begin, std::span<const float> input) {
    const std::optional<size_t> bad = FirstOutOfRange(input);
    if (!bad) return true;
    status = absl::InvalidArgumentError(
        absl::StrCat("value ", begin + *bad, " is ", input[*bad], "; expected a finite one below 2^100 in magnitude"));
    return false;
  });
  return status;
}

bool AllZero(absl::string_view bytes, int64_t begin, int64_t end) {
  return std::all_of(bytes.begin() + begin, bytes.begin() + end, [](char c) { return c == 0; });
}

template <typename... Parts>
absl::Status BadChunk(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("chunk: ", parts...));
}

// What the header says, once it says something possible; all sizes that follow from it fit 64 bits.
absl::StatusOr<ChunkSpan> ParseHeader(absl::string_view bytes) {
  if (bytes.size() < static_cast<size_t>(kChunkHeaderBytes)) {
    return BadChunk("expected at least ", kChunkHeaderBytes, " bytes, got ", bytes.size());
  }
  const char* header = bytes.data();
  const uint32_t magic = LoadField<uint32_t>(header, kMagicOffset);
  if (magic != kChunkMagic) {
    return BadChunk(absl::StrFormat("expected magic %08x (CWC1), got %08x", kChunkMagic, magic));
  }
  const uint8_t number = LoadField<uint8_t>(header, kCodecOffset);
  const std::optional<core::CodecId> codec = core::CodecFromNumber(number);
  if (!codec) return BadChunk("codec ", number, " is unknown; expected one of ", core::AllCodecNames());
  const uint64_t first_unit = LoadField<uint64_t>(header, kFirstUnitOffset);
  const uint64_t values = LoadField<uint64_t>(header, kValuesOffset);
  if (first_unit > core::kMaxParameters) {
    return BadChunk("expected a first unit of at most ", core::kMaxParameters, ", got ", first_unit);
  }
  if (values < 1 || values > core::kMaxParameters) {
    return BadChunk("expected 1 to ", core::kMaxParameters, " values, got ", values);
  }
  const uint64_t seed = LoadField<uint64_t>(header, kRotationSeedOffset);
  if (seed != 0)
    return BadChunk("codec ", core::CodecName(*codec), " does not rotate, but its rotation seed is ", seed);
  if (!AllZero(bytes, kReservedOffset, kFirstUnitOffset) || !AllZero(bytes, kTailOffset, kChunkHeaderBytes)) {
    return BadChunk("expected zeros in the reserved bytes of the header");
  }
  return ChunkSpan{*codec, static_cast<int64_t>(first_unit), static_cast<int64_t>(values)};
}

}  // namespace

ChunkLayout::ChunkLayout(core::CodecId id, int64_t values) {
  const Codec& codec = GetCodec(id);
  const int64_t blocks = core::BlocksFor(values);
  scales = kChunkHeaderBytes;
  scales_end = scales + blocks * codec.scale_bytes();
  codes = PadTo64(scales_end);
  codes_end = codes + blocks * codec.code_bytes();
  size = PadTo64(codes_end);
}

std::vector<ChunkSpan> PlanChunks(const core::Fragment& fragment, core::CodecId codec) {
  const int64_t most_units = MaxUnitsPerChunk(codec);
  std::vector<ChunkSpan> chunks;
  for (const core::TensorPlace& tensor : fragment.tensors) {
    for (int64_t unit = 0; unit < tensor.units(); unit += most_units) {
      const int64_t values = std::min(most_units * core::kUnitValues, tensor.values - unit * core::kUnitValues);
      chunks.push_back({codec, tensor.first_unit + unit, values});
    }
  }
  return chunks;
}

int64_t ChunkBytes(core::CodecId codec, int64_t values) { return ChunkLayout(codec, values).size; }

absl::StatusOr<std::string> EncodeChunk(const ChunkSpan& span, std::span<const float> values,
                                        const ChunkFeedback& feedback) {
  CHECK(static_cast<int64_t>(values.size()) == span.values);
  const bool with_feedback = feedback.beta > 0;
  CHECK(feedback.residual.size() == (with_feedback ? values.size() : 0));
  CHECK(feedback.next_residual.size() == feedback.residual.size());
  RETURN_IF_ERROR(CheckRange(values, feedback));  // before anything is written
  ChunkWriter writer(span, GainFor(feedback.beta));
  ForEachUnit(values, feedback, [&](size_t begin, std::span<const float> input) {
    float decoded[core::kUnitValues];
    writer.Append(input, std::span(decoded, input.size()));
    for (size_t i = 0; with_feedback && i < input.size(); ++i) {
      feedback.next_residual[begin + i] = input[i] - decoded[i];
    }
    return true;
  });
  return writer.Finish();
}

absl::StatusOr<ChunkView> ChunkView::Parse(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const ChunkSpan span, ParseHeader(bytes));
  const ChunkLayout layout(span.codec, span.values);
  if (static_cast<int64_t>(bytes.size()) != layout.size || layout.size > core::kMaxChunkBytes) {
    return BadChunk("expected ", layout.size, " bytes (at most ", core::kMaxChunkBytes, ") for ", span.values,
                    " values of ", core::CodecName(span.codec), ", got ", bytes.size());
  }
  const uint64_t hash = XXH3_64bits(bytes.data() + kMagicOffset, bytes.size() - kMagicOffset);
  const uint64_t expected = LoadField<uint64_t>(bytes.data(), kHashOffset);
  if (hash != expected) {
    return BadChunk(absl::StrFormat("its hash is %016x, but its bytes hash to %016x", expected, hash));
  }
  if (!AllZero(bytes, layout.scales_end, layout.codes) || !AllZero(bytes, layout.codes_end, layout.size)) {
    return BadChunk("expected zeros in the padding after scales and codes");
  }
  ChunkView view;
  view.span_ = span;
  view.scales_ = reinterpret_cast<const uint8_t*>(bytes.data()) + layout.scales;
  view.codes_ = reinterpret_cast<const uint8_t*>(bytes.data()) + layout.codes;
  const absl::Status content = GetCodec(span.codec).Validate(view.scales_, view.codes_, span.values);
  if (!content.ok()) return BadChunk(core::CodecName(span.codec), " ", content.message());
  return view;
}

void ChunkView::Decode(int64_t first_unit, std::span<float> values) const {
  const Codec& codec = GetCodec(span_.codec);
  const int64_t block = BlockOffset(first_unit, values.size());
  codec.Decode(scales_ + block * codec.scale_bytes(), codes_ + block * codec.code_bytes(), values);
}

void ChunkView::DecodeAdd(int64_t first_unit, float weight, std::span<float> sum) const {
  const Codec& codec = GetCodec(span_.codec);
  const int64_t block = BlockOffset(first_unit, sum.size());
  codec.DecodeAdd(scales_ + block * codec.scale_bytes(), codes_ + block * codec.code_bytes(), weight, sum);
}

int64_t ChunkView::BlockOffset(int64_t first_unit, int64_t values) const {
  const int64_t units = first_unit - span_.first_unit;
  CHECK(units >= 0 && units * core::kUnitValues + values <= span_.values);
  return units * core::kBlocksPerUnit;
}

}  // namespace causeway::codecs
