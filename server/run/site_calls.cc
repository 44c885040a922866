#include "server/run/site_calls.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "core/text.h"
#include "server/run/run_exchange.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

// A site's text, clipped to be kept.
std::string OfSite(const std::string& text) { return core::Clipped(text, core::kMaxSiteTextBytes); }

SiteReport ReportOf(const core::SiteId& site, const core::SessionId& session, const v1::Progress& message) {
  return {.site = site,
          .session = session,
          .step = message.step(),
          .tokens = message.tokens(),
          .completing = message.completing(),
          .unheard_ms = message.unheard_ms(),
          .standing_still = message.ranks().standing_still()};
}

// An event of the site whose stream that is: nothing if it left, or has another stream by now.
template <typename Event>
void WithSiteOf(const SitePeer* peer, RunExchange& exchange, Event event) {
  exchange.With([&](Run& run) {
    const core::SiteId site = run.members.SiteOf(peer);
    if (!site.empty()) event(run, site);
  });
}

}  // namespace

void SiteCalls::Join(const std::shared_ptr<SitePeer>& peer, const v1::Join& join) {
  const absl::StatusOr<core::Manifest> manifest = exchange_.admission().ReadManifest(join);
  exchange_.With([&](Run& run) { Join(run, peer, join, manifest); });
}

void SiteCalls::Join(Run& run, const std::shared_ptr<SitePeer>& peer, const v1::Join& join,
                     const absl::StatusOr<core::Manifest>& manifest) {
  const core::SiteId& site = join.context().site();
  const std::optional<DoubtFound> doubt = run.admission.FindDoubt(join, *run.rules);
  const auto map = run.admission.CheckModel(join, manifest, run.codecs.all(), run.model.fact(), *run.rules);
  const absl::StatusOr<core::SiteData> data = map.ok() ? run.admission.CheckData(join, *run.rules) : map.status();
  const bool continues = !doubt && run.admission.Continues(join, *run.rules);
  const int64_t now_ms = options_.clock->NowMs();
  const Outcome outcome = doubt ? Outcome{.join = run.admission.Refuse(site, *doubt, now_ms, *run.rules, run.ready)}
                                : run.admission.Decide(join, data.status(), continues, now_ms, *run.rules);
  // Actions on an earlier stay's remains go first, with its stream; messages to the site wait for the new stream.
  const auto is_told = [](const Action& action) {
    return std::holds_alternative<RequestSeed>(action) || std::holds_alternative<Enter>(action);
  };
  Actions before, told;
  for (const Action& action : outcome.actions) (is_told(action) ? told : before).push_back(action);
  run.Perform(before);
  const JoinDecision& decision = outcome.join;
  v1::CoordinatorMessage answer;
  if (!decision.accepted) {
    spdlog::warn("site {}: {}: {}", site, decision.retry_after_ms > 0 ? "has to wait" : "refused", decision.reason);
    if (decision.rival && run.members.Complain(site, &Member::rival, decision.reason, now_ms)) {
      run.ready.Note("two_workers", site, -1, decision.reason);
    }
    answer.mutable_refused()->set_reason(decision.reason);
    answer.mutable_refused()->set_retry_after_ms(decision.retry_after_ms);
    run.ready.effects.emplace_back(effect::Send{peer, site, answer});
    run.ready.effects.emplace_back(effect::Close{peer, site});
    run.Publish();
    return;
  }
  if (*map && run.model.Declare(**map, site, run.ready)) {
    run.model.Store(run.ready);
    run.BeginModel();
    run.Apply(ModelReplaced{}, now_ms);
  }
  run.admission.DeclareData(site, *data, *run.rules, run.ready);
  run.members.Join(site, join.context().session(), peer, decision.resumed, now_ms);
  spdlog::info("site {}: {}", site, decision.resumed ? "is back" : "joins");
  if (join.from_checkpoint()) run.uploads.Forget(site, run.rules->state());  // another process made those chunks
  run.ready.state_changed = true;
  if (!decision.resumed) run.ready.Note("join", site, -1, absl::StrCat("version ", OfSite(join.software_version())));
  *answer.mutable_welcome() = run.admission.Welcome(join, decision, continues, run.model.welcome(), *run.rules);
  const core::SettingsChain chain = run.settings.Chain();  // durable before this message leaves
  answer.mutable_welcome()->set_settings_before(chain.before);
  for (const core::SettingsRevision& one : chain.revisions) {
    transport::ToProto(one, answer.mutable_welcome()->add_revisions());
  }
  run.members.Send(site, answer, run.ready);
  const bool drains = run.rules->state().sites.at(site).state == core::SiteState::kDraining;
  if (drains) run.members.Send(site, DrainMessage(), run.ready);  // it may not know
  run.Perform(told);
  const std::string reason = run.rules->Reason();
  if (!reason.empty())
    run.members.Send(site, transport::NoticeOf(reason), run.ready);  // a newcomer wants to know why it waits
  run.Publish();
}

bool SiteCalls::AwaitsJournal(std::function<void()> read_on) {
  if (!journal_.full()) return false;
  journal_.Commit({.durable = std::move(read_on)});
  return true;
}

void SiteCalls::Ready(const SitePeer* peer) {
  WithSiteOf(peer, exchange_, [&](Run& run, const core::SiteId& site) {
    run.Apply(SiteReady{site, run.members[site].session}, options_.clock->NowMs());
    run.Publish();
  });
}

void SiteCalls::Progress(const SitePeer* peer, const v1::Progress& message) {
  WithSiteOf(peer, exchange_, [&](Run& run, const core::SiteId& site) {
    Member& member = run.members[site];
    run.Apply(ReportOf(site, member.session, message), options_.clock->NowMs());
    core::Progress progress = transport::FromProto(message);
    run.codecs.Heard(site, progress);
    if (std::isnan(progress.loss)) progress.loss = member.progress->loss;  // nothing new
    run.evaluations.Heard(site, progress, run.admission.data(), run.ready);
    member.progress = std::make_shared<const core::Progress>(std::move(progress));
    run.Publish();
  });
}

void SiteCalls::Leave(const SitePeer* peer, const v1::Leave& leave) {
  WithSiteOf(peer, exchange_, [&](Run& run, const core::SiteId& site) {
    if (run.follower() != nullptr) {  // shard 0 will announce its meaning
      run.members.Close(site, run.ready);
      return run.Publish();
    }
    run.Apply(SiteLeaves{site, run.members[site].session, leave.finished(), OfSite(leave.reason())},
              options_.clock->NowMs());
    run.Publish();
  });
}

void SiteCalls::Disconnected(const SitePeer* peer) {
  WithSiteOf(peer, exchange_, [&](Run& run, const core::SiteId& site) {
    const int64_t now_ms = options_.clock->NowMs();
    run.members.Silent(site, now_ms);
    run.Apply(SiteDisconnected{site, run.members[site].session}, now_ms);
    spdlog::warn("site {}: its control stream broke; its name is kept for {} ms", site,
                 run.settings.newest().membership.lease_ms);
  });
}

void SiteCalls::Flooded(const core::SiteId& site, const std::string& why) {
  exchange_.With([&](Run& run) {
    if (!run.members.Complain(site, &Member::flood, why, options_.clock->NowMs())) return;
    run.ready.Note("noisy", site, -1, why);
    run.Publish();
  });
}

}  // namespace causeway::server
