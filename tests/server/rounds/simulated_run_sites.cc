// What sites do, and the network between them and the coordinator.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/server/rounds/simulated_run.h"

namespace causeway::server {

using core::FragmentId;
using core::Version;
using worker::SiteRules;
namespace action = worker::action;
namespace event = worker::event;

namespace {

constexpr Version kKeptUpdates = 12;  // of each fragment: a site that is further behind takes the anchor

}  // namespace

// ---- The process ----

void SimulatedRun::StartProcess(int i, std::optional<worker::SiteFacts> checkpoint) {
  SimulatedSite& site = sites_[i];
  ++site.life;  // what was on its way is lost
  ++site.transfers;
  site.running = true;
  site.connected = site.stepping = site.may_lose = false;
  site.step_actions.clear();
  site.rules = std::make_unique<SiteRules>(config_, site.name);
  if (checkpoint) {
    site.rules->Restore(*std::move(checkpoint));
    for (SimulatedFragment& fragment : site.fragments) {
      fragment.asked.reset();
      fragment.resolves.reset();
    }
  } else {
    site.session = absl::StrCat(site.name, "-", draws_++);
    site.fragments.assign(schedule_.num_fragments(), {});
  }
  Tell(i, event::Joining{});
}

void SimulatedRun::OnStep(int i) {
  SimulatedSite& site = sites_[i];
  site.stepping = false;
  done_ += schedule_.num_fragments();
  for (SimulatedFragment& fragment : site.fragments) ++fragment.outstanding;
  const uint64_t life = site.life;
  Tell(i, event::Stepped{.step = site.step() + 1, .tokens = 8});
  if (life != site.life || site.cut || !site.connected) return;
  // The end of a step that was under way when the site joined anew says nothing of how long the steps of this stay
  // take.
  site.heard_steps = site.step() == site.heard_step + 1 ? site.heard_steps + 1 : 1;
  site.heard_step = site.step();
  if (site.heard_steps >= 2) site.estimated = true;
  Report(i);
}

void SimulatedRun::GoOn(int i) {
  SimulatedSite& site = sites_[i];
  if (!site.running || site.stepping) return;
  const uint64_t life = site.life;
  while (!site.step_actions.empty()) {
    const worker::SiteAction action = site.step_actions.front();
    site.step_actions.pop_front();
    DoOnStepThread(i, action);
    if (life != site.life || site.stepping) return;  // what that led to went on
  }
  switch (site.rules->turn()) {
    case SiteRules::Turn::kWait: return;
    case SiteRules::Turn::kFailed:
      return Expect(false, absl::StrCat("site ", site.name, ": ", site.rules->failure().ToString()));
    case SiteRules::Turn::kDone: return LeaveRun(i, /*finished=*/!site.draining);
    case SiteRules::Turn::kJoin:
      if (!site.rules->state().stay.waited_for) Tell(i, event::Joining{});
      return;
    case SiteRules::Turn::kGoOn: break;
  }
  if (site.draining && site.leaves_early) {
    if (!site.cut && !site.AnySending() && !site.AnyBusy()) LeaveRun(i, /*finished=*/false);
    return;
  }
  if (site.draining || (site.target > 0 && site.step() >= site.target)) {
    site.completing = site.may_lose = true;
    Tell(i, event::Completing{});
    if (!site.cut) Report(i);
    return;
  }
  site.stepping = true;
  Schedule(site.step_ms * site.straggle, Kind::kStep, i);
}

void SimulatedRun::LeaveRun(int i, bool finished) {
  SimulatedSite& site = sites_[i];
  if (site.cut) return;  // it says so when it is back
  LoseWork(site);
  site.running = site.connected = false;
  site.rules.reset();
  ++site.life;
  Take(table_.Leave(site.name, site.session, finished, "leaves", now_ms_));
  if (!ending_ && (peace_ || Chance(85))) site.start_ms = now_ms_ + static_cast<int64_t>(Random(1000));
}

void SimulatedRun::Orphan(const SimulatedSite& site, FragmentId p) {
  if (const auto waiting = waiting_.find({site.name, p}); waiting != waiting_.end()) {
    waiting->second.second.orphan = true;
  }
}

void SimulatedRun::LoseFragment(SimulatedSite& site, FragmentId p) {
  SimulatedFragment& fragment = site.fragments[p];
  if (fragment.sent && (fragment.sent->admitted || fragment.sent->merged)) fragment.outstanding -= fragment.sent->work;
  Orphan(site, p);
  fragment.sent.reset();
  lost_ += std::exchange(fragment.outstanding, 0);
}

void SimulatedRun::LoseWork(SimulatedSite& site) {
  for (size_t p = 0; p < site.fragments.size(); ++p) LoseFragment(site, static_cast<FragmentId>(p));
}

// ---- The rules of a site ----

void SimulatedRun::TellLater(int i, int64_t in_ms, worker::SiteEvent event) {
  Push({.at_ms = now_ms_ + in_ms,
        .kind = Kind::kSiteEvent,
        .site = i,
        .life = sites_[i].life,
        .happens = std::make_shared<const worker::SiteEvent>(std::move(event))});
}

void SimulatedRun::TellOnStream(int i, worker::SiteEvent event) {
  const SimulatedSite& site = sites_[i];
  if (!site.connected || site.cut) return;
  Push({.at_ms = now_ms_ + site.latency_ms,
        .kind = Kind::kSiteEvent,
        .site = i,
        .life = site.life,
        .stream = site.stream,
        .happens = std::make_shared<const worker::SiteEvent>(std::move(event))});
}

void SimulatedRun::Tell(int i, const worker::SiteEvent& event) {
  SimulatedSite& site = sites_[i];
  if (!site.running) return;
  if (const auto* taken = std::get_if<event::UpdateTaken>(&event)) OnTaken(i, taken->fragment);
  if (const auto* encoded = std::get_if<event::Encoded>(&event)) {
    SimulatedFragment& fragment = site.fragments[encoded->fragment];
    fragment.sent = {.base = site.rules->state().fragments[encoded->fragment].facts().sent->base,
                     .work = fragment.read};
  }
  if (const auto* fetched = std::get_if<event::Fetched>(&event)) {
    SimulatedFragment& fragment = site.fragments[fetched->tag.fragment];
    if (site.cut || !fragment.asked || fragment.asked->tag != fetched->tag) return;  // asked for again when it is back
    fragment.asked.reset();
  }
  const uint64_t life = site.life;
  for (const worker::SiteAction& action : site.rules->Handle(event, now_ms_ * 1000)) {
    Do(i, action);
    if (life != site.life) return;
  }
  GoOn(i);
}

void SimulatedRun::OnTaken(int i, FragmentId p) {
  SimulatedFragment& fragment = sites_[i].fragments[p];
  const std::optional<bool> resolves = std::exchange(fragment.resolves, std::nullopt);
  if (!resolves || !fragment.sent) return;
  Expect(*resolves == fragment.sent->merged, "a site takes for merged what was");
  if (*resolves) fragment.outstanding -= fragment.sent->work;
  fragment.sent.reset();
}

void SimulatedRun::Do(int i, const worker::SiteAction& action) {
  SimulatedSite& site = sites_[i];
  const auto soon = [this] { return static_cast<int64_t>(Random(4)); };
  if (const auto* encode = std::get_if<action::Encode>(&action)) {
    TellLater(i, soon(), event::Encoded{encode->fragment});
  } else if (const auto* upload = std::get_if<action::Upload>(&action)) {
    Send(i, *upload, site.latency_ms + static_cast<int64_t>(Random(Chance(storm_ ? 40 : 10) ? 500 : 20)));
    if (Chance(2)) Send(i, *upload, site.latency_ms + static_cast<int64_t>(Random(100)));
  } else if (const auto* fetch = std::get_if<action::FetchUpdate>(&action)) {
    site.fragments[fetch->tag.fragment].asked = {.tag = fetch->tag, .anchor = false, .version = fetch->base};
    Deliver(i, fetch->tag.fragment, 2 * site.latency_ms);
  } else if (const auto* anchor = std::get_if<action::FetchAnchor>(&action)) {
    site.fragments[anchor->tag.fragment].asked = {.tag = anchor->tag, .anchor = true, .version = anchor->at_least};
    Deliver(i, anchor->tag.fragment, 2 * site.latency_ms + static_cast<int64_t>(Random(100)));
  } else if (const auto* place = std::get_if<action::PlaceAnchor>(&action)) {
    if (!place->stage && site.rules->state().counts.entered > 0) {
      Expect(site.may_lose, "a site starts from the anchor only where updates are gone, or it has completed");
      ++lost_fragments_;
    }
    if (!place->stage) LoseFragment(site, place->fragment);
    TellLater(i, soon(), event::AnchorPlaced{place->fragment});
  } else if (const auto* take = std::get_if<action::TakeUpdate>(&action)) {
    site.fragments[take->fragment].resolves = take->resolve;
    TellLater(i, soon(), event::UpdateTaken{take->fragment, ""});
  } else if (const auto* resolve = std::get_if<action::Resolve>(&action)) {
    SimulatedFragment& fragment = site.fragments[resolve->fragment];
    Expect(!fragment.sent || !fragment.sent->admitted || resolve->merged, "what was admitted is not refused");
    fragment.sent.reset();  // its work stays in the outer gradient
  } else if (const auto* forget = std::get_if<action::ForgetResidual>(&action)) {
    Expect(site.may_lose || site.rules->state().counts.entered == 0, "a site that keeps its session keeps its work");
    LoseFragment(site, forget->fragment);
  } else if (std::holds_alternative<action::SendReady>(action)) {
    Schedule(site.latency_ms, Kind::kReady, i);
  } else if (std::holds_alternative<action::Rejoin>(action)) {
    if (site.connected) Disconnect(site);
    Schedule(site.latency_ms, Kind::kJoin, i);
  } else if (!std::holds_alternative<action::Say>(action) && !std::holds_alternative<action::Evaluate>(action)) {
    site.step_actions.push_back(action);
  }
}

void SimulatedRun::DoOnStepThread(int i, const worker::SiteAction& action) {
  SimulatedSite& site = sites_[i];
  if (const auto* read = std::get_if<action::ReadTheta>(&action)) {
    site.fragments[read->fragment].read = site.fragments[read->fragment].outstanding;
    TellLater(i, static_cast<int64_t>(Random(4)), event::Copied{read->fragment});
  } else if (const auto* move = std::get_if<action::MoveTheta>(&action)) {
    Tell(i, event::Moved{move->fragment});
  } else if (const auto* offer = std::get_if<action::OfferInitial>(&action)) {
    site.fragments[offer->tag.fragment].asked = {.tag = offer->tag, .anchor = true};
    Deliver(i, offer->tag.fragment, 2 * site.latency_ms);
    Tell(i, event::Offered{offer->tag});
  } else if (std::holds_alternative<action::UploadInitial>(action)) {
    Schedule(site.latency_ms + static_cast<int64_t>(Random(200)), Kind::kSeed, i);
  }
}

// ---- Transfers ----

void SimulatedRun::Send(int i, const action::Upload& upload, int64_t in_ms) {
  const SimulatedSite& site = sites_[i];
  Push({.at_ms = now_ms_ + in_ms,
        .kind = Kind::kArrive,
        .site = i,
        .life = site.life,
        .transfers = site.transfers,
        .is_transfer = true,
        .tag = upload.tag,
        .contribution = {.base = upload.base, .tokens = upload.weight.tokens, .steps = upload.weight.steps}});
}

void SimulatedRun::Deliver(int i, FragmentId p, int64_t in_ms) {
  SimulatedSite& site = sites_[i];
  if (!site.running || site.cut || static_cast<size_t>(p) >= site.fragments.size() || !site.fragments[p].asked) return;
  const AskedFor& asked = *site.fragments[p].asked;
  event::Fetched fetched{.tag = asked.tag, .begun_us = now_ms_ * 1000};
  const auto decided = static_cast<Version>(closed_[p].size());
  if (asked.anchor) {
    if (!table_.state().seeded) return;
    fetched.version = std::max(asked.version, decided - static_cast<Version>(Random(5)));  // of a snapshot
  } else if (asked.version >= decided) {
    return;
  } else {
    const Closed& closed = closed_[p][asked.version];
    fetched.version = asked.version + 1;
    for (const CloseRound::Contributor& contributor : closed.contributors) {
      fetched.sites.push_back(contributor.site);
      if (contributor.site == site.name) fetched.merged = contributor.base;
    }
    if (asked.version < decided - kKeptUpdates) {
      fetched.status = absl::NotFoundError("pruned");
      site.may_lose = true;
    }
  }
  Push({.at_ms = now_ms_ + in_ms,
        .kind = Kind::kSiteEvent,
        .site = i,
        .life = site.life,
        .transfers = site.transfers,
        .is_transfer = true,
        .happens = std::make_shared<const worker::SiteEvent>(std::move(fetched))});
}

void SimulatedRun::OnArrive(const Event& arrived) {
  SimulatedSite& site = sites_[arrived.site];
  if (site.cut) return;  // sent again when it is back
  const FragmentId p = arrived.tag.fragment;
  const absl::Status status = table_.CheckContribution(site.name, site.session, p, arrived.contribution);
  Expect(!absl::IsInvalidArgument(status), std::string(status.message()));
  const bool repeat = absl::IsAlreadyExists(status);
  Push({.at_ms = now_ms_ + site.latency_ms,
        .kind = Kind::kSiteEvent,
        .site = arrived.site,
        .life = site.life,
        .transfers = site.transfers,
        .is_transfer = true,
        .happens = std::make_shared<const worker::SiteEvent>(
            event::VerdictGiven{arrived.tag, repeat ? absl::OkStatus() : status})});
  if (!status.ok()) return;
  const Version base = arrived.contribution.base;
  const Key key{site.name, p};
  std::optional<SentWork>& sent = site.fragments[p].sent;
  Expect(sent && sent->base == base, "what is admitted is what the site waits for");
  Expect(!waiting_.contains(key), "one unresolved contribution for each site and fragment");
  const auto [last, first] = last_admitted_.try_emplace(key, -1);
  Expect(base > last->second, "no base version is admitted twice");
  if (!failure_.empty()) return;
  last->second = base;
  sent->admitted = true;
  waiting_[key] = {base, {.work = sent->work}};
  Take(table_.Admit(site.name, p, arrived.contribution, site.latency_ms, now_ms_));
}

// ---- The control stream ----

// Asks to join, or to go on with its session; also after a refusal that says when to ask again.
void SimulatedRun::TryJoin(int i) {
  SimulatedSite& site = sites_[i];
  if (site.cut || !site.running) return;
  const transport::Standing standing = site.rules->GetStanding();
  const JoinDecision decision = table_.Join({.site = site.name,
                                             .session = site.session,
                                             .held = standing.versions,
                                             .from_checkpoint = standing.from_checkpoint},
                                            now_ms_);
  site.heard_steps = 0;
  // What an earlier stay left behind goes first, as the coordinator does it, and what the site is told comes last.
  Actions told, before;
  for (const Action& action : decision.actions) {
    const bool is_told = std::holds_alternative<RequestSeed>(action) || std::holds_alternative<Enter>(action);
    (is_told ? told : before).push_back(action);
  }
  Take(before);
  if (!decision.accepted) return Expect(!decision.reason.empty(), "a refusal has its reason");  // it tries again
  const bool keeps = decision.resumed || standing.joining;
  if (!keeps) ++site.transfers;
  site.connected = true;
  ++site.stream;
  const uint64_t life = site.life;
  Tell(i, event::Held{table_.held()});
  Tell(i, event::Welcomed{.resumed = decision.resumed,
                          .kept_transfers = keeps,
                          .num_fragments = schedule_.num_fragments(),
                          .last_admitted = decision.last_admitted});
  if (life != site.life) return;
  if (table_.state().sites.at(site.name).state == core::SiteState::kDraining) site.draining = true;  // it may not know
  Take(told);
  for (FragmentId p = 0; keeps && p < static_cast<FragmentId>(site.rules->state().fragments.size()); ++p) {
    const worker::FragmentRules& fragment = site.rules->state().fragments[p];
    Deliver(i, p, 2 * site.latency_ms);
    if (fragment.outgoing() == worker::Outgoing::kSending)
      Send(i, fragment.ToSend(site.rules->state().stay.number, site.rules->state().stay.welcomed), site.latency_ms);
  }
}

void SimulatedRun::OnReady(int i) {
  SimulatedSite& site = sites_[i];
  if (site.cut || !site.connected) return;  // said again when it is back
  Take(table_.Ready(site.name, site.session));
}

void SimulatedRun::Report(int i) {
  SimulatedSite& site = sites_[i];
  if (site.cut || !site.connected) return;
  Take(table_.Heard(site.name, site.session, {.step = site.step(), .completing = site.completing}, now_ms_));
}

bool SimulatedRun::InSession(const SimulatedSite& site) const {
  const auto record = table_.state().sites.find(site.name);
  return record != table_.state().sites.end() && record->second.session == site.session &&
         record->second.state != core::SiteState::kGone;
}

// Whose stream was closed asks again, until the run ends.
void SimulatedRun::OnHeartbeat(int i) {
  SimulatedSite& site = sites_[i];
  if (!site.running) {
    if (site.start_ms < 0 || now_ms_ < site.start_ms) return;
    site.start_ms = -1;
    StartProcess(i, std::nullopt);
  }
  Tell(i, event::Ticked{});
  if (!site.running) return;
  if (!site.cut && !site.connected) {
    if (!ending_ || InSession(site)) return TryJoin(i);
    LoseWork(site);
    site.running = site.stepping = false;
    site.rules.reset();
    ++site.life;
    return;
  }
  if (site.stepping) return;  // it reports at the end of its step
  Report(i);
  GoOn(i);
}

}  // namespace causeway::server
