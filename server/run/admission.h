// Whether a joiner fits the run in all that the rules do not know: its protocol and run, its codecs, its model, its
// data, and what it has seen of the run's state.
//
//   Join ─► FindDoubt (claims) ─► CheckModel ─► CheckData ─► the rules' Join
//              └► the joiner waits, a stranger: this state may be an older copy
//
// One owner at a time, except for the functions marked constant.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/fragment_map.h"
#include "core/ids.h"
#include "core/manifest.h"
#include "core/run_config.h"
#include "server/rounds/data_fact.h"
#include "server/rounds/model_fact.h"
#include "server/rounds/run_rules.h"
#include "server/rounds/strangers.h"
#include "server/run/ready.h"
#include "server/store/records.h"

namespace causeway::server {

// Bounds on the model that a first joiner may bring: run.yaml's or, where the sites bring it, one that this machine can
// hold. All other sites must then have the same model, so that without bounds a faulty site could keep the honest ones
// out.
struct ModelBounds {
  std::optional<core::Manifest> manifest;  // from run.yaml; nullopt: it gives none
  int64_t memory_bytes = 0;                // the machine's memory; 0: unlimited
  core::Shard shard;                       // the shard whose share of the parameters is held here

  // INVALID_ARGUMENT with the first difference, or with the memory that the model would need.
  absl::Status Check(const core::Manifest& brought) const;
};

// The bounds on this machine.
ModelBounds BoundsOf(const core::RunConfig& config, const core::Shard& shard);

// Proofs of all that this coordinator tells of its state, and of what sites claim to have been told of it.
//
//   Welcome, DownloadHeader, Verdict ◄── proof of (epoch, life), (fragment, version), (site, fragment, base)
//   Join ──► Check ─► nothing, or a doubt: proven by what an earlier life of this state said, or a mere claim
//
// A proof is the first 16 bytes of an HMAC-SHA256 with a secret of the log, which all copies of a state directory have.
// So a site that proves a version that this directory lacks has heard of it from another copy; without a proof it only
// says so. Constant; thread-safe. Source: docs/wire_format.md, Proofs; docs/decisions/0020-what-sites-know.md.
class Claims {
 public:
  Claims(const JournalIdentity& journal, uint64_t life, const core::Shard& shard);

  const CoordinatorIdentity& own() const { return own_; }
  // Whether the caller's lineage is another one than this state's.
  bool IsOfAnother(const v1::Context& context) const;

  void Introduce(v1::Welcome* welcome) const;  // adds epoch, lineage and life, and how often streams hear of it
  void ProveAdmitted(const core::SiteId& site, v1::Welcome* welcome) const;  // for each `last_admitted`
  std::string ProofOfVersion(core::FragmentId fragment, core::Version version) const;
  std::string ProofOfAdmission(const core::SiteId& site, core::FragmentId fragment, core::Version base) const;

  // FAILED_PRECONDITION if the caller has seen a state other than this one.
  absl::Status Check(const v1::Context& context) const;
  // `known`: the record of the caller's lineage here. `trains`: sites are in this run, so that one which comes from
  // another lineage is the one that is wrong.
  std::optional<DoubtFound> Check(const v1::Join& join, const History& known, bool trains) const;
  // Whether an earlier life told the site of versions that this state lost with its end, and may have made anew.
  bool HoldsLost(const v1::Join& join) const;

 private:
  std::string Prove(const std::string& text) const;
  std::string ProofOfEpoch(uint64_t epoch, uint64_t life) const;

  const CoordinatorIdentity own_;
  const std::vector<JournalIdentity::Floor> floors_;
  const std::string secret_;
  const core::Shard shard_;
};

class Admission {
 public:
  // `may_lose_its_end`: a crash may take the end of a relaxed journal; sites that prove more than the state holds are
  // asked for that. `config` outlives the Admission.
  Admission(const core::RunConfig& config, const core::Shard& shard, ModelBounds bounds, bool new_run,
            bool may_lose_its_end, Claims claims);

  const Claims& claims() const { return claims_; }  // constant

  // Constant. FAILED_PRECONDITION names what differs: protocol, run, shard; or a state that the caller has seen.
  absl::Status CheckProtocol(const v1::Context& context) const;
  absl::Status CheckContext(const v1::Context& context) const;
  absl::StatusOr<core::Manifest> ReadManifest(const v1::Join& join) const;  // takes milliseconds

  // Something that the joiner has seen and this state lacks; it takes precedence over a difference from another
  // state's model.
  std::optional<DoubtFound> FindDoubt(const v1::Join& join, const RunRules& rules) const;
  // Whether this state contains everything that the site holds of its former lineage.
  bool Continues(const v1::Join& join, const RunRules& rules) const;
  // Returns the joiner's fragment map if it brings another model than the present one. UNAVAILABLE: retry later.
  absl::StatusOr<std::optional<core::FragmentMap>> CheckModel(const v1::Join& join,
                                                              const absl::StatusOr<core::Manifest>& manifest,
                                                              const std::set<core::CodecId>& codecs,
                                                              const ModelFact& model, const RunRules& rules) const;
  // Shard 0 decides which sites are in; the others receive the same data.
  absl::StatusOr<core::SiteData> CheckData(const v1::Join& join, const RunRules& rules) const;

  // Refuses the joiner, which waits with its parameters until an operator has decided.
  JoinDecision Refuse(const core::SiteId& site, const DoubtFound& found, int64_t now_ms, RunRules& rules, Ready& ready);
  // Notes the transfer of a site whose context names another lineage: another coordinator has welcomed it.
  void NoteElsewhere(const v1::Context& context, int64_t now_ms, Ready& ready);
  // The rules' decision, if `may_join` is OK.
  Outcome Decide(const v1::Join& join, const absl::Status& may_join, bool continues, int64_t now_ms, RunRules& rules);

  // `model`: the fields that describe the model. `continues`: as Continues said.
  v1::Welcome Welcome(const v1::Join& join, const JoinDecision& decision, bool continues, const v1::Welcome& model,
                      const RunRules& rules) const;

  // ---- The sites' data ----
  void RestoreData(core::DataOfSites known) { data_ = DataFact(config_.data, std::move(known)); }
  // Data of a run without sites gives way, as a model does. REQUIRES: the joiner does not count as in the run yet.
  void DeclareData(const core::SiteId& site, const core::SiteData& data, const RunRules& rules, Ready& ready);
  void ForgetData(const core::SiteId& site, Ready& ready);
  const DataFact& data() const { return data_; }

  const Strangers& strangers() const { return strangers_; }
  // Sites prove more than the state holds, and its log may have lost its end.
  bool LacksItsEnd() const { return may_lose_its_end_ && strangers_.MissesAnEnd(); }

 private:
  const core::RunConfig& config_;
  const core::Shard shard_;
  const ModelBounds bounds_;
  const bool new_run_, may_lose_its_end_;
  const Claims claims_;
  DataFact data_;
  Strangers strangers_;
};

}  // namespace causeway::server
