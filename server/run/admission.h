// Whether a joiner fits the run in all that the rules do not know: its protocol and run, its codecs, its model, its
// data, and what it has seen of the run's state.
//
//   Join ─► FindDoubt (claims) ─► CheckModel ─► CheckData ─► the rules' Join
//              └► the joiner waits, a stranger: this state may be an older copy
//
// One owner at a time, except for the functions marked constant.
#pragma once

#include <optional>
#include <set>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/fragment_map.h"
#include "core/run_config.h"
#include "server/rounds/data_fact.h"
#include "server/rounds/model_fact.h"
#include "server/rounds/run_rules.h"
#include "server/rounds/strangers.h"
#include "server/run/claims.h"
#include "server/run/model_bounds.h"
#include "server/run/ready.h"

namespace causeway::server {

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
