// The codecs that are not made of blocks. GetCodec (codecs/codec.h) hands them out.
#pragma once

#include "codecs/codec.h"

namespace causeway::codecs {

const Codec& Topk();
const Codec& OnebitAdamSign();

}  // namespace causeway::codecs
