#include "formats/codec_advice.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "formats/steps_check.h"

namespace causeway::formats {
namespace {

using core::CodecId;

// For `auto`, judges the best codec that it may choose: the leg was not configured for the fallback on a slow link.
void AdviseLeg(const char* leg, CodecId chosen, const std::vector<CodecId>& allowed, float feedback,
               std::vector<std::string>& advice) {
  const CodecId codec = allowed.empty() ? chosen : allowed.front();
  const std::string what = absl::StrCat("codec.feedback_", leg, " is ", feedback, " with ", core::CodecName(codec));
  if ((codec == CodecId::kSign || codec == CodecId::kRotatedSign) && feedback > 0) {
    advice.push_back(absl::StrCat(what, ": at 1 bit 0 trains better (docs/codecs.md)"));
  }
  if (core::TopkEntries(codec) > 0 && feedback == 0) {
    advice.push_back(absl::StrCat(what, ": it drops most values, and without feedback they are lost; 1 keeps them"));
  }
}

}  // namespace

std::vector<std::string> CodecAdvice(const core::CodecConfig& codec) {
  std::vector<std::string> advice;
  AdviseLeg("up", codec.up, codec.allow_up, codec.feedback_up, advice);
  AdviseLeg("down", codec.down, codec.allow_down, codec.feedback_down, advice);
  if (!codec.exempt.empty() && (codec.up == CodecId::kFloat32 || codec.down == CodecId::kFloat32)) {
    advice.push_back(
        "codec.exempt lowers its kinds of tensors from float32 to bfloat16; leave it empty to keep all bits");
  }
  return advice;
}

std::vector<std::string> RunAdvice(const core::RunConfig& config) {
  std::vector<std::string> advice = CodecAdvice(config.codec);
  for (std::string& sentence : StepsAdvice(config)) advice.push_back(std::move(sentence));
  return advice;
}

}  // namespace causeway::formats
