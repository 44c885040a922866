// A coordinator's knowledge of the run's model: a numbered fact that is in the journal before anyone else learns of it.
//
//   none ── the first joiner declares it, or shard 0 sends it ──► declared ── Save ─► saving ── Seeded ─► seeded
//                                                                  │   ▲
//                                                                  └───┘ withdrawn: generation + 1
//
// It ends only when it is withdrawn: before there are initial parameters, with no site in the run, by a joiner that
// brings another one. A shard beyond the first may have its part of the initial parameters by then, and discards them:
// shard 0 decides, and without its own part no site can have entered. Every generation named in a message is compared
// with this one: an absent number is ignored, a lower one is stale, a higher one replaces this one once shard 0 has
// announced it.
//
// Pure; one owner at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data_fingerprint.h"
#include "core/fragment_map.h"
#include "core/ids.h"
#include "core/membership.h"
#include "core/run_config.h"

namespace causeway::server {

// The data that each site of a run declared when it joined; decides whether a joiner may bring its data.
//
//   data.mode shared   all sites have the same data: the run's is that of the first one
//   data.mode own      each site has data of its own: equal data at two sites is a mistake, unless data.allow_equal
//
// Both modes accept a site that declares nothing. Only fingerprints are compared. The facts are journaled with the
// join, and stay when a site leaves. Pure; one owner at a time.
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

enum class ModelState {
  kNone,
  kDeclared,  // no initial parameters yet
  kSaving,    // the initial parameters have arrived, and are being saved
  kSeeded,
};

class ModelFact {
 public:
  ModelFact() = default;
  // Restores the fact from the journal.
  ModelFact(uint64_t generation, core::FragmentMap map, bool seeded, core::SiteId seeder);

  ModelState state() const { return state_; }
  bool known() const { return state_ != ModelState::kNone; }
  // Whether the initial parameters are there, or about to be: from then on the model stays.
  bool stays() const { return state_ == ModelState::kSaving || state_ == ModelState::kSeeded; }
  uint64_t generation() const { return generation_; }  // 0: none yet
  const core::FragmentMap& map() const;                // needs known()
  const core::SiteId& seeder() const { return seeder_; }
  const core::SessionId& seeder_session() const { return seeder_session_; }

  // Whether a request that names this generation can be served: UNAVAILABLE if there is no model yet or the request
  // names a later one, ABORTED if it names an earlier one. Both can be retried.
  absl::Status CheckGeneration(std::optional<uint64_t> named) const;

  // Whether a joiner may bring this model: INVALID_ARGUMENT names the first difference.
  absl::Status CheckManifest(const core::Manifest& manifest, bool any_site_in) const;

  // Records the model of an accepted joiner. True if it is new.
  bool Declare(const core::FragmentMap& map);

  // Takes over shard 0's statement about the model, if any. True if it replaces the model here. FAILED_PRECONDITION
  // names both models if it cannot: sites have trained this one, or its number is as high.
  // REQUIRES: the model is not being saved.
  absl::StatusOr<bool> Follow(std::optional<uint64_t> generation, const std::optional<core::FragmentMap>& map,
                              bool trained);

  // The initial parameters are requested from this site. True if the site, or its process, is not the same as before.
  bool ExpectSeedFrom(const core::SiteId& site, const core::SessionId& session);

  void Save();    // the initial parameters of this coordinator's fragments have arrived
  void Seeded();  // those parameters are durable

 private:
  void Replace(uint64_t generation, const core::FragmentMap& map);

  ModelState state_ = ModelState::kNone;
  uint64_t generation_ = 0;
  std::optional<core::FragmentMap> map_;
  core::SiteId seeder_;
  core::SessionId seeder_session_;  // not in the journal: a site that comes back gets a new request
};

}  // namespace causeway::server
