// One training run of a whole setup in one process, and what it came to: M sites around a coordinator, or the same
// data in one data-parallel model to compare them with.
//
//   site thread m   batch ─► Step(t) ─► AfterStep(t) ─► …  ─► CompleteRounds        real trainer, real sync engine
//                               │ one at a time              │
//   one coordinator ◄───── LocalLink m ──────────────────────┘                      real rules, real merge
//                               ⋮
//   anchors of chosen rounds ─► loss on held-out text, the same windows in every run
//
// Only one site computes at any time, so a run needs one core and several runs can share a machine. Where updates are
// applied is decided by the schedule alone and merges add in the order of site names, so equal settings give equal
// bits. Two runs with the same seed, sites and data start from the same parameters and see the same batches, whatever
// their codecs: their losses may be compared in pairs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "tests/bench/bench_run/codec_probe.h"

namespace causeway::bench {

struct QualityOptions {
  core::RunConfig config;  // membership.min_sites is the number of sites; steps > 0
  std::string data_path;
  int64_t eval_windows = 2048;  // held-out sequences, evenly spaced; a multiple of kEvalRows
  int64_t tail_rounds = 4;      // the last rounds over which the tail loss is averaged
  int64_t curve_rounds = 0;     // the loss is taken each time after that number of rounds, too; 0: not
  std::string record_dir;       // empty: records nothing
  int64_t record_rounds = 4;    // how many, spread over the run
  // For runs whose codec is `auto`: the rounds for which every link is said to be without limit, and then for as many
  // next to nothing. 0: links say nothing.
  int64_t link_phase_rounds = 0;
};

inline constexpr int64_t kEvalRows = 32;  // sequences that are evaluated at once

struct QualityResult {
  bool diverged = false;  // a loss was not finite, or hopeless; `reason` says where
  std::string reason;
  int64_t parameters = 0;
  int64_t rounds = 0;                                   // that all fragments have made
  double loss_start = 0;                                // held-out loss, nats per token: of the initial parameters,
  double loss_half = 0;                                 // of the anchors after half of the rounds,
  double loss = 0;                                      // at the end,
  double loss_tail = 0;                                 // mean over the anchors of the last rounds
  std::vector<std::pair<core::Version, double>> curve;  // round and loss, in order; with curve_rounds
  double train_loss_end = 0;                            // mean over the last tenth of the steps of all sites
  int64_t up_bytes = 0;                                 // chunks of all contributions of one site
  int64_t down_bytes = 0;                               // chunks of all updates to one site
  LegFigures up;                                        // of the first site
  LegFigures down;
  double residual_norm = 0;  // of the first site, at the end
  double correlation = 0,
         amplification = 0;          // of the outer gradients, of the last rounds (server/status/outer_gradients.h)
  std::vector<std::string> digests;  // of the anchors at the end, by fragment
};

// INVALID_ARGUMENT for data that does not fit; whatever else fails is a defect. A run that diverges is a result.
absl::StatusOr<QualityResult> RunSites(const QualityOptions& options);

// One model, trained for config.steps steps with the same inner optimizer on the batches of all sites together.
// Losses at half of the steps, and for the tail each sync_every steps, as if there were rounds.
absl::StatusOr<QualityResult> RunDataParallel(const QualityOptions& options);

// Names of the quickstart's sites, as many as there are.
std::vector<core::SiteId> SiteNames(int count);

}  // namespace causeway::bench
