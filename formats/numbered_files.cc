#include "formats/numbered_files.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "formats/posix_file.h"

namespace causeway::formats {

std::string NumberedFiles::Path(int64_t number) const {
  return absl::StrFormat("%s/%06d%s", folder, number, extension);
}

std::vector<int64_t> NumberedFiles::Numbers() const {
  std::vector<int64_t> numbers;
  for (const std::string& name : NamesIn(folder).value_or(std::vector<std::string>())) {
    int64_t number = 0;
    const bool is_number = absl::SimpleAtoi(name.substr(0, name.find('.')), &number);
    if (is_number && Path(number) == absl::StrCat(folder, "/", name)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace causeway::formats
