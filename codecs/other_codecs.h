// The codecs that are not made of blocks. GetCodec (codecs/codec.h) hands them out.
#pragma once

#include <memory>

#include "codecs/codec.h"

namespace causeway::codecs {

std::unique_ptr<Codec> MakeTopk(int entries, Target target);  // of topk's family, by core::TopkEntries
const Codec& OnebitAdamSign();

}  // namespace causeway::codecs
