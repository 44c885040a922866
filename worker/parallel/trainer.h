// The worker's interface to the inner loop of a site: a model that takes one step at a time.
//
//   data ─► Step(t): forward, backward, clip, inner optimizer ─► θ in store() ◄─► worker/site (anchors, mixing)
//
// θ are the float32 master parameters. Between two steps the sync may read and move them through store(); the trainer
// rereads them in each step. The inner optimizer's state stays inside and no sync resets it (docs/trainer.md).
//
// One owner thread calls everything.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data_fingerprint.h"
#include "core/ids.h"
#include "core/manifest.h"
#include "core/membership.h"
#include "core/progress.h"
#include "core/run_config.h"
#include "formats/file_digest.h"
#include "offload/bus_schedule.h"
#include "replica/parameter_store.h"
#include "worker/data/evaluation.h"
#include "worker/optimizer/inner_optimizer.h"
#include "worker/parallel/layout.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

struct StepResult {
  double loss = 0;     // mean over the batch, nats per token; NaN where the model has none (synthetic)
  int64_t tokens = 0;  // trained on in this step
};

// Combines all ranks' steps into the site's: tokens summed, losses averaged in the order of the ranks.
StepResult ResultOf(const std::vector<RankStep>& ranks);

class Trainer {
 public:
  virtual ~Trainer() = default;

  virtual const core::Manifest& manifest() const = 0;

  // θ, for the sync. It reads and moves θ as it is after the last step, even if a trainer defers its steps.
  virtual replica::ParameterStore& store() = 0;

  // θ of tensor i of the manifest in place, without padding and without deferred steps.
  virtual std::span<float> tensor(int i) = 0;

  // Pieces of tensor i on the ranks of the site, in their order; empty: every rank holds everything. A piece is read
  // from the first rank that has it.
  virtual std::vector<Piece> pieces(int /*tensor*/) const { return {}; }

  // OK, or why this site has no initial values for a run: it can take part once another site has supplied them.
  virtual absl::Status initial_values() const { return absl::OkStatus(); }

  // The run's settings have changed: those of the learning rate hold from the next step on.
  virtual void Change(const core::RunConfig& config) {
    if (optimizer() != nullptr) optimizer()->rate().Change(config);
  }

  // With run.tokens, before each step: the run's tokens, with this step's, at which the schedule of the learning rate
  // stands. It stays there until the next call.
  virtual void MoveSchedule(int64_t run_tokens) {
    if (optimizer() != nullptr) optimizer()->rate().MoveTo(run_tokens);
  }

  // Takes inner step t, counted from 1; a joiner begins at a later one. A step that fails leaves θ untouched:
  //   DATA_LOSS         a gradient is not finite: "gradient of model.norm.weight is nan at index 17 in step 12"
  //   INVALID_ARGUMENT  the data is too small for the sites that share it
  virtual absl::StatusOr<StepResult> Step(core::Step t) = 0;

  virtual InnerOptimizer* optimizer() const { return nullptr; }  // null: it has none with state
  // How the inner optimizer's state is updated, and how long that takes; none if unknown.
  std::optional<core::OffloadProgress> offload_progress() const {
    return optimizer() == nullptr ? std::nullopt : optimizer()->progress();
  }
  // The last update of state that a device's host keeps, whose end is known by now; 0: none.
  double last_update_s() const { return optimizer() == nullptr ? 0 : optimizer()->last_update_s(); }

  // The ranks of this trainer's site, and their speeds.
  virtual core::RankProgress rank_progress() const { return {}; }
  virtual bool stop_requested() const { return false; }  // on any of the ranks

  // The data that it trains and evaluates on; empty for a model without data.
  virtual core::SiteData data() const { return {}; }

  // Sets the sites that share the data from the next step on, including this one. Any order.
  virtual void SetSites(const std::vector<core::SiteId>& names) = 0;

  // Gathers the other ranks' state at rank 0, which will save it; every rank calls it. INTERNAL: a rank has failed.
  virtual absl::Status GatherState() { return absl::OkStatus(); }

  // θ and the inner optimizer, to a file of safetensors and back: with them the following steps are the same to the
  // last bit. Save returns the digest of the file. Load: INVALID_ARGUMENT or DATA_LOSS names what does not fit.
  virtual absl::StatusOr<formats::FileDigest> Save(const std::string& path) = 0;
  virtual absl::Status Load(const std::string& path) = 0;

  // Measures the loss of any values of these tensors on held-out data, with buffers of its own, so that it may run on
  // another thread than Step. Null where the model has no loss or the run holds no data out.
  virtual std::unique_ptr<Evaluator> NewEvaluator() const { return nullptr; }

 protected:
  // Schedules changes of θ: the store announces here which values of the last step are still to be read, and no step
  // changes them before that.
  offload::BusSchedule& bus() { return bus_; }

 private:
  offload::BusSchedule bus_;
};

// The files and ranks of a trainer on its machine.
struct TrainerFiles {
  std::string data_path;         // not read for a synthetic model
  std::string held_out_path;     // text to evaluate on, where each site has its own data; empty: the tail of the data
  std::string calibration_path;  // the machine's bandwidths (offload/calibration.h); empty: measured each time
  TrainerRanks ranks;
  std::string pipeline_path;  // a schedule's file, which makes the ranks a pipeline; empty: they are data parallel
  std::string trace_path;     // where rank 0 of a pipeline writes the times of operations; empty: nowhere
  std::string levels_path;    // the site's link levels, for inner.partition; empty: one level of all ranks
};

// INVALID_ARGUMENT where the site's ranks cannot share its rows evenly.
absl::Status CheckRows(const core::RunConfig& config, const core::SiteId& site, int world);

// Makes the trainer that the run's config requires, on the CPU. INVALID_ARGUMENT for data or an initial model that does
// not fit; NOT_FOUND and the like from reading files.
absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(const core::RunConfig& config, const core::SiteId& site,
                                                     const TrainerFiles& files);

}  // namespace causeway::worker
