// merge: server::Merge of one fragment against a copy of the same memory, timed in pairs one after the other.
//
//   Merge    decode-add of all sites, encode for the way back with feedback, outer step, digest:   W, v, ē in and out
//   ceiling  memcpy of 12 bytes a value: 24 bytes a value in and out
//
// Contributions and the update come on top and count against the merge. Codecs of topk's family have an update with
// room for what all contributions hold, and no momentum. Adding up what was sent is timed on its own, too, on one
// thread. Each turn is a copy and a merge on one thread, then on two, and so on; ratios are made within a turn. Prints
// a JSON line for each number of threads.

#include "server/merge/merge.h"

#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "codecs/chunk.h"
#include "core/check.h"
#include "core/random.h"
#include "server/merge/contribution.h"
#include "tests/bench/bench_run/bench_run.h"

namespace causeway::bench {
namespace {

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

// A fragment of one tensor, what the sites send, and the coordinator's state.
struct Case {
  core::FragmentMap map;
  std::vector<Encoded> encoded;
  std::vector<server::MergeInput> inputs;
  server::MergeSettings settings;
  core::FragmentState state;
};

Case MakeCase(core::CodecId codec, int64_t values, size_t sites, float feedback) {
  Case made;
  made.map = core::FragmentMap({{"w", {values}, core::TensorKind::kMatrix, 0}}, {{0}});
  const core::Fragment& fragment = made.map.fragment(0);
  const codecs::LegCodec leg{.codec = codec, .exempt = {}, .run_seed = 1};
  for (size_t i = 0; i < sites; ++i) made.encoded.push_back(Encode(fragment, leg, i + 1));
  for (size_t i = 0; i < sites; ++i) {
    made.inputs.push_back({absl::StrCat("site-", i), 1.0f / static_cast<float>(sites), made.encoded[i].views});
  }
  const bool sparse = core::TopkEntries(codec) > 0;
  made.settings = {.outer = {.lr = sparse ? 1.0f : 0.7f, .momentum = sparse ? 0.0f : 0.9f},
                   .down = sparse ? leg.With(core::SparseDown(codec, static_cast<int64_t>(sites))) : leg,
                   .feedback_down = feedback};
  if (Given<bool>("radial")) made.settings.rule = core::MergeRule::kRadialDirectional;
  for (core::AlignedFloats* array : {&made.state.anchor, &made.state.momentum, &made.state.residual}) {
    if (array != &made.state.residual || feedback > 0) array->resize(fragment.padded_values());
  }
  Fill(0, 0.02f, made.state.anchor);
  return made;
}

// With one number of threads, in seconds, a copy and a merge in each turn.
struct Timed {
  explicit Timed(int count) : threads(count) {}

