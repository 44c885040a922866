// The clock, the churn and the operator.
#include "tests/server/rounds/simulated_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/random.h"
#include "tests/server/rounds/table_for_test.h"

namespace causeway::server {
namespace {

constexpr int64_t kTickMs = 10;
constexpr int64_t kHeartbeatMs = 100;
constexpr int64_t kLongestPeaceMs = 60'000;  // of virtual time: some ten times what the slowest run needs

uint64_t Draw(uint64_t seed, uint64_t what, uint64_t below) {
  return core::HashCombine(core::HashCombine(seed, what), "rules") % below;
}

RoundRules RandomRules(uint64_t seed) {
  const int64_t sync_every = 2 + static_cast<int64_t>(Draw(seed, 0, 9));
  const int fragments = 1 + static_cast<int>(Draw(seed, 1, std::min<int64_t>(sync_every, 4)));
  const int sites = 1 + static_cast<int>(Draw(seed, 2, 8));
  RoundRules rules = Rules(sync_every, fragments, static_cast<int64_t>(Draw(seed, 3, sync_every)));
  rules.sync.mode = Draw(seed, 4, 3) == 0 ? core::SyncMode::kSynchronous : core::SyncMode::kQuorum;
  for (int p = 0; p < fragments && Draw(seed, 12, 2) == 0; ++p) {
    rules.sync.fragment_offsets.push_back(static_cast<core::Step>(Draw(seed, 100 + p, sync_every)));
  }
  rules.sync.first_send = Draw(seed, 13, 2) == 0 ? core::FirstSend::kOffset : core::FirstSend::kFull;
  core::MembershipConfig& membership = rules.membership;
  membership.min_sites = 1 + static_cast<int>(Draw(seed, 5, sites));
  membership.min_quorum = 1 + static_cast<int>(Draw(seed, 6, std::min(sites, 4)));
  membership.grace_ms = static_cast<int64_t>(Draw(seed, 7, 3)) * 50;
  membership.max_staleness = static_cast<int64_t>(Draw(seed, 8, 4));
  membership.weights = static_cast<core::WeightRule>(Draw(seed, 9, 3));
  return rules;
}

core::RunConfig ConfigOf(const RoundRules& rules, uint64_t seed) {
  core::RunConfig config;
  config.sync = rules.sync;
  if (Draw(seed, 11, 4) == 0) config.sync.fragment_sync_delay = core::kAutoDelay;  // of the sites alone
  config.membership = rules.membership;
  return config;
}

}  // namespace

SimulatedRun::SimulatedRun(uint64_t seed)
    : seed_(seed),
      rules_(RandomRules(seed)),
      storm_(Draw(seed, 10, 6) == 0),
      schedule_(rules_.sync.Schedule()),
      config_(ConfigOf(rules_, seed)),
      table_(rules_, {}, 0),
      sites_(1 + Draw(seed, 2, 8)),
      closed_(schedule_.num_fragments()),
      closed_ms_(schedule_.num_fragments(), -1) {
  for (size_t i = 0; i < sites_.size(); ++i) {
    SimulatedSite& site = sites_[i];
    site.name = core::SiteId(1, static_cast<char>('a' + i));
    site.step_ms = 5 + static_cast<int64_t>(Random(15));
    if (i == 1) site.step_ms *= 4;
    site.latency_ms = 1 + static_cast<int64_t>(Random(Chance(30) ? 200 : 20));
    site.start_ms = static_cast<int64_t>(Random(500));
    Schedule(static_cast<int64_t>(Random(kHeartbeatMs)), Kind::kHeartbeat, static_cast<int>(i));
  }
  Schedule(kTickMs, Kind::kTick);
  Schedule(static_cast<int64_t>(Random(1000)), Kind::kChaos);
}

std::string SimulatedRun::Describe() const {
  const core::MembershipConfig& membership = rules_.membership;
  const bool synchronous = rules_.sync.mode == core::SyncMode::kSynchronous;
  std::string text = absl::StrCat("seed ", seed_, ", at ", now_ms_, " ms, round ", rounds_, ": ",
                                  synchronous ? "synchronous" : "quorum", ", H ", rules_.sync.sync_every, ", P ",
                                  rules_.sync.num_fragments, ", delay ", rules_.sync.fragment_sync_delay,
                                  ", min_sites ", membership.min_sites, ", min_quorum ", membership.min_quorum,
                                  ", grace ", membership.grace_ms, ", max_staleness ", membership.max_staleness,
                                  "\n  run: ", RunStateName(table_.run_state()), ": ", table_.Reason(), "\n");
  for (core::FragmentId p = 0; p < schedule_.num_fragments(); ++p) {
    absl::StrAppend(&text, "  fragment ", p, ": version ", table_.state().versions[p], ", ",
                    RoundPhaseName(table_.Phase(p)), ": ", table_.RoundReason(p), "\n");
  }
  for (const SimulatedSite& site : sites_) {
    const auto record = table_.state().sites.find(site.name);
    absl::StrAppend(&text, "  site ", site.name, ": ",
                    record == table_.state().sites.end() ? "never seen" : core::SiteStateName(record->second.state),
                    site.running ? "" : ", not running", site.connected ? "" : ", not connected",
                    site.cut ? ", cut off" : "", site.stepping ? ", steps" : "", site.draining ? ", drains" : "",
                    ", step ", site.step(), " of ", site.step_ms, " ms\n");
    if (site.rules == nullptr) continue;
    const worker::SiteState& state = site.rules->state();
    absl::StrAppend(&text, "    ", worker::StageName(state.stay.stage), " in stay ", state.stay.number,
                    state.held ? ", held" : "", ", ", site.step_actions.size(), " actions wait for the step thread\n");
    for (const worker::FragmentRules& fragment : state.fragments) {
      absl::StrAppend(&text, "    fragment ", fragment.id(), ": ", worker::OutgoingName(fragment.outgoing()), ", ",
                      worker::IncomingName(fragment.incoming()), ", version ", fragment.facts().version, ", applied ",
                      fragment.facts().applied, ", first ", fragment.facts().first, "\n");
    }
  }
  return text;
}

uint64_t SimulatedRun::Random(uint64_t below) { return core::HashCombine(seed_, draws_++) % below; }

void SimulatedRun::Push(Event event) {
  event.order = pushed_++;
  queue_.push(event);
}

void SimulatedRun::Schedule(int64_t in_ms, Kind kind, int site) {
  Push({.at_ms = now_ms_ + in_ms, .kind = kind, .site = site, .life = site < 0 ? 0 : sites_[site].life});
}

void SimulatedRun::Expect(bool holds, const std::string& what) {
  if (!holds && failure_.empty()) failure_ = what;
}

std::string SimulatedRun::Run(int64_t rounds) {
  goal_ = rounds;
  // Churn may stop a run for good, as far as the rules go: e.g. too many sites are dead. Then peace comes early.
  RunUntil("", 40 * rounds + 100'000, &SimulatedRun::GoalReached);
  MakePeace();
  goals_ = table_.state().versions;
  for (core::Version& goal : goals_) goal += 3;
  if (!RunUntil("no round of some fragment closes in peace", kLongestPeaceMs, &SimulatedRun::AllRoundsReached)) {
    return failure_;
  }
  const int64_t end_ms = now_ms_ + static_cast<int64_t>(Random(1000));  // anywhere within a round
  while (failure_.empty() && now_ms_ < end_ms) RunEvent();
  EndRun();
  if (!RunUntil("the run does not end", kLongestPeaceMs, &SimulatedRun::Ended)) return failure_;
  Expect(waiting_.empty(), "the run ended with contributions that were admitted and not merged");
  return failure_;
}

bool SimulatedRun::GoalReached() const { return rounds_ >= goal_; }

bool SimulatedRun::AllRoundsReached() const {
  for (size_t p = 0; p < goals_.size(); ++p) {
    if (table_.state().versions[p] < goals_[p]) return false;
  }
  return true;
}

bool SimulatedRun::Ended() const {
  if (!draining_all_) return table_.run_state() == RunState::kDone;
  return std::all_of(table_.state().sites.begin(), table_.state().sites.end(),
                     [](const auto& site) { return site.second.state == core::SiteState::kGone; });
}

bool SimulatedRun::RunUntil(const char* what, int64_t longest_ms, bool (SimulatedRun::*reached)() const) {
  const int64_t until_ms = now_ms_ + longest_ms;
  while (failure_.empty() && !(this->*reached)()) {
    if (now_ms_ >= until_ms) {
      Expect(*what == '\0', what);
      return false;
    }
    RunEvent();
  }
  return failure_.empty();
}

void SimulatedRun::RunEvent() {
  const Event event = queue_.top();
  queue_.pop();
  now_ms_ = event.at_ms;
  const bool heartbeat = event.kind == Kind::kHeartbeat;
  if (event.site >= 0 && !heartbeat && event.life != sites_[event.site].life) return;
  if (event.stream > 0 && (event.stream != sites_[event.site].stream || !sites_[event.site].connected)) return;
  if (event.is_transfer && event.transfers != sites_[event.site].transfers) return;
  ++events_;
  switch (event.kind) {
    case Kind::kTick:
      Take(table_.Tick(now_ms_));
      Schedule(kTickMs, Kind::kTick);
      break;
    case Kind::kStep: OnStep(event.site); break;
    case Kind::kHeartbeat:
      OnHeartbeat(event.site);
      Schedule(kHeartbeatMs, Kind::kHeartbeat, event.site);
      break;
    case Kind::kArrive: OnArrive(event); break;
    case Kind::kJoin: TryJoin(event.site); break;
    case Kind::kReady: OnReady(event.site); break;
    case Kind::kSeed:
      if (!sites_[event.site].cut && InSession(sites_[event.site])) Take(table_.Seeded());
      break;
    case Kind::kSiteEvent: Tell(event.site, *event.happens); break;
    case Kind::kHeal: Heal(event.site); break;
    case Kind::kChaos: Chaos(); break;
    case Kind::kResume:
      if (!ending_) ResumeRun();
      break;
  }
  CheckPromises();
}

void SimulatedRun::Chaos() {
  if (peace_) return;
  const int i = static_cast<int>(Random(sites_.size()));
  SimulatedSite& site = sites_[i];
  switch (Random(12)) {
    case 0:
    case 1: Die(i); break;
    case 2: RestartFromCheckpoint(i); break;
    case 3:
    case 4: Cut(i); break;
    case 5: DrainSite(site); break;
    case 6:
    case 7: site.straggle = site.straggle > 1 ? 1 : 2 + static_cast<int64_t>(Random(3)); break;
    case 8:
    case 9: RestartCoordinator(); break;
    case 10: PauseRun(); break;
    case 11:
      if (Chance(20)) StopRun();
      break;
  }
  Schedule(static_cast<int64_t>(Random(storm_ ? 200 : 800)), Kind::kChaos);
}

void SimulatedRun::Die(int i) {
  SimulatedSite& site = sites_[i];
  if (!site.running) return;
  LoseWork(site);
  site.running = site.stepping = site.cut = false;
  site.rules.reset();
  ++site.life;
  if (Chance(50)) Disconnect(site);
  site.connected = false;
  // Some stay away until there is peace.
  if (!ending_ && Chance(85)) site.start_ms = now_ms_ + static_cast<int64_t>(Random(3000));
}

// Its process ends, and another one goes on with the session from the end of the last step, a moment later.
void SimulatedRun::RestartFromCheckpoint(int i) {
  SimulatedSite& site = sites_[i];
  if (!site.running || site.cut || !site.rules->CanBeSaved() || site.AnyBusy()) return;
  worker::SiteFacts checkpoint = site.rules->Facts();
  Disconnect(site);
  StartProcess(i, std::move(checkpoint));
  site.cut = true;
  Schedule(static_cast<int64_t>(Random(1500)), Kind::kHeal, i);
}

void SimulatedRun::Cut(int i) {
  SimulatedSite& site = sites_[i];
  if (!site.running || site.cut) return;
  site.cut = true;
  if (Chance(50)) Disconnect(site);
  Schedule(static_cast<int64_t>(Random(3000)), Kind::kHeal, i);
}

void SimulatedRun::Heal(int i) {
  if (!sites_[i].cut) return;
  sites_[i].cut = false;
  TryJoin(i);
}

void SimulatedRun::RestartCoordinator() {
  table_ = RoundTable(rules_, core::RoundState(table_.state()), now_ms_);
  closed_ms_.assign(closed_ms_.size(), -1);
  last_closed_ms_ = -1;
  for (size_t i = 0; i < sites_.size(); ++i) {
    SimulatedSite& site = sites_[i];
    site.heard_steps = 0;
    site.estimated = site.connected = false;
    if (site.running && !site.cut) Schedule(static_cast<int64_t>(Random(400)), Kind::kJoin, static_cast<int>(i));
  }
}

void SimulatedRun::PauseRun() {
  if (!table_.Pause().ok()) return;
  TellHeld();
  Schedule(static_cast<int64_t>(Random(1500)), Kind::kResume);
}

void SimulatedRun::TellHeld() {
  for (size_t i = 0; i < sites_.size(); ++i) {
    if (sites_[i].connected && !sites_[i].cut) Tell(static_cast<int>(i), worker::event::Held{table_.held()});
  }
}

void SimulatedRun::StopRun() {
  if (!table_.Stop().ok()) return;
  TellHeld();  // it ends a pause
  for (SimulatedSite& site : sites_) {
    site.draining = true;
    site.heard_steps = 0;
  }
  if (!ending_) Schedule(static_cast<int64_t>(Random(3000)), Kind::kResume);
}

void SimulatedRun::ResumeRun() {
  if (!table_.state().paused && !table_.state().stopped) return;
  Expect(table_.Resume().ok(), "a run resumes");
  TellHeld();
  for (SimulatedSite& site : sites_) site.heard_steps = 0;
}

void SimulatedRun::Disconnect(SimulatedSite& site) {
  table_.Disconnected(site.name, site.session, now_ms_);
  site.heard_steps = 0;
  site.connected = false;
}

// From here on nobody fails, and everybody is back.
void SimulatedRun::MakePeace() {
  peace_ = true;
  ResumeRun();
  for (size_t i = 0; i < sites_.size(); ++i) {
    SimulatedSite& site = sites_[i];
    site.straggle = 1;
    if (site.cut) Heal(static_cast<int>(i));
    if (!site.running) site.start_ms = now_ms_;
  }
}

// All sites finish, or the run is stopped, both also with sites that die meanwhile; or all are drained one by one.
void SimulatedRun::EndRun() {
  ending_ = true;
  switch (Random(3)) {
    case 0:
      if (Chance(50)) {
        Expect(table_.Pause().ok(), "a run pauses");
        TellHeld();
      }
      StopRun();
      Expect(table_.state().stopped, "a run stops");
      break;
    case 1: FinishAll(); break;
    case 2:
      draining_all_ = true;
      for (SimulatedSite& site : sites_) DrainSite(site);
      return;
  }
  // A synchronous run below its quorum waits for others to join, and so do those who wait for its rounds in order to
  // finish.
  const bool any = table_.state().stopped || rules_.sync.mode == core::SyncMode::kQuorum;
  for (size_t i = any ? 1 : rules_.membership.min_quorum; i < sites_.size(); ++i) {
    if (Chance(25)) Die(static_cast<int>(i));
  }
}

void SimulatedRun::DrainSite(SimulatedSite& site) {
  if (!table_.StartDraining(site.name, "asked to").ok()) return;
  site.draining = true;
  site.leaves_early = !ending_ && Chance(50);
}

void SimulatedRun::FinishAll() {
  const int64_t sync_every = rules_.sync.sync_every;
  const auto more = [&] { return 1 + static_cast<core::Step>(Random(3 * sync_every)); };
  core::Step last = 0;
  for (const SimulatedSite& site : sites_) last = std::max(last, site.step());
  last += more();
  for (SimulatedSite& site : sites_) {
    site.target = rules_.sync.mode == core::SyncMode::kSynchronous ? last : site.step() + more();
  }
}

}  // namespace causeway::server
