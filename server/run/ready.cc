#include "server/run/ready.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/limits.h"
#include "core/text.h"

namespace causeway::server {
namespace {

struct Performed {  // on the journal's thread
  DurableFacts& durable;

  void operator()(const effect::Send& send) const { send.peer->Send(send.message); }
  void operator()(const effect::Close& close) const { close.peer->Close(); }
  void operator()(const effect::Tell& tell) const { tell.peer->Send(*tell.update); }
  void operator()(const effect::Answer& answer) const { answer.peer->Answer(answer.verdict); }
  void operator()(effect::Merge& merge) const { merge.parameters->Merge(std::move(merge.job)); }
  void operator()(const effect::NewGeneration& model) const { model.waiters->BeginGeneration(model.generation); }
  void operator()(const effect::Durable& fact) const {
    if (const auto* revision = std::get_if<int64_t>(&fact.what)) durable.revision = *revision;
    if (const auto* report = std::get_if<ShardReport>(&fact.what)) durable.report.MakeDurable(*report);
  }
};

std::string TextOf(const ContributionRecord& admitted) {
  return absl::StrCat("admit ", admitted.site, " ", admitted.fragment, " base ", admitted.admitted.base, ": ",
                      admitted.admitted.steps, " steps, ", admitted.admitted.tokens, " tokens, norm ",
                      admitted.admitted.norm, ", ", admitted.chunks.size(), " chunks");
}

std::string TextOf(const RoundRecord& round) {
  const auto add = [](std::string* out, const RoundRecord::Contributor& each) {
    absl::StrAppend(out, each.site, " ", each.base, " ", each.weight, " ", each.factor);
  };
  return absl::StrCat("decide ", round.fragment, " base ", round.base, ": ", round.reason, ": ",
                      absl::StrJoin(round.contributors, ", ", add), "; ", round.run_tokens, " tokens, revision ",
                      round.revision);
}

struct TextOfEffect {
  std::string operator()(const effect::Send& send) const {
    v1::CoordinatorMessage shown = send.message;
    if (shown.has_welcome()) {  // proofs are the site's alone: a log is not the place
      shown.mutable_welcome()->clear_proof();
      shown.mutable_welcome()->clear_admission_proofs();
    }
    return absl::StrCat("send ", send.site, ": ", shown.ShortDebugString());
  }
  std::string operator()(const effect::Close& close) const { return absl::StrCat("close ", close.site); }
  std::string operator()(const effect::Tell& tell) const {
    return absl::StrCat("tell: ", tell.update->ShortDebugString());
  }
  std::string operator()(const effect::Answer& answer) const {
    return absl::StrCat("answer ", answer.site, " ", answer.fragment, ": ", answer.verdict.ShortDebugString());
  }
  std::string operator()(const effect::Merge& merge) const {
    return absl::StrCat("merge ", merge.job.round.fragment, " base ", merge.job.round.base);
  }
  std::string operator()(const effect::Durable& fact) const {
    const auto* const revision = std::get_if<int64_t>(&fact.what);
    if (revision != nullptr) return absl::StrCat("durable: revision ", *revision);
    const ShardReport& report = std::get<ShardReport>(fact.what);
    return absl::StrCat("durable: ", report.seeded ? "seeded" : "not seeded", ", versions ",
                        absl::StrJoin(report.versions, " "));
  }
  std::string operator()(const effect::NewGeneration& model) const {
    return absl::StrCat("generation ", model.generation);
  }
};

}  // namespace

void Ready::Note(const std::string& kind, const core::SiteId& site, core::FragmentId fragment,
                 const std::string& text) {
  entry.events.push_back(
      {.kind = kind, .site = site, .fragment = fragment, .text = core::Clipped(text, core::kMaxEventTextBytes)});
}

std::string Ready::Text() const {
  std::vector<std::string> lines;
  if (state_changed) lines.emplace_back("state");
  if (entry.model) lines.push_back(absl::StrCat("model ", entry.model->generation, " of ", entry.model->seeder));
  if (entry.eval_loss) lines.push_back(absl::StrCat("loss ", entry.eval_loss->latest.value_or(0)));
  if (entry.data) lines.push_back(absl::StrCat("data of ", entry.data->size(), " sites"));
  for (const core::SettingsRevision& one : entry.settings.revisions) {
    lines.push_back(absl::StrCat("settings ", one.number, " from ", one.step));
  }
  for (const ContributionRecord& admitted : entry.admitted) lines.push_back(TextOf(admitted));
  for (const RoundRecord& round : entry.decided) lines.push_back(TextOf(round));
  for (const Event& event : entry.events) {
    lines.push_back(absl::StrCat("note ", event.kind, event.site.empty() ? "" : " ", event.site,
                                 event.fragment < 0 ? "" : absl::StrCat(" ", event.fragment), ": ", event.text));
  }
  for (const Effect& one : effects) lines.push_back(std::visit(TextOfEffect{}, one));
  return absl::StrJoin(lines, "\n");
}

Ready Commit(Ready ready, DurableFacts& durable, Journal& journal) {
  JournalEntry& entry = ready.entry;
  const bool rows = entry.state || entry.eval_loss || entry.model || entry.data || !entry.admitted.empty() ||
                    !entry.decided.empty() || !entry.events.empty();
  if (!rows && ready.effects.empty()) return ready;
  if (spdlog::should_log(spdlog::level::trace)) spdlog::trace("{}", ready.Text());
  entry.durable = [&durable, effects = std::make_shared<std::vector<Effect>>(std::move(ready.effects))] {
    for (Effect& one : *effects) std::visit(Performed{durable}, one);
    effects->clear();  // here, so that no peer or parameters outlive their owners
  };
  journal.Commit(std::move(entry));
  return ready;
}

}  // namespace causeway::server
