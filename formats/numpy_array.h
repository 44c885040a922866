// The header of a file of numpy.save: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
//
//   | 93 N U M P Y | version | length | {'descr': '<u2', 'fortran_order': False, 'shape': (3000,), } | values |
//
// The values are tokens as they lie there, so that they are mapped like those of a .bin. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace causeway::formats {

struct NumpyArray {
  std::span<const std::byte> values;  // little-endian
  int64_t width = 0;                  // bytes of a value: 1, 2, 4 or 8
  bool is_signed = false;
};

// An array of whole numbers, of any shape, row after row. INVALID_ARGUMENT names the type of another one.
absl::StatusOr<NumpyArray> ReadNumpyArray(const std::string& path, std::span<const std::byte> file);

}  // namespace causeway::formats
