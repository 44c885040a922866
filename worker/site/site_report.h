// A site's report to the coordinator, assembled from the trainer, the rules and the movers. Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/codec_id.h"
#include "core/limits.h"
#include "core/membership.h"
#include "core/progress.h"
#include "core/run_config.h"
#include "core/text.h"
#include "transport/coordinator_link.h"
#include "worker/site/site_rules.h"

namespace causeway::worker {

// The training loop's figures, which the coordinator shows.
struct TrainingReport {
  core::Step step = 0;
  int64_t tokens = 0;        // since the process started
  double loss = 0;           // the last step's loss
  std::optional<double> lr;  // the last step's learning rate
  double tokens_per_s = 0;
  double compute_s = 0;
  std::optional<core::OffloadProgress> offload;
};

// The bytes that crossed the link since the site was made: encoded contributions and updates, without retries.
struct ExchangeTotals {
  int64_t up_bytes = 0;
  int64_t down_bytes = 0;
  core::CodecId codec_up = core::CodecId::kFloat32;  // the codecs of the last contribution, and of the last update
  core::CodecId codec_down = core::CodecId::kFloat32;
  double merged_weight = 0;  // this site's share of 1: the mean over the updates it has taken
  int64_t updates = 0;
};

class SiteReport {
 public:
  SiteReport(const core::RunConfig& config, core::SiteId site, const core::Clock* clock);

  void Trained(const TrainingReport& report);
  int64_t TakeTokens() { return std::exchange(new_tokens_, 0); }  // since the last call
  void Evaluated(double loss, std::vector<core::Version> versions);
  // The coordinator has received this evaluation: each is reported once.
  void HeardEvaluation(const core::Progress& progress);
  void Holds(core::FragmentId fragment, const core::AnchorDigest& anchor) { progress_.digests[fragment] = anchor; }
  void Sends(core::FragmentId fragment, const std::vector<core::Bytes>& contribution, const std::string& encoded_on);
  void Takes(const transport::DownloadHeader& header, const std::vector<std::string>& update);
  void HasResidual(double norm) { progress_.residual_norm = norm; }
  void CheckpointSaved(const absl::Status& status) {
    progress_.checkpoint_error = status.ok() ? "" : core::Clipped(status.ToString(), core::kMaxSiteTextBytes);
  }

  const ExchangeTotals& totals() const { return totals_; }
  core::Progress Make(const SiteRules& rules, const core::LinkProgress& link);

 private:
  const core::SiteId site_;
  const core::Clock* clock_;
  ExchangeTotals totals_;
  core::Progress progress_;
  int64_t trained_tokens_ = 0;
  int64_t new_tokens_ = 0;
  std::map<core::FragmentId, std::string> encoded_on_;  // where the last contribution was encoded
  int64_t entered_ = 0;                                 // number of stays
  core::Clock::TimePoint entered_at_;                   // when the last stay began
};

}  // namespace causeway::worker
