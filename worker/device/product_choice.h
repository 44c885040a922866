// The algorithm of each matrix product on a device: the fastest of those that its library proposes, measured once.
//
//   a job ─► ProductShape ─► known? ─► its algorithm
//                            else measured, Fastest ─┘
//
// The choices are kept in the trainer's checkpoint: an algorithm has its own order of sums, so that a run which goes on
// takes the same again.
// Pure but for ProductChoices, which all backends of one device and library in a process share; it is thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/mutex.h"
#include "worker/device/compute_backend.h"

namespace causeway::worker {

// Products with equal shapes take the same algorithm.
struct ProductShape {
  struct Operand {
    int64_t stride = 0, step = 0, alignment = 0;
    bool transposed = false;
    ValueType type = ValueType::kFloat32;
    auto operator<=>(const Operand&) const = default;
  };

  int64_t m = 0, n = 0, k = 0, batch = 1;
  Operand a, b, c;
  bool adds = false, in_place = false;  // adds: β ≠ 0; in_place: the addend is C
  int64_t addend_alignment = 0;

  static ProductShape Of(const GemmJob& job);
  std::string Text() const;
  auto operator<=>(const ProductShape&) const = default;
};

// The largest power of two up to 256 that divides the address and the bytes from one row and one matrix to the next.
int64_t AlignmentOf(const void* data, int64_t stride_bytes, int64_t step_bytes);

// The index of the fastest algorithm, by the least of its times in ms; those without times are left out. An algorithm
// must be 2 % faster than the earlier ones, so that noise decides little. No times at all: 0, the library's own choice.
size_t Fastest(std::span<const std::vector<float>> times_ms);

class ProductChoices {
 public:
  // `of`: the device's name and the library's version.
  explicit ProductChoices(std::string of) : of_(std::move(of)) {}
  static std::shared_ptr<ProductChoices> Shared(const std::string& of);

  std::optional<std::string> Find(const ProductShape& shape) const;  // the bytes of an algorithm
  void Set(const ProductShape& shape, const std::string& algorithm);

  // The choices for a checkpoint; empty before the first one. Import prefers those of this device and library to ours.
  std::map<std::string, std::string> Export() const;
  void Import(const std::map<std::string, std::string>& exported);

 private:
  const std::string of_;
  mutable core::Mutex mutex_;
  std::map<std::string, std::string> algorithms_ ABSL_GUARDED_BY(mutex_);  // by the shape's text
};

}  // namespace causeway::worker
