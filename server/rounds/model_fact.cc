#include "server/rounds/model_fact.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::server {
namespace {

std::string Difference(const core::FragmentMap& expected, const core::FragmentMap& got) {
  const absl::Status difference = core::CompareManifests(expected.manifest(), got.manifest());
  return difference.ok() ? "another fragment map" : std::string(difference.message());
}

}  // namespace

ModelFact::ModelFact(uint64_t generation, core::FragmentMap map, bool seeded, core::SiteId seeder)
    : state_(seeded ? ModelState::kSeeded : ModelState::kDeclared),
      generation_(generation),
      map_(std::move(map)),
      seeder_(std::move(seeder)) {
  CHECK(generation_ > 0);
}

const core::FragmentMap& ModelFact::map() const {
  CHECK(map_.has_value());
  return *map_;
}

absl::Status ModelFact::CheckGeneration(std::optional<uint64_t> named) const {
  if (!known()) return absl::UnavailableError("no site has said yet what the model is; retry");
  if (!named || *named == generation_) return absl::OkStatus();
  if (*named < generation_) {
    return absl::AbortedError(absl::StrCat("the model is generation ", generation_, " now; retry"));
  }
  return absl::UnavailableError(absl::StrCat("expected generation ", generation_, " of the model, got ", *named,
                                             ": this coordinator has not heard of it yet; retry"));
}

absl::Status ModelFact::CheckManifest(const core::Manifest& manifest, bool any_site_in) const {
  if (!known() || (state_ == ModelState::kDeclared && !any_site_in)) return absl::OkStatus();
  return core::CompareManifests(map_->manifest(), manifest);
}

bool ModelFact::Declare(const core::FragmentMap& map) {
  if (map_ == map) return false;
  CHECK(!stays());
  Replace(generation_ + 1, map);
  return true;
}

absl::StatusOr<bool> ModelFact::Follow(std::optional<uint64_t> generation, const std::optional<core::FragmentMap>& map,
                                       bool trained) {
  if (!map) return false;
  if (generation == 0) return absl::InvalidArgumentError("shard 0: expected a generation from 1 on, got 0");
  // A trained model keeps its number: an older shard 0 gave none, and each shard's sites know the model by that shard's
  // number.
  if (map_ == map && (trained || generation.value_or(0) <= generation_)) return false;
  const uint64_t next = generation.value_or(generation_ + 1);
  if (known() && (trained || next <= generation_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("shard 0 has generation ", next, " of the model, this shard's state has ",
                     trained ? "what sites have trained of " : "", "generation ", generation_, ": ",
                     Difference(*map_, *map), "; start shard 0 on the state that it had, or this shard on a new one"));
  }
  CHECK(state_ != ModelState::kSaving);
  Replace(next, *map);
  return true;
}

bool ModelFact::ExpectSeedFrom(const core::SiteId& site, const core::SessionId& session) {
  const bool another = site != seeder_ || session != seeder_session_;
  seeder_ = site;
  seeder_session_ = session;
  return another;
}

void ModelFact::Save() {
  CHECK(state_ == ModelState::kDeclared);
  state_ = ModelState::kSaving;
}

void ModelFact::Seeded() {
  CHECK(state_ == ModelState::kSaving);
  state_ = ModelState::kSeeded;
}

void ModelFact::Replace(uint64_t generation, const core::FragmentMap& map) {
  state_ = ModelState::kDeclared;
  generation_ = generation;
  map_ = map;
  seeder_.clear();
}

}  // namespace causeway::server
