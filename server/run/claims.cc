#include "server/run/claims.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/digest.h"
#include "core/limits.h"

namespace causeway::server {
namespace {

constexpr size_t kProofBytes = 16;

Shown ShownBy(const v1::Context& context) {
  return {.lineage = context.lineage(), .epoch = context.epoch(), .life = context.life()};
}

}  // namespace

Claims::Claims(const JournalIdentity& journal, uint64_t life, const core::Shard& shard)
    : own_{.lineage = journal.lineage,
           .former_lineages = journal.former_lineages,
           .continues = journal.continues,
           .epoch = journal.epoch,
           .life = life},
      floors_(journal.floors),
      secret_(journal.secret),
      shard_(shard) {}

bool Claims::IsOfAnother(const v1::Context& context) const {
  return !context.lineage().empty() && context.lineage() != own_.lineage;
}

std::string Claims::Prove(const std::string& text) const {
  return core::KeyedProof(secret_, text).substr(0, kProofBytes);
}

std::string Claims::ProofOfEpoch(uint64_t epoch, uint64_t life) const {
  return Prove(absl::StrCat("epoch ", own_.lineage, " ", epoch, " ", life));
}

std::string Claims::ProofOfVersion(core::FragmentId fragment, core::Version version) const {
  return Prove(absl::StrCat("version ", own_.lineage, " ", fragment, " ", version));
}

std::string Claims::ProofOfAdmission(const core::SiteId& site, core::FragmentId fragment, core::Version base) const {
  return Prove(absl::StrCat("admitted ", own_.lineage, " ", site, " ", fragment, " ", base));
}

void Claims::Introduce(v1::Welcome* welcome) const {
  welcome->set_epoch(own_.epoch);
  welcome->set_lineage(own_.lineage);
  welcome->set_life(own_.life);
  welcome->set_proof(ProofOfEpoch(own_.epoch, own_.life));
  welcome->set_beat_ms(core::kBeatMs);
}

void Claims::ProveAdmitted(const core::SiteId& site, v1::Welcome* welcome) const {
  for (int p = 0; p < welcome->last_admitted_size(); ++p) {
    const bool told = shard_.Owns(p) && welcome->last_admitted(p) >= 0;
    welcome->add_admission_proofs(told ? ProofOfAdmission(site, p, welcome->last_admitted(p)) : "");
  }
}

absl::Status Claims::Check(const v1::Context& context) const {
  const auto of_lineage = [](const Claim& claim) { return claim.kind == Claim::Kind::kLineage; };
  const std::optional<DoubtFound> doubt = FindDoubt(own_, ShownBy(context), of_lineage);
  return doubt ? absl::FailedPreconditionError(doubt->text) : absl::OkStatus();
}

bool Claims::HoldsLost(const v1::Join& join) const {
  if (IsOfAnother(join.context())) return false;
  return std::ranges::any_of(floors_, [&](const JournalIdentity::Floor& floor) {
    return join.context().epoch() < floor.epoch && std::ranges::any_of(floor.versions, [&](const auto& one) {
             return one.first < join.versions_size() && join.versions(one.first) > one.second;
           });
  });
}

std::optional<DoubtFound> Claims::Check(const v1::Join& join, const History& known, bool trains) const {
  const v1::Context& context = join.context();
  const auto proven = [&](const Claim& claim) {
    const int p = claim.fragment;
    switch (claim.kind) {
      case Claim::Kind::kLineage: return !trains;
      case Claim::Kind::kEpoch:
        return core::SameSecret(join.epoch_proof(), ProofOfEpoch(context.epoch(), context.life()));
      case Claim::Kind::kVersion:
        return p < join.version_proofs_size() &&
               core::SameSecret(join.version_proofs(p), ProofOfVersion(p, claim.version));
      case Claim::Kind::kAdmission:
        return p < join.admission_proofs_size() &&
               core::SameSecret(join.admission_proofs(p), ProofOfAdmission(context.site(), p, claim.version));
    }
    return false;
  };
  const auto of_epoch = FindDoubt(own_, ShownBy(context), proven);
  if (of_epoch && of_epoch->doubt != Doubt::kUnprovenClaim) return of_epoch;
  if (IsOfAnother(context)) return of_epoch;  // it takes the anchors anew, whatever it holds
  History shown{{join.versions().begin(), join.versions().end()}, {join.admitted().begin(), join.admitted().end()}};
  if (HoldsLost(join)) shown.admitted.clear();  // to versions that were made anew; it takes the anchors anew
  const auto of_history = FindDoubt(known, shown, shard_, proven);
  return of_history && of_history->doubt != Doubt::kUnprovenClaim ? of_history : of_epoch ? of_epoch : of_history;
}

}  // namespace causeway::server
