#include "server/rounds/model_fact.h"

#include <algorithm>
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

namespace {

using core::DataFingerprint;
using core::DataMode;
using core::FingerprintText;
using core::SiteId;

bool IsIn(const core::RoundState& rounds, const SiteId& site) {
  const auto found = rounds.sites.find(site);
  return found != rounds.sites.end() && found->second.state != core::SiteState::kGone;
}

// Nothing has been trained yet, and no other site is in: the earlier data may have been a mistake.
bool BeginsAnew(const core::RoundState& rounds, const SiteId& site) {
  return !rounds.started && std::ranges::none_of(rounds.sites, [&](const auto& other) {
    return other.first != site && IsIn(rounds, other.first);
  });
}

}  // namespace

absl::Status DataFact::CheckShared(const SiteId& site, const DataFingerprint& data,
                                   const core::RoundState& rounds) const {
  if (BeginsAnew(rounds, site)) return absl::OkStatus();
  const auto refused = [&](const std::string& whose, const DataFingerprint& expected) {
    return absl::FailedPreconditionError(
        absl::StrCat("site ", site, ": data of ", FingerprintText(data), "; ", whose, " ", FingerprintText(expected),
                     ": data.mode shared expects the same data: each site's log names the files that "
                     "it reads; to train on different data, data.mode: own"));
  };
  if (const auto own = known_.find(site); own != known_.end() && own->second.training) {
    return *own->second.training == data ? absl::OkStatus() : refused("before it had", *own->second.training);
  }
  // It took part when sites did not yet declare their data, and continues with its data.
  if (rounds.started && rounds.sites.contains(site)) return absl::OkStatus();
  const auto first = std::ranges::find_if(known_, [](const auto& one) { return one.second.training.has_value(); });
  const bool same = std::ranges::any_of(known_, [&](const auto& one) { return one.second.training == data; });
  if (first == known_.end() || same) return absl::OkStatus();
  return refused(absl::StrCat("site ", first->first, "'s has"), *first->second.training);
}

absl::Status DataFact::CheckOwn(const SiteId& site, const core::SiteData& data, const core::RoundState& rounds) const {
  for (const auto& [other, known] : known_) {
    if (other == site || !IsIn(rounds, other)) continue;
    if (data.training && data.training == known.training && !config_.allow_equal) {
      return absl::FailedPreconditionError(
          absl::StrCat("site ", site, ": data of ", FingerprintText(*data.training), ", and site ", other,
                       " has the same: data.mode own expects other data in each site; use data.mode: shared, or "
                       "data.allow_equal: true if that is meant"));
    }
    if (data.held_out && known.held_out && data.held_out != known.held_out) {
      return absl::FailedPreconditionError(absl::StrCat(
          "site ", site, ": held-out data of ", FingerprintText(*data.held_out), "; site ", other, "'s has ",
          FingerprintText(*known.held_out), ": losses compare on one file alone; give all sites the same --held_out"));
    }
  }
  return absl::OkStatus();
}

absl::Status DataFact::CheckJoin(const SiteId& site, const core::SiteData& data, const core::RoundState& rounds) const {
  if (config_.mode == DataMode::kOwn) return CheckOwn(site, data, rounds);
  return data.training ? CheckShared(site, *data.training, rounds) : absl::OkStatus();
}

bool DataFact::Declare(const SiteId& site, const core::SiteData& data, const core::RoundState& rounds) {
  if (!data.said()) return false;
  const auto known = known_.find(site);
  if (known != known_.end() && known->second == data) return false;
  if (config_.mode == DataMode::kShared && data.training && BeginsAnew(rounds, site)) {
    std::erase_if(known_, [&](const auto& other) { return other.second.training != data.training; });
  }
  known_[site] = data;
  return true;
}

bool DataFact::Forget(const SiteId& site) {
  const auto others = std::ranges::count_if(
      known_, [&](const auto& one) { return one.first != site && one.second.training.has_value(); });
  return (config_.mode == DataMode::kOwn || others > 0) && known_.erase(site) > 0;
}

bool DataFact::EvaluatesForAll(const SiteId& site) const {
  if (config_.mode == DataMode::kShared) return true;
  const auto known = known_.find(site);
  return known != known_.end() && known->second.held_out.has_value();
}

std::string DataFact::WhyNoLoss() const {
  if (config_.mode == DataMode::kShared ||
      std::ranges::any_of(known_, [](const auto& site) { return site.second.held_out.has_value(); })) {
    return "";
  }
  return "data.mode own: each site evaluates on the tail of its own data (eval_loss_by_site); one loss needs a file "
         "for "
         "all (causeway-worker --held_out=FILE), or a PyTorch site's diloco.report_eval(…)";
}

}  // namespace causeway::server
