// The representation of a tensor's values where it is trained. Everything except θ is float32.
//
//   an array of `dtype` ─► Load ─► float32 ─► (an operation) ─► Store ─► an array of `dtype`
//
// Rounding is to nearest, ties to even, as in PyTorch's conversions; values beyond the largest number become infinite.
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace causeway::core {

// The numbers are on the wire (proto/causeway/v1, TensorSpec.dtype).
enum class DType : uint8_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };

const char* DTypeName(DType dtype);  // "float32", "bfloat16", "float16"
std::optional<DType> DTypeFromName(std::string_view name);

int64_t BytesOf(DType dtype);  // bytes of one value

// Rounds each value to the nearest one of `dtype`, kept as float32.
void RoundTo(DType dtype, std::span<const float> values, std::span<float> rounded);

// Converts from and to an array of the same size in `dtype`, at any address. Load is exact, Store rounds.
void Load(DType dtype, const void* array, std::span<float> values);
void Store(DType dtype, std::span<const float> values, void* array);

}  // namespace causeway::core
