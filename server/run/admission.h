// A joiner at the door: its protocol and run, its codecs, its model, its data, and what it has seen of the run's state.
//
//   Join ─► FindDoubt (claims) ─► CheckModel ─► CheckData ─► the rules' Join ─► Welcome
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
#include "server/rounds/model_fact.h"
#include "server/rounds/run_rules.h"
#include "server/rounds/strangers.h"
#include "server/run/ready.h"
#include "server/store/records.h"

namespace causeway::server {

struct RunOptions;

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

// Whether a joiner fits the run in all that the rules do not know.
class Admission {
 public:
  // The arguments outlive it.
  Admission(const RunOptions& options, const JournalIdentity& journal);

  // Constant. FAILED_PRECONDITION names what differs: protocol, run, shard; or a state that the caller has seen.
  absl::Status CheckProtocol(const v1::Context& context) const;
  absl::Status CheckContext(const v1::Context& context) const;
  absl::StatusOr<core::Manifest> ReadManifest(const v1::Join& join) const;  // takes milliseconds
  const Claims& claims() const { return claims_; }                          // constant

  // Notes the transfer of a site whose context names another lineage: another coordinator has welcomed it.
  void NoteElsewhere(const v1::Context& context, int64_t now_ms, Ready& ready);
  void ForgetData(const core::SiteId& site, Ready& ready);

  // A crash may take the end of a relaxed journal: sites that prove more than the state holds are asked for that.
  bool may_lose_its_end() const { return may_lose_its_end_; }
  bool LacksItsEnd() const;

  DataFact data;  // the sites' data
  Strangers strangers;

 private:
  const RunOptions& options_;
  const bool may_lose_its_end_;
  const Claims claims_;
};

}  // namespace causeway::server
