#include "codecs/codec.h"

#include "codecs/block_codec.h"
#include "core/check.h"

namespace causeway::codecs {

const Codec& GetCodec(core::CodecId id) {
  switch (id) {
    case core::CodecId::kFloat32: return Float32();
    case core::CodecId::kBfloat16: return Bfloat16();
    case core::CodecId::kInt8: return Int8();
    case core::CodecId::kInt4: return Int4();
    case core::CodecId::kSign: return Sign();
  }
  CHECK(false && "a codec number that nobody checked");
  return Float32();
}

}  // namespace causeway::codecs
