#include "core/data_fingerprint.h"

#include "absl/strings/str_cat.h"
#include "core/digest.h"

namespace causeway::core {

std::string FingerprintText(const DataFingerprint& data) {
  std::string tokens = absl::StrCat(data.tokens);
  const int sign = data.tokens < 0 ? 1 : 0;
  for (int at = static_cast<int>(tokens.size()) - 3; at > sign; at -= 3) tokens.insert(tokens.begin() + at, ',');
  return absl::StrCat(tokens, data.tokens == 1 ? " token" : " tokens", ", fingerprint ", DigestText(data.digest));
}

}  // namespace causeway::core
