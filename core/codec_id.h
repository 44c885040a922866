// The codecs by their numbers on the wire, which are never reused (docs/wire_format.md), and their names in run.yaml.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace causeway::core {

enum class CodecId : uint8_t {
  kFloat32 = 1,
  kBfloat16 = 2,
  kInt8 = 3,
  kInt4 = 4,
  kE3m0 = 5,
  kSign = 6,
  kRotatedSign = 7,
  kRotatedLm2 = 8,
  kRotatedLm4 = 9,
  kTopk = 10,            // keeps 64 of each 4,096 values; kTopkN keeps N of them
  kOnebitAdamSign = 11,  // up leg only, for comparison
  kTopk32 = 12,
  kTopk128 = 13,
  kTopk256 = 14,
  kTopk512 = 15,
};

inline constexpr CodecId kAllCodecs[] = {
    CodecId::kFloat32, CodecId::kBfloat16,    CodecId::kInt8,       CodecId::kInt4,       CodecId::kE3m0,
    CodecId::kSign,    CodecId::kRotatedSign, CodecId::kRotatedLm2, CodecId::kRotatedLm4, CodecId::kTopk32,
    CodecId::kTopk,    CodecId::kTopk128,     CodecId::kTopk256,    CodecId::kTopk512,    CodecId::kOnebitAdamSign};
inline constexpr CodecId kTopkCodecs[] = {CodecId::kTopk32, CodecId::kTopk, CodecId::kTopk128, CodecId::kTopk256,
                                          CodecId::kTopk512};  // fewest entries first

const char* CodecName(CodecId codec);  // "int4"
std::optional<CodecId> CodecFromName(std::string_view name);
std::optional<CodecId> CodecFromNumber(int64_t number);
// Whether the codec encodes values after the randomized Hadamard transform (codecs/rotation.h). A residual survives a
// change of codec if both rotate, or neither does.
bool Rotates(CodecId codec);
// γ = ⟨x, x⟩ / ⟨Q(x), x⟩ of Gaussian values: a codec without feedback shrinks what it encodes, and the outer step with
// it, by this on average. 1 if a codec does not shrink, or drops a part that depends on the values (topk).
float CodecGain(CodecId codec);
// The bits of each value's code, without scales; 0: topk and its family, whose bits depend on density.
int CodeBits(CodecId codec);

// How many values of each unit a codec of topk's family keeps; 0: another codec.
constexpr int TopkEntries(CodecId codec) {
  switch (codec) {
    case CodecId::kTopk32: return 32;
    case CodecId::kTopk: return 64;
    case CodecId::kTopk128: return 128;
    case CodecId::kTopk256: return 256;
    case CodecId::kTopk512: return 512;
    default: return 0;
  }
}
// The smallest codec of topk's family with room for the entries of that number of contributions, or the largest.
CodecId SparseDown(CodecId up, int64_t contributions);

std::string AllCodecNames();  // "float32, bfloat16, …": for error messages

}  // namespace causeway::core
