// The data that each site of a run declared when it joined; decides whether a joiner may bring its data.
//
//   data.mode shared   all sites have the same data: the run's is that of the first one
//   data.mode own      each site has data of its own: equal data at two sites is a mistake, unless data.allow_equal
//
// Both modes accept a site that declares nothing. Only fingerprints are compared. The facts are journaled with the
// join, and stay when a site leaves. Pure; one owner at a time.
#pragma once

#include "absl/status/status.h"
#include "core/data_fingerprint.h"
#include "core/membership.h"
#include "core/run_config.h"

namespace causeway::server {

class DataFact {
 public:
  DataFact(core::DataConfig config, core::DataOfSites known) : config_(config), known_(std::move(known)) {}

  // Whether `site` may join with this data: FAILED_PRECONDITION names both sites and their data. `rounds`: the sites in
  // the run.
  absl::Status CheckJoin(const core::SiteId& site, const core::SiteData& data, const core::RoundState& rounds) const;

  // Records the data of a joiner that CheckJoin accepted; `rounds` as in CheckJoin. True if something changed.
  bool Declare(const core::SiteId& site, const core::SiteData& data, const core::RoundState& rounds);

  // Forgets a site whose name is released. The last record of the data that sites share stays. True if something
  // changed.
  bool Forget(const core::SiteId& site);

  // Whether this site's evaluation is the loss of the run: all sites hold out the same text, or it declared that it
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
