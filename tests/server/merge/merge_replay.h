// Rounds for the merge's tests, and what docs/architecture.md makes of them: the merge written a second time, value by
// value over whole tensors, without tiles, on the codecs' second writing (tests/codecs/by_specification.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codecs/chunk.h"
#include "server/merge/merge.h"

namespace causeway::server {

inline const std::vector<int64_t> kSizes = {5, 20'000, 4096, 4097};  // tiles of 4 units end inside and at tensors' ends

// One tensor of each size; `kinds` is as long as `sizes`, or empty: matrices.
core::Fragment MakeFragment(const std::vector<int64_t>& sizes = kSizes,
                            const std::vector<core::TensorKind>& kinds = {});

// A leg whose rotation has a seed.
codecs::LegCodec Leg(core::CodecId codec, std::vector<core::TensorKind> exempt = {});

// Uniform in [−scale, scale), padding zero.
std::vector<float> RandomPadded(const core::Fragment& fragment, uint64_t seed, double scale);

// Anchor, momentum and, with feedback, a residual, which is in the down codec's domain.
FragmentState RandomState(const core::Fragment& fragment, const MergeSettings& settings);

// Contributions that own their bytes, from sites "a", "b", …
struct Round {
  codecs::LegCodec up;
  std::vector<std::vector<std::string>> chunks;
  std::vector<std::vector<codecs::ChunkView>> views;
  std::vector<MergeInput> inputs;
};

// Contributions of the sites "a", "b", …, padded as in the fragment, and w_m; `units_per_chunk` 0 takes the plan of
// PlanChunks.
Round MakeRoundOf(const core::Fragment& fragment, const std::vector<std::vector<float>>& steps,
                  const std::vector<double>& weights, const codecs::LegCodec& up, int64_t units_per_chunk = 0);

// Random steps, of weights 1, 2, …
Round MakeRound(const core::Fragment& fragment, int sites, const codecs::LegCodec& up, int64_t units_per_chunk = 0);

struct Result {
  FragmentState state;
  std::vector<std::string> chunks;
  uint64_t digest = 0;
  StepProducts products;
  std::vector<double> cosines;
};

// Merges the round into RandomState.
Result RunMerge(const core::Fragment& fragment, const Round& round, const MergeSettings& settings);

std::vector<codecs::ChunkView> ParseAll(const std::vector<std::string>& chunks);
std::vector<float> DecodeAll(const std::vector<codecs::ChunkView>& views, int64_t padded_values);

// A tensor in a contribution, in its codec's domain: whole blocks if that rotates.
std::vector<float> DecodeInDomain(const core::TensorPlace& tensor, const MergeInput& input);

void ExpectEqualsReplay(const core::Fragment& fragment, const Round& round, const MergeSettings& settings,
                        const Result& result);

}  // namespace causeway::server
