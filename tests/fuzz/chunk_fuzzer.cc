// Bytes from a peer, whatever they are: either they are refused and nothing changes, or they are a chunk that decodes
// without an error, to the same values in every version.
//
//   | mode | bytes |     mode 0: as they are; 1: a hash that fits; 2: what follows the header compressed, a hash that
//   fits;
//                        3: a header that fits, too, around scales and codes
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "codecs/chunk.h"
#include "codecs/chunk_layout.h"
#include "codecs/compression.h"
#include "core/check.h"
#include "core/limits.h"

namespace causeway::codecs {
namespace {

constexpr int64_t kMostDecoded =
    20'000;  // values; longer chunks are only checked, since decoding them again and again is slow
constexpr int64_t kMostWellFormed = 5000;
constexpr float kBefore = 0.5f;

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(
      a, b, {}, [](float x) { return std::bit_cast<uint32_t>(x); }, [](float x) { return std::bit_cast<uint32_t>(x); });
}

void Seal(std::string& bytes) { SealChunk(bytes.data(), std::ssize(bytes)); }

// | u8 codec | u8 flags | u16 values | u8 first unit | u64 rotation seed | scales and codes, over and over |
// Flags: 1 makes scales positive; 2 compresses.
std::string WellFormed(absl::string_view input) {
  constexpr size_t kHead = 13;
  if (input.size() < kHead) return "";
  const auto codec = core::kAllCodecs[LoadField<uint8_t>(input.data(), 0) % std::size(core::kAllCodecs)];
  const auto flags = LoadField<uint8_t>(input.data(), 1);
  const int64_t values = 1 + LoadField<uint16_t>(input.data(), 2) % kMostWellFormed;
  const ChunkLayout layout(codec, values);
  std::string bytes(layout.size, '\0');
  StoreField(bytes.data(), kMagicOffset, kChunkMagic);
  StoreField(bytes.data(), kCodecOffset, static_cast<uint8_t>(codec));
  StoreField<uint64_t>(bytes.data(), kFirstUnitOffset, LoadField<uint8_t>(input.data(), 4));
  StoreField<uint64_t>(bytes.data(), kValuesOffset, values);
  const auto seed = LoadField<uint64_t>(input.data(), 5);
  StoreField(bytes.data(), kRotationSeedOffset, GetCodec(codec).rotates() ? seed : 0);
  input.remove_prefix(kHead);
  size_t next = 0;
  const auto fill = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end && !input.empty(); ++i) bytes[i] = input[next++ % input.size()];
  };
  fill(layout.scales, layout.scales_end);
  for (int64_t i = layout.scales + 1; (flags & 1) != 0 && i < layout.scales_end; i += 2) bytes[i] &= 0x7f;
  fill(layout.codes, layout.codes_end);
  Seal(bytes);
  return (flags & 2) != 0 ? CompressChunk(std::move(bytes)) : bytes;
}

std::string BytesOf(absl::string_view input) {
  if (input.empty()) return "";
  const int mode = input[0] & 3;
  input.remove_prefix(1);
  if (mode == 3) return WellFormed(input);
  std::string bytes(input);
  if (mode == 0 || bytes.size() < static_cast<size_t>(kChunkHeaderBytes)) return bytes;
  if (mode == 2) {
    const std::string body = bytes.substr(kChunkHeaderBytes);
    bytes.resize(kChunkHeaderBytes + ZSTD_compressBound(body.size()));
    char* frame = bytes.data() + kChunkHeaderBytes;
    bytes.resize(kChunkHeaderBytes +
                 ZSTD_compress(frame, bytes.size() - kChunkHeaderBytes, body.data(), body.size(), 1));
  }
  Seal(bytes);
  return bytes;
}

// Each version decodes an accepted chunk from `first_unit` on to the same values.
void CheckVersions(const std::string& chunk, const ChunkSpan& span, std::span<const float> decoded) {
  for (Target target : kAllTargets) {
    if (!Supported(target)) continue;
    const Codec& codec = GetCodec(span.codec, target);
    const auto* scales = reinterpret_cast<const uint8_t*>(chunk.data()) + kChunkHeaderBytes;
    const auto* codes = scales + (codec.ScaleBytes(span.values) + 63) / 64 * 64;
    CHECK(codec.Validate(scales, codes, span.values).ok());
    std::vector<float> values(span.values);
    DecodeJob job = {.scales = scales, .codes = codes, .values = values.data(), .count = span.values};
    if (codec.rotates()) job.rotation = {span.rotation_seed, span.first_unit * core::kBlocksPerUnit};
    codec.Decode(job);
    CHECK(SameBits(values, decoded));
  }
}

void CheckDecoding(const std::string& chunk, const ChunkView& view) {
  const ChunkSpan& span = view.span();
  std::vector<float> decoded(span.values), sum(span.values, kBefore), in_domain(ResidualValues(span), 0.0f);
  view.Decode(span.first_unit, decoded);
  for (float value : decoded) CHECK(std::abs(value) < core::kMaxMagnitude);
  view.DecodeAdd(span.first_unit, 0.25f, sum);
  for (size_t i = 0; i < sum.size(); ++i) CHECK(sum[i] == std::fma(0.25f, decoded[i], kBefore));
  view.DecodeAddInDomain(span.first_unit, 1.0f, in_domain);
  for (float value : in_domain) CHECK(std::abs(value) < core::kMaxMagnitude);
  if (!view.rotates()) CHECK(std::ranges::equal(in_domain, decoded));
  const int64_t unit = span.units() / 2, begin = unit * core::kUnitValues;
  std::vector<float> part((span.values - begin + 1) / 2);
  view.Decode(span.first_unit + unit, part);
  CHECK(SameBits(part, std::span(decoded).subspan(begin, part.size())));
  CheckVersions(chunk, span, decoded);
}

// Takes what a peer sent as a merge does.
absl::Status Receive(const std::string& bytes, std::span<float> target) {
  const auto chunk = ExpandChunk(bytes);
  if (!chunk.ok()) return chunk.status();
  CHECK(std::ssize(*chunk) <= std::max<int64_t>(core::kMaxChunkBytes, std::ssize(bytes)));
  const auto view = ChunkView::Parse(*chunk);
  if (!view.ok()) return view.status();
  CHECK(ChunkBytes(view->span().codec, view->span().values) == std::ssize(*chunk));
  CHECK(*ExpandChunk(CompressChunk(*chunk)) == *chunk);
  if (view->span().values <= kMostDecoded) CheckDecoding(*chunk, *view);
  const int64_t count = std::min(std::ssize(target), view->span().values);
  view->DecodeAdd(view->span().first_unit, 1.0f, target.first(count));
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway::codecs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::codecs;
  const std::string bytes = BytesOf({reinterpret_cast<const char*>(data), size});
  std::vector<float> target(300, kBefore);
  if (Receive(bytes, target).ok()) return 0;
  CHECK(std::ranges::count(target, kBefore) == std::ssize(target));
  return 0;
}
