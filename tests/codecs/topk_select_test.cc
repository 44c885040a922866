// Which values topk keeps: the fast choice against the reference.
#include "codecs/topk_select.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/codec_id.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

std::vector<float> Filled(int64_t count, auto value) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = value(i);
  return values;
}

TEST(TopkSelect, ByGroupsChoosesWhatTheReferenceChooses) {
  const std::vector<float> spread = UniformValues(4096, 1);
  const std::vector<std::vector<float>> units = {
      spread,
      Filled(4096, [&](int64_t i) { return std::round(4 * spread[i]); }),  // ties everywhere
      Filled(4096, [](int64_t) { return -1.0f; }),
      Filled(4096, [](int64_t) { return -0.0f; }),
      Filled(4096,
             [&](int64_t i) { return std::ldexp(spread[i], static_cast<int>(i % 250) - 149); }),  // denormals, too
      Filled(4096, [](int64_t i) { return i % 256 == 3 ? static_cast<float>(i) : 0.0f; }),        // all in one group
      Filled(4096, [](int64_t i) { return i < 700 ? static_cast<float>(i) : 0.0f; }),
      Filled(4095, [&](int64_t i) { return spread[i]; }),
      Filled(300, [&](int64_t i) { return spread[i]; }),
      Filled(1, [](int64_t) { return 2.0f; }),
      {}};
  for (const core::CodecId id : core::kTopkCodecs) {
    const int entries = core::TopkEntries(id);
    for (size_t unit = 0; unit < units.size(); ++unit) {
      EXPECT_EQ(SelectByGroups(units[unit], entries), SelectReference(units[unit], entries))
          << entries << " of unit " << unit;
    }
  }
}

}  // namespace
}  // namespace causeway::codecs
