// What each site of a run trains on, as it has said when it joined: whether a joiner may bring its data.
//
//   data.mode shared   all sites have the same data: the run's is what the first one brought
//   data.mode own      each site has data of its own: what two sites have alike is a mistake, unless data.allow_equal
//
// A site that says nothing is taken at its word in both. Only fingerprints are compared. What it knows is journaled
// with the join, and stays when a site leaves. Pure; one owner at a time.
#pragma once

#include "absl/status/status.h"
#include "core/data_fingerprint.h"
#include "core/membership.h"
#include "core/run_config.h"

namespace causeway::server {

class DataFact {
 public:
  DataFact(core::DataConfig config, core::DataOfSites known) : config_(config), known_(std::move(known)) {}

  // Whether `site` may join with this data: FAILED_PRECONDITION names both sites and what they have. `rounds`: who is
  // in.
  absl::Status CheckJoin(const core::SiteId& site, const core::SiteData& data, const core::RoundState& rounds) const;

  // A joiner that CheckJoin took brings this; `rounds` as there. True if it is news.
  bool Declare(const core::SiteId& site, const core::SiteData& data, const core::RoundState& rounds);

  // Its name is given up. The last one that says what sites share stays. True if it is news.
  bool Forget(const core::SiteId& site);

  // Whether what this site measures is the loss of the run: all sites hold out the same text, or it has said that it
  // evaluates on a file, which is the same for all.
  bool EvaluatesForAll(const core::SiteId& site) const;
  // Why there is no loss of the run; empty if there is one.
  std::string WhyNoLoss() const;

  const core::DataOfSites& known() const { return known_; }

 private:
  absl::Status CheckShared(const core::SiteId& site, const core::DataFingerprint& data,
                           const core::RoundState& rounds) const;
  absl::Status CheckOwn(const core::SiteId& site, const core::SiteData& data, const core::RoundState& rounds) const;

  core::DataConfig config_;
  core::DataOfSites known_;
};

}  // namespace causeway::server
