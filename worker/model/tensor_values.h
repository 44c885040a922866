// Float32 values of every tensor of a manifest in one allocation: parameters, gradients, moments.
//
//   |model.embed_tokens.weight|layers.0.q_proj|layers.0.k_proj| …     back to back, in manifest order
//
// Addresses are stable for the object's life. Not synchronized: its users must coordinate their writes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/manifest.h"
#include "core/thread_team.h"
#include "offload/host_array.h"

namespace causeway::worker {

// Views of the values of all tensors, in manifest order, wherever they lie.
using Tensors = std::vector<std::span<const float>>;
using MutableTensors = std::vector<std::span<float>>;

class TensorValues {
 public:
  explicit TensorValues(const core::Manifest& manifest);  // all zero
  // Over memory of the manifest's size, which outlives the object.
  TensorValues(const core::Manifest& manifest, std::span<float> memory);
  TensorValues(TensorValues&&) = default;
  TensorValues& operator=(TensorValues&&) = default;

  int size() const { return static_cast<int>(spans_.size()); }
  std::span<float> operator[](int i) { return spans_[i]; }
  std::span<const float> operator[](int i) const { return spans_[i]; }

  Tensors View() const { return Tensors(spans_.begin(), spans_.end()); }
  const MutableTensors& MutableView() { return spans_; }
  std::span<const float> Flat() const { return flat_; }
  std::span<float> Flat() { return flat_; }                                // all of them, in order
  int64_t First(int i) const { return spans_[i].data() - Flat().data(); }  // where tensor i begins in them
  void Clear();                                                            // all zero again

 private:
  offload::HostArray values_;  // empty: memory of another owner
  std::span<float> flat_;
  MutableTensors spans_;
};

// The number of threads for work on this number of values.
int UpdateThreads(int64_t values);

// Fills `values` with normal numbers of mean 0 that are a function of (seed, name, index) alone, so that no tensor's
// start depends on another's, or on their order.
void FillNormal(uint64_t seed, const std::string& name, double stddev, std::span<float> values);
void FillNormal(uint64_t seed, const std::string& name, double stddev, std::span<float> values, core::ThreadTeam& team);

}  // namespace causeway::worker
