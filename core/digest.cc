#include "core/digest.h"

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/layout.h"
#include "core/xxh3.h"

namespace causeway::core {

uint64_t DigestUnits(std::span<const float> values, int64_t first_unit) {
  CHECK(values.size() % kUnitValues == 0);
  uint64_t sum = 0;
  for (size_t at = 0; at < values.size(); at += kUnitValues) {
    const uint64_t unit = first_unit + at / kUnitValues;
    sum += Xxh3(&values[at], kUnitValues * sizeof(float), unit);
  }
  return sum;
}

std::string DigestText(uint64_t digest) { return absl::StrFormat("%016x", digest); }

}  // namespace causeway::core
