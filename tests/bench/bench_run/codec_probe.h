// The codecs' effect on the outer gradients of a run: error and norm of what arrives, and a few gradients as files.
//
//   Δ_m (site m, before its send) ─► encode ─► d_m ─┬─► up:   ‖d_m − Δ_m‖ / ‖Δ_m‖,  ‖d_m‖ / ‖Δ_m‖
//                                                   └─► Σ_m d_m / M ─► merge ─► g ─► down: the same of g and the mean
//
// Norms are over a fragment; a leg's figure is the mean over its fragments and rounds. With error feedback a single
// send also carries what earlier ones dropped, so the errors are those of one round and do not add up over rounds: that
// they do not is what the feedback is for.
//
// Δ is not what the site's engine has computed but computed here again, from the coordinator's anchor and the live
// parameters. One ProbedSite a site, called by its step loop and its link's thread; the figures are final when the link
// has left. Equal runs give equal bits: every sum has one order, whichever site comes first.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/fragment_map.h"
#include "core/mutex.h"
#include "server/run/run_exchange.h"
#include "tests/bench/bench_run/local_link.h"

namespace causeway::bench {

// Means over what was added.
struct LegFigures {
  double error = 0;       // ‖decoded − true‖ / ‖true‖
  double norm_ratio = 0;  // ‖decoded‖ / ‖true‖
  int64_t count = 0;

  void Add(std::span<const float> truth, std::span<const float> decoded);
  double MeanError() const { return count > 0 ? error / static_cast<double>(count) : 0; }
  double MeanNormRatio() const { return count > 0 ? norm_ratio / static_cast<double>(count) : 0; }
};

// All that the sites of a round have sent, decoded, until the first site has the update. Thread-safe.
class RoundSums {
 public:
  void Add(const core::SiteId& site, core::FragmentId fragment, core::Version base, std::vector<float> decoded);
  std::vector<float> TakeMean(core::FragmentId fragment, core::Version base);  // in the order of site names

 private:
  core::Mutex mutex_;
  std::map<std::pair<core::FragmentId, core::Version>, std::map<core::SiteId, std::vector<float>>> decoded_
      ABSL_GUARDED_BY(mutex_);
};

class ProbedSite final : public LinkObserver {
 public:
  // `compares_updates`: exactly one site of a run does. `map` outlives this object.
  ProbedSite(core::SiteId site, std::shared_ptr<RoundSums> sums, bool compares_updates)
      : site_(std::move(site)), sums_(std::move(sums)), compares_updates_(compares_updates) {}

  // Records the rounds of these bases as `dir`/round_BASE.safetensors: Δ of every tensor, unpadded, under its name.
  void Record(std::string dir, std::set<core::Version> bases);

  // In the step loop, before the engine copies θ (`tensors`, in manifest order) for the send of this base.
  absl::Status BeforeSend(const core::FragmentMap& map, core::FragmentId fragment, core::Version base, core::Step step,
                          const std::vector<std::span<float>>& tensors, server::RunExchange& coordinator);

  // On the link's thread.
  void OnContribution(core::FragmentId fragment, core::Version base, const std::vector<core::Bytes>& chunks) override;
  void OnUpdate(core::FragmentId fragment, core::Version base, const std::vector<std::string>& chunks) override;

  const LegFigures& up() const { return up_; }
  const LegFigures& down() const { return down_; }

 private:
  // The tensors of a round that is recorded, as they come.
  struct Recording {
    std::vector<std::vector<float>> tensors;
    std::vector<core::Step> steps;  // of the sends, by fragment
    int fragments = 0;
  };

  absl::Status RecordFragment(const core::FragmentMap& map, core::FragmentId fragment, core::Version base,
                              core::Step step, std::span<const float> delta);

  const core::SiteId site_;
  const std::shared_ptr<RoundSums> sums_;
  const bool compares_updates_;
  std::string record_dir_;
  std::map<core::Version, Recording> recordings_;  // by base, those to come
  LegFigures up_;                                  // of the link's thread
  LegFigures down_;

  core::Mutex mutex_;
  std::map<core::FragmentId, std::vector<float>> sending_ ABSL_GUARDED_BY(mutex_);  // Δ, padded
};

}  // namespace causeway::bench
