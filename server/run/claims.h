// Proofs of all that this coordinator tells of its state, and of what sites claim to have been told of it.
//
//   Welcome, DownloadHeader, Verdict ◄── proof of (epoch, life), (fragment, version), (site, fragment, base)
//   Join ──► Check ─► nothing, or a doubt: proven by what an earlier life of this state said, or a mere claim
//
// A proof is the first 16 bytes of an HMAC-SHA256 with a secret of the log, which all copies of a state directory have.
// So a site that proves a version that this directory lacks has heard of it from another copy; without a proof it only
// says so. Constant; thread-safe. Source: docs/wire_format.md, Proofs; docs/decisions/0020-what-sites-know.md.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/ids.h"
#include "server/rounds/strangers.h"
#include "server/store/records.h"

namespace causeway::server {

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

}  // namespace causeway::server
