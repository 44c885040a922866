#include "server/merge/work_items.h"

#include <algorithm>

namespace causeway::server {

WorkItems::WorkItems(std::span<const int64_t> units_of_source) {
  int64_t units_of_item = 0;
  for (size_t source = 0; source < units_of_source.size(); ++source) {
    for (int64_t unit = 0; unit < units_of_source[source]; unit += kItemUnits) {
      const int64_t units = std::min(kItemUnits, units_of_source[source] - unit);
      if (units_of_item > 0 && units_of_item + units > kItemUnits) {
        ends_.push_back(pieces_.size());
        units_of_item = 0;
      }
      pieces_.push_back({source, unit, units});
      units_of_item += units;
    }
  }
  if (!pieces_.empty()) ends_.push_back(pieces_.size());
}

std::span<const Piece> WorkItems::operator[](int64_t item) const {
  const size_t begin = item == 0 ? 0 : ends_[item - 1];
  return std::span(pieces_).subspan(begin, ends_[item] - begin);
}

}  // namespace causeway::server
