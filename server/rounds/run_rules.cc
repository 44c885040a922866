#include "server/rounds/run_rules.h"

#include <variant>

namespace causeway::server {
namespace {

struct Step {
  RoundTable& table;
  int64_t now_ms;

  Outcome operator()(const JoinRequest& e) {
    TableJoin join = table.Join(e, now_ms);
    return {.actions = std::move(join.actions), .join = join};
  }
  Outcome operator()(const SiteReady& e) { return {.actions = table.Ready(e.site, e.session)}; }
  Outcome operator()(const SiteReport& e) {
    return {.actions = table.Heard(e.site, e.session, {e.step, e.completing, e.unheard_ms, e.standing_still}, now_ms)};
  }
  Outcome operator()(const SiteDisconnected& e) {
    table.Disconnected(e.site, e.session, now_ms);
    return {};
  }
  Outcome operator()(const SiteLeaves& e) {
    return {.actions = table.Leave(e.site, e.session, e.finished, e.reason, now_ms)};
  }
  Outcome operator()(const ContributionAdmitted& e) {
    return {.actions = table.Admit(e.site, e.fragment, e.contribution, e.transfer_ms, now_ms, e.parameters)};
  }
  Outcome operator()(const ContributionRefused& e) {
    return {.actions = table.RefuseValues(e.site, e.fragment, e.contribution, e.why, now_ms)};
  }
  Outcome operator()(const SeedComplete&) { return {.actions = table.Seeded()}; }
  Outcome operator()(const ModelReplaced&) {
    table.BeginAnotherModel();
    return {};
  }
  Outcome operator()(const ShardReported& e) { return {.actions = table.HeardOfShard(e.shard, e.report)}; }
  Outcome operator()(const MembershipChanged& e) { return {.actions = table.Follow(e.membership, now_ms)}; }
  Outcome operator()(const PauseRun&) { return {.status = table.Pause()}; }
  Outcome operator()(const ResumeRun&) { return {.status = table.Resume()}; }
  Outcome operator()(const StopRun&) { return {.status = table.Stop()}; }
  Outcome operator()(const DrainSite& e) { return {.status = table.StartDraining(e.site, e.reason)}; }
  Outcome operator()(const ReleaseSite& e) {
    Outcome outcome;
    outcome.status = table.Release(e.site, outcome.actions, now_ms);
    return outcome;
  }
  Outcome operator()(const RollBackRun& e) {
    Outcome outcome;
    outcome.status = table.RollBack(e.version, outcome.actions, now_ms);
    return outcome;
  }
  Outcome operator()(const RaiseDoubt& e) {
    table.Doubt(e.why);
    return {};
  }
  Outcome operator()(const Tick&) { return {.actions = table.Tick(now_ms)}; }
  Outcome operator()(const StoodStill& e) {
    table.StoodStill(e.from_ms, now_ms);
    return {};
  }
};

}  // namespace

Outcome RunRules::Handle(const RunEvent& event, int64_t now_ms) { return std::visit(Step{table_, now_ms}, event); }

}  // namespace causeway::server
