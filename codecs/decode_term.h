// One term of a sum over several sites: the bytes of the same values from one site, and a weight.
#pragma once

#include <cstdint>

namespace causeway::codecs {

struct DecodeTerm {
  const uint8_t* scales = nullptr;  // scale of the first block
  const uint8_t* codes = nullptr;
  float weight = 0;
};

}  // namespace causeway::codecs
