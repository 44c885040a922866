// Files or folders that a folder holds one after the other: 000001.segment, 000002.segment … Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace causeway::formats {

struct NumberedFiles {
  std::string folder;
  std::string extension;  // with its dot; empty: none

  std::string Path(int64_t number) const;
  std::vector<int64_t> Numbers()
      const;  // of those that are there, ascending; other names, such as 0042, count for nothing
};

}  // namespace causeway::formats
