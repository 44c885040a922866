// merge_run: server::Merge of one fragment against a copy of the same memory, timed in pairs one after the other.
//
//   Merge    decode-add of all sites, encode for the way back with feedback, outer step, digest:   W, v, ē in and out
//   ceiling  memcpy of 12 bytes a value: 24 bytes a value in and out
//
// Contributions and the update come on top and count against the merge. Prints one JSON line; one thread.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "codecs/chunk.h"
#include "core/check.h"
#include "core/random.h"
#include "ctl/program.h"
#include "nlohmann/json.hpp"
#include "server/merge/merge.h"

ABSL_FLAG(std::string, codec, "int4", "of both legs");
ABSL_FLAG(int, sites, 4, "that contribute");
ABSL_FLAG(int64_t, values, 1 << 24, "of the fragment");
ABSL_FLAG(int, pairs, 15, "copy and merge, one after the other");
ABSL_FLAG(double, feedback, 1, "of the way back; 0 = off");

namespace causeway::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void Fill(uint64_t seed, float amplitude, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = amplitude * (static_cast<float>(core::SplitMix64(seed * values.size() + i) >> 40) * 0x1p-23f - 1.0f);
  }
}

// A contribution's chunks, and what a merge reads of them.
struct Encoded {
  std::vector<std::string> chunks;
  std::vector<codecs::ChunkView> views;
};

Encoded Encode(const core::Fragment& fragment, const codecs::LegCodec& leg, uint64_t site) {
  Encoded encoded;
  std::vector<float> values(fragment.padded_values());
  Fill(site, 1e-3f, values);
  for (const codecs::ChunkSpan& span : codecs::PlanChunks(fragment, leg)) {
    auto chunk = codecs::EncodeChunk(span, std::span(values).subspan(span.first_value(), span.values), {});
    CHECK(chunk.ok());
    encoded.chunks.push_back(*std::move(chunk));
  }
  for (const std::string& chunk : encoded.chunks) encoded.views.push_back(*codecs::ChunkView::Parse(chunk));
  return encoded;
}

int Run() {
  const auto codec = core::CodecFromName(absl::GetFlag(FLAGS_codec));
  if (!codec) return ctl::Fail(ctl::kBadInput, absl::InvalidArgumentError("--codec: no such codec"));
  const int64_t values = absl::GetFlag(FLAGS_values);
  const core::FragmentMap map({{"w", {values}, core::TensorKind::kMatrix, 0}}, {{0}});
  const core::Fragment& fragment = map.fragment(0);
  const codecs::LegCodec leg{.codec = *codec, .exempt = {}, .run_seed = 1};
  const auto sites = static_cast<size_t>(absl::GetFlag(FLAGS_sites));
  std::vector<Encoded> encoded;
  for (size_t i = 0; i < sites; ++i) encoded.push_back(Encode(fragment, leg, i + 1));
  std::vector<server::MergeInput> inputs;
  for (size_t i = 0; i < sites; ++i) {
    inputs.push_back({absl::StrCat("site-", i), 1.0f / static_cast<float>(sites), encoded[i].views});
  }
  const auto feedback = static_cast<float>(absl::GetFlag(FLAGS_feedback));
  server::MergeSettings settings{.outer = {.lr = 0.7f, .momentum = 0.9f}, .down = leg, .feedback_down = feedback};
  core::FragmentState state;
  for (core::AlignedFloats* array : {&state.anchor, &state.momentum, &state.residual}) {
    if (array != &state.residual || feedback > 0) array->resize(fragment.padded_values());
  }
  Fill(0, 0.02f, state.anchor);

  const size_t copied = 3 * sizeof(float) * values;
  core::AlignedFloats from(3 * values, 1.0f), to(3 * values, 2.0f);
  std::vector<double> copies, merges, ratios;
  int64_t update_bytes = 0;
  for (int i = 0; i <= absl::GetFlag(FLAGS_pairs); ++i) {
    const Clock::time_point begin = Clock::now();
    std::memcpy(to.data(), from.data(), copied);
    const double copy = SecondsSince(begin);
    if (to[static_cast<size_t>(i)] != 1.0f) return ctl::kFailed;  // so that the copy is not left out
    std::vector<std::string> update;
    const Clock::time_point begin_merge = Clock::now();
    server::Merge(fragment, inputs, settings, state, [&](std::string chunk) { update.push_back(std::move(chunk)); });
    const double merge = SecondsSince(begin_merge);
    if (i == 0) continue;  // the first touches what nobody has touched
    update_bytes = 0;
    for (const std::string& chunk : update) update_bytes += static_cast<int64_t>(chunk.size());
    copies.push_back(copy);
    merges.push_back(merge);
    ratios.push_back(copy / merge);
  }
  const nlohmann::ordered_json row = {{"codec", absl::GetFlag(FLAGS_codec)},
                                      {"target", codecs::TargetName(codecs::ActiveTarget())},
                                      {"sites", sites},
                                      {"values", values},
                                      {"feedback", feedback},
                                      {"pairs", ratios.size()},
                                      {"copy_gigabytes_per_s", 24e-9 * static_cast<double>(values) / Median(copies)},
                                      {"merge_seconds", Median(merges)},
                                      {"update_bytes", update_bytes},
                                      {"ratio", Median(ratios)}};
  std::printf("%s\n", row.dump().c_str());
  return ctl::kDone;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  using namespace causeway;
  ctl::StartProgram(argc, argv, "merge_run --codec=int4 --sites=4\n");
  return bench::Run();
}
