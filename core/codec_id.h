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
  kTopk = 10,
  kOnebitAdamSign = 11,  // up leg only, for comparison
};

inline constexpr CodecId kAllCodecs[] = {CodecId::kFloat32,     CodecId::kBfloat16,      CodecId::kInt8,
                                         CodecId::kInt4,        CodecId::kE3m0,          CodecId::kSign,
                                         CodecId::kRotatedSign, CodecId::kRotatedLm2,    CodecId::kRotatedLm4,
                                         CodecId::kTopk,        CodecId::kOnebitAdamSign};

const char* CodecName(CodecId codec);  // "int4"
std::optional<CodecId> CodecFromName(std::string_view name);
std::optional<CodecId> CodecFromNumber(int64_t number);
// Whether the codec encodes values after the randomized Hadamard transform (codecs/rotation.h). A residual survives a
// change of codec if both rotate, or neither does.
bool Rotates(CodecId codec);
// γ = ⟨x, x⟩ / ⟨Q(x), x⟩ of Gaussian values: a codec without feedback shrinks what it encodes, and the outer step with
// it, by this on average. 1 where a codec does not, or where what it drops depends on the values (topk).
float CodecGain(CodecId codec);
int CodeBits(CodecId codec);  // of each value's code, without scales; 0: topk, whose bits depend on density

std::string AllCodecNames();  // "float32, bfloat16, …": for error messages

}  // namespace causeway::core