  core::ThreadTeam threads;
  std::vector<double> copies, merges, first_chunks;
  int64_t update_bytes = 0;
};

// One copy; on several threads in pieces, so that one which loses its core for a moment does not hold up the others.
double TimeCopy(const core::AlignedFloats& from, core::AlignedFloats& to, core::ThreadTeam& threads) {
  const auto values = static_cast<int64_t>(from.size());
  const int64_t pieces = threads.threads() == 1 ? 1 : 4 * threads.threads();
  const Clock::time_point begin = Clock::now();
  threads.RunInOrder(
      pieces,
      [&](int, int64_t piece) {
        const int64_t first = values * piece / pieces, end = values * (piece + 1) / pieces;
        std::memcpy(&to[first], &from[first], (end - first) * sizeof(float));
      },
      [](int64_t) {});
  return SecondsSince(begin);
}

void TimeMerge(Case& of, Timed& timed) {
  of.settings.threads = &timed.threads;
  std::vector<std::string> update;
  double first_chunk = 0;
  const Clock::time_point begin = Clock::now();
  server::Merge(of.map.fragment(0), of.inputs, of.settings, of.state, [&](std::string chunk) {
    if (update.empty()) first_chunk = SecondsSince(begin);
    update.push_back(std::move(chunk));
  });
  timed.merges.push_back(SecondsSince(begin));
  timed.first_chunks.push_back(first_chunk);
  timed.update_bytes = 0;
  for (const std::string& chunk : update) timed.update_bytes += static_cast<int64_t>(chunk.size());
}

// Σ λ d of all contributions, tile by tile into a buffer that stays in the cache, as a merge does first.
double TimeSum(const Case& of) {
  std::vector<server::ContributionReader> readers;
  std::vector<float> weights;
  for (const server::MergeInput& input : of.inputs) {
    readers.emplace_back(input.chunks);
    weights.push_back(input.weight);
  }
  core::AlignedFloats sum(server::kTileValues);
  const core::Fragment& fragment = of.map.fragment(0);
  const Clock::time_point begin = Clock::now();
  for (int64_t unit = 0; unit < fragment.units; unit += server::kTileUnits) {
    const server::Tile tile = server::TileAt(0, fragment.tensors[0].values, unit);
    server::DecodeSum(tile, readers, weights, std::span<float>(sum).first(tile.values_in_blocks()));
  }
  return SecondsSince(begin);
}

// The median over turns of a / b.
double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return Median(ratios);
}

absl::Status Run() {
  const auto codec = core::CodecFromName(Given<std::string>("codec"));
  if (!codec) return absl::InvalidArgumentError("--codec: no such codec");
  const int64_t values = Given<int64_t>("values");
  const int sites = Given<int>("sites");
  const auto feedback = static_cast<float>(Given<double>("feedback"));
  Case merged = MakeCase(*codec, values, sites, feedback);
  core::AlignedFloats from(3 * values, 1.0f), to(3 * values, 2.0f);
  std::deque<Timed> timed;
  std::vector<double> sums;
  for (int threads = 1; threads <= Given<int>("threads"); ++threads) timed.emplace_back(threads);
  for (int i = 0; i <= Given<int>("pairs"); ++i) {
    for (Timed& with : timed) {
      with.copies.push_back(TimeCopy(from, to, with.threads));
      if (to[static_cast<size_t>(i)] != 1.0f)
        return absl::InternalError("the copy is wrong");  // so that the copy is not left out
      TimeMerge(merged, with);
    }
    sums.push_back(TimeSum(merged));
    if (i > 0) continue;  // the first touches fresh memory
    for (Timed& with : timed) with.copies = with.merges = with.first_chunks = {};
  }
  int64_t sent_bytes = 0;  // by all sites
  for (const Encoded& encoded : merged.encoded) {
    for (const std::string& chunk : encoded.chunks) sent_bytes += static_cast<int64_t>(chunk.size());
  }
  for (const Timed& with : timed) {
    const double scaling = MedianRatio(timed.front().merges, with.merges);
    const double copy_scaling = MedianRatio(timed.front().copies, with.copies);
    Print({{"codec", Given<std::string>("codec")},
           {"threads", with.threads.threads()},
           {"target", codecs::TargetName(codecs::ActiveTarget())},
           {"sites", sites},
           {"values", values},
           {"feedback", feedback},
           {"radial", Given<bool>("radial")},
           {"pairs", with.merges.size()},
           {"copy_gigabytes_per_s", 24e-9 * static_cast<double>(values) / Median(with.copies)},
           {"merge_seconds", Median(with.merges)},
           {"sum_seconds", Median(sums)},
           {"sent_bytes", sent_bytes},
           {"first_chunk_share", MedianRatio(with.first_chunks, with.merges)},
           {"update_bytes", with.update_bytes},
           {"ratio", MedianRatio(with.copies, with.merges)},
           {"scaling", scaling},
           {"copy_scaling", copy_scaling},
           {"scaling_ratio", scaling / copy_scaling}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MergeOfSites() { return Run(); }
}  // namespace causeway::bench
