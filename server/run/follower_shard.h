// A shard beyond the first: what shard 0 has said, and the report to it. One owner at a time, but for the report.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/membership.h"
#include "server/rounds/model_fact.h"
#include "server/rounds/run_rules.h"
#include "server/run/ready.h"
#include "server/run/run_options.h"
#include "server/run/shard_reports.h"

namespace causeway::server {

class FollowerShard {
 public:
  FollowerShard(const RunOptions& options, OwnReport* report) : options_(options), report_(*report) {}

  enum class News {
    kLater,         // the update waits until a seed is saved; TakeLate returns it then
    kMembership,    // membership() is shard 0's
    kAnotherModel,  // the same, and the model has changed: sites have to be welcomed anew
  };
  // Takes shard 0's word, also that about the model, into `model`. FAILED_PRECONDITION: it is of another run, or does
  // not fit what was trained here.
  absl::StatusOr<News> Take(const v1::MembershipUpdate& update, const RunRules& rules, ModelFact& model, Ready& ready);
  std::optional<v1::MembershipUpdate> TakeLate() { return std::exchange(late_, std::nullopt); }
  const core::Membership& membership() const { return membership_; }

  // Reports to shard 0 what is news, once it is durable.
  void Note(const RunRules& rules, const ModelFact& model, Ready& ready);

 private:
  absl::StatusOr<bool> FollowModel(const v1::MembershipUpdate& update, const RunRules& rules, ModelFact& model) const;

  const RunOptions& options_;
  OwnReport& report_;
  core::Membership membership_;
  std::optional<v1::MembershipUpdate> late_;
};

}  // namespace causeway::server
