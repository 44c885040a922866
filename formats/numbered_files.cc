#include "formats/numbered_files.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace causeway::formats {

std::string NumberedFiles::Path(int64_t number) const {
  return absl::StrFormat("%s/%06d%s", folder, number, extension);
}

std::vector<int64_t> NumberedFiles::Numbers() const {
  std::vector<int64_t> numbers;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    int64_t number = 0;
    if (entry.path().extension() != extension) continue;
    if (absl::SimpleAtoi(entry.path().stem().string(), &number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace causeway::formats
