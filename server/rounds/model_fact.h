// The model of a run as a coordinator knows it: a numbered fact that the journal has before anyone hears of it.
//
//   none ── the first joiner declares it, or shard 0 tells it ──► declared ── Save ─► saving ── Seeded ─► seeded
//                                                                  │   ▲
//                                                                  └───┘ withdrawn: generation + 1
//
// It ends only when it is withdrawn: before there are initial parameters, with no site in the run, by a joiner that
// brings another one. A shard beyond the first may have its part of the initial parameters by then, and lets go of
// them: shard 0 decides, and without its own part no site can have entered. Whatever names a generation is compared
// with this one: none named says nothing, a lower one is stale, a higher one replaces this one once shard 0 has told of
// it.
//
// Pure; one owner at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/fragment_map.h"
#include "core/ids.h"

namespace causeway::server {

enum class ModelState {
  kNone,
  kDeclared,  // no initial parameters yet
  kSaving,    // they have arrived, and are being saved
  kSeeded,
};

class ModelFact {
 public:
  ModelFact() = default;
  // As the journal has it.
  ModelFact(uint64_t generation, core::FragmentMap map, bool seeded, core::SiteId seeder);

  ModelState state() const { return state_; }
  bool known() const { return state_ != ModelState::kNone; }
  // Its initial parameters are there, or will be in a moment: from now on it stays.
  bool stays() const { return state_ == ModelState::kSaving || state_ == ModelState::kSeeded; }
  uint64_t generation() const { return generation_; }  // 0: none yet
  const core::FragmentMap& map() const;                // of one that is known
  const core::SiteId& seeder() const { return seeder_; }
  const core::SessionId& seeder_session() const { return seeder_session_; }

  // Whether a request that names this generation can be served: UNAVAILABLE if there is no model yet or a later one was
  // named, ABORTED if an earlier one was. Both are worth a retry.
  absl::Status CheckGeneration(std::optional<uint64_t> named) const;

  // Whether a joiner may bring this model: INVALID_ARGUMENT names the first difference.
  absl::Status CheckManifest(const core::Manifest& manifest, bool any_site_in) const;

  // A joiner that was accepted brings this model. True if it is a new one.
  bool Declare(const core::FragmentMap& map);

  // What shard 0 says of the model, if anything. True if it takes the place of what was here. FAILED_PRECONDITION names
  // both where it cannot: sites have trained this one, or it has a number as high. Not while it is being saved.
  absl::StatusOr<bool> Follow(std::optional<uint64_t> generation, const std::optional<core::FragmentMap>& map,
                              bool trained);

  // This site is asked for the initial parameters. True if it is another one than before, or another process of it.
  bool ExpectSeedFrom(const core::SiteId& site, const core::SessionId& session);

  void Save();    // the initial parameters of this coordinator's fragments have arrived
  void Seeded();  // and are durable

 private:
  void Replace(uint64_t generation, const core::FragmentMap& map);

  ModelState state_ = ModelState::kNone;
  uint64_t generation_ = 0;
  std::optional<core::FragmentMap> map_;
  core::SiteId seeder_;
  core::SessionId seeder_session_;  // not in the journal: who comes back is asked again
};

}  // namespace causeway::server
