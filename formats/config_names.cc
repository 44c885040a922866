#include "formats/config_names.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace causeway::formats {
namespace {

constexpr int64_t kMaxInterleave = 1'000'000;

absl::Status Expected(const std::string& expected, const std::string& got) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", expected, ", got ", got));
}

}  // namespace

absl::Status ReadInterleave(const std::string& text, core::OffloadConfig* offload) {
  for (const int64_t word : {core::kAutoInterleave, core::kAllOnCpu, core::kResident}) {
    if (text != core::InterleaveName(word)) continue;
    offload->k = word;
    return absl::OkStatus();
  }
  if (absl::SimpleAtoi(text, &offload->k) && offload->k >= 1 && offload->k <= kMaxInterleave) return absl::OkStatus();
  return Expected(absl::StrCat("auto | resident | cpu | 1 to ", kMaxInterleave), text);
}

absl::Status ReadShare(const std::string& text, core::OffloadConfig* offload) {
  double share = core::kAutoShare;
  if (text != core::ShareName(core::kAutoShare) && !(absl::SimpleAtod(text, &share) && share >= 0 && share <= 1)) {
    return Expected("auto | 0 to 1", text);
  }
  if (offload->k == core::kResident && share != core::kAutoShare) {
    return Expected("auto with offload.k: resident", text);
  }
  offload->resident_share = share;
  return absl::OkStatus();
}

}  // namespace causeway::formats
