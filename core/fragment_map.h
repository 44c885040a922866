// The map from tensors to fragments: which tensor is synced with which fragment, and where its values lie there.
//
//   fragment 0   |unit 0|unit 1|unit 2|unit 3|unit 4| …      one flat float32 array per fragment (W, v, ē, residual …)
//                |layers.0.q   |layers.0.norm|layers.0.k     a tensor starts on a new unit; padding is zero
//
// The coordinator builds the map from the first site's manifest and sends it to all sites; it is constant for a run.
// Immutable, thread-safe. Source: docs/architecture.md (assignment), docs/wire_format.md (layout).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/layout.h"
#include "core/manifest.h"

namespace causeway::core {

struct SyncConfig;  // core/run_config.h
enum class FragmentAssignment;

// The units of a tensor that a fragment has: all of them, or a run that ends where another part begins.
struct TensorPart {
  int tensor = 0;          // index in the manifest
  int64_t begin_unit = 0;  // first unit, counted in the tensor
  int64_t num_units = 0;   // 0: to the tensor's end

  bool whole() const { return begin_unit == 0 && num_units == 0; }
  friend bool operator==(const TensorPart&, const TensorPart&) = default;
};

// One tensor, or a part of it, in its fragment. [first_unit, first_unit + units) are its units there.
struct TensorPlace {
  int tensor = 0;  // index in the manifest
  int64_t first_unit = 0;
  int64_t values = 0;  // without padding
  TensorKind kind = TensorKind::kMatrix;
  int64_t begin_unit = 0;  // the unit of the tensor with which the place begins

  int64_t units() const { return UnitsFor(values); }
  friend bool operator==(const TensorPlace&, const TensorPlace&) = default;
};

struct Fragment {
  FragmentId id = 0;
  std::vector<TensorPlace> tensors;  // in manifest order, back to back
  int64_t units = 0;
  int64_t parameters = 0;

  int64_t padded_values() const { return units * kUnitValues; }
  friend bool operator==(const Fragment&, const Fragment&) = default;
};

class FragmentMap {
 public:
  FragmentMap() = default;

  // The tensor lists of all fragments, each in manifest order, decide everything else.
  FragmentMap(Manifest manifest, const std::vector<std::vector<int>>& tensors_of_fragment);
  static FragmentMap FromParts(Manifest manifest, const std::vector<std::vector<TensorPart>>& parts_of_fragment);

  std::vector<std::vector<TensorPart>> parts() const;  // parts from which the same map results

  const Manifest& manifest() const { return manifest_; }
  const std::vector<Fragment>& fragments() const { return fragments_; }
  const Fragment& fragment(FragmentId p) const { return fragments_[p]; }
  int num_fragments() const { return static_cast<int>(fragments_.size()); }

  friend bool operator==(const FragmentMap&, const FragmentMap&) = default;

 private:
  Manifest manifest_;
  std::vector<Fragment> fragments_;
};

// Assigns the synced tensors to fragments; tensors that are not synced have no place.
//   strided     layer i to fragment i mod P
//   sequential  runs of consecutive layers
//   balanced    largest tensor first into the lightest fragment
// With strided and sequential, tensors that belong to no layer (embeddings, head, final norm) form the last fragment
// and the layers share the others, unless P = 1 or there is no such tensor. Where sync.fragments lists prefixes of
// names, a tensor is in the fragment with the longest prefix of its name. Where sync.parts is n > 1, each of these P
// fragments is divided into n of equal size, to within a unit: fragment p becomes p n to p n + n - 1, and a tensor may
// be cut between two units. INVALID_ARGUMENT if a fragment would be empty, or names the tensor that no prefix matches.
absl::StatusOr<FragmentMap> BuildFragmentMap(const Manifest& manifest, const SyncConfig& sync);
absl::StatusOr<FragmentMap> BuildFragmentMap(const Manifest& manifest, int num_fragments,
                                             FragmentAssignment assignment);

}  // namespace causeway::core
