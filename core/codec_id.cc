#include "core/codec_id.h"

#include <algorithm>
#include <iterator>

namespace causeway::core {

const char* CodecName(CodecId codec) {
  switch (codec) {
    case CodecId::kFloat32: return "float32";
    case CodecId::kBfloat16: return "bfloat16";
    case CodecId::kInt8: return "int8";
    case CodecId::kInt4: return "int4";
    case CodecId::kE3m0: return "e3m0";
    case CodecId::kSign: return "sign";
    case CodecId::kRotatedSign: return "rotated_sign";
    case CodecId::kRotatedLm2: return "rotated_lm2";
    case CodecId::kRotatedLm4: return "rotated_lm4";
    case CodecId::kTopk: return "topk";
    case CodecId::kTopk32: return "topk32";
    case CodecId::kTopk128: return "topk128";
    case CodecId::kTopk256: return "topk256";
    case CodecId::kTopk512: return "topk512";
    case CodecId::kOnebitAdamSign: return "onebit_adam_sign";
  }
  return "unknown";
}

std::optional<CodecId> CodecFromName(std::string_view name) {
  for (CodecId codec : kAllCodecs) {
    if (name == CodecName(codec)) return codec;
  }
  return std::nullopt;
}

std::optional<CodecId> CodecFromNumber(int64_t number) {
  for (CodecId codec : kAllCodecs) {
    if (number == static_cast<int64_t>(codec)) return codec;
  }
  return std::nullopt;
}

bool Rotates(CodecId codec) {
  return codec == CodecId::kRotatedSign || codec == CodecId::kRotatedLm2 || codec == CodecId::kRotatedLm4;
}

float CodecGain(CodecId codec) {
  switch (codec) {
    case CodecId::kSign:
    case CodecId::kRotatedSign: return 1.5707964f;     // π / 2: the scale is the mean magnitude
    case CodecId::kRotatedLm2: return 1.1331f;         // 1 / (1 − 0.1175), the distortion of 4 Lloyd-Max levels
    case CodecId::kRotatedLm4: return 1.0096f;         // 1 / (1 − 0.0095), of 16
    case CodecId::kE3m0: return 1.0352f;               // measured: its levels are far apart
    case CodecId::kOnebitAdamSign: return 1.2533141f;  // √(π / 2): the scale keeps the norm
    default: return 1;
  }
}

int CodeBits(CodecId codec) {
  switch (codec) {
    case CodecId::kFloat32: return 32;
    case CodecId::kBfloat16: return 16;
    case CodecId::kInt8: return 8;
    case CodecId::kInt4:
    case CodecId::kE3m0:
    case CodecId::kRotatedLm4: return 4;
    case CodecId::kRotatedLm2: return 2;
    case CodecId::kSign:
    case CodecId::kRotatedSign:
    case CodecId::kOnebitAdamSign: return 1;
    default: return 0;
  }
}

CodecId SparseDown(CodecId up, int64_t contributions) {
  const int64_t entries = TopkEntries(up) * contributions;
  const auto roomy = std::ranges::find_if(kTopkCodecs, [&](CodecId codec) { return TopkEntries(codec) >= entries; });
  return roomy != std::end(kTopkCodecs) ? *roomy : *std::rbegin(kTopkCodecs);
}

std::string AllCodecNames() {
  std::string names;
  for (CodecId codec : kAllCodecs) {
    if (!names.empty()) names += ", ";
    names += CodecName(codec);
  }
  return names;
}

}  // namespace causeway::core
