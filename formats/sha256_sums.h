// SHA256SUMS of a folder, as sha256sum writes and checks it: what was handed around is what was written.
//
//   9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  model.safetensors
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"

namespace causeway::formats {

// Reads these files of `dir`.
absl::Status WriteSha256Sums(const std::string& dir, const std::set<std::string>& names);
absl::Status RemoveSha256Sums(const std::string& dir);  // before what it speaks of is replaced

// OK where `dir` has no SHA256SUMS, or it says nothing of `name`. DATA_LOSS names the file and both digests.
absl::Status CheckSha256Sum(const std::string& dir, const std::string& name);

}  // namespace causeway::formats
