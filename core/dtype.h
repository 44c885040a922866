// How a tensor's values lie where it is trained. Everything beside θ is float32.
//
//   an array of `dtype` ─► Load ─► float32 ─► (what is to be done) ─► Store ─► an array of `dtype`
//
// Rounding is to nearest, ties to even, as PyTorch's conversions; what is beyond the largest number becomes infinite.
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

int64_t BytesOf(DType dtype);  // of a value

// Each value becomes the nearest one that `dtype` has, still as float32.
void RoundTo(DType dtype, std::span<const float> values, std::span<float> rounded);

// From and to an array in `dtype` of as many values, which may lie at any address. Load is exact, Store rounds.
void Load(DType dtype, const void* array, std::span<float> values);
void Store(DType dtype, std::span<const float> values, void* array);

}  // namespace causeway::core
