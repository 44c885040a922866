
#include "tests/sim/world.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/fragment_map.h"
#include "core/model_manifest.h"
#include "core/run_config.h"
#include "tests/sim/machine.h"
#include "tests/sim/service.h"

namespace causeway::sim {

namespace {

constexpr size_t kKept = 256;
constexpr std::chrono::milliseconds kExact(1);  // of times that are written in milliseconds
constexpr std::chrono::seconds kJournaled(2);   // at most after the lease ended, on a slow disk

int64_t Milliseconds(Clock::Duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

}  // namespace

void Leases::Heard(const std::string& site, Clock::TimePoint at, Clock::TimePoint came) {
  std::deque<Word>& words = heard_[site];
  words.push_back({.came = came, .heard = words.empty() ? at : std::max(words.back().heard, at)});
  if (words.size() > kKept) words.pop_front();
}

void Leases::StoodStill(Clock::TimePoint from, Clock::TimePoint to) {
  Died(from);
  stalls_.emplace_back(from, to);
}

void Leases::Died(Clock::TimePoint at) {
  if (!stalls_.empty()) stalls_.back().second = std::min(stalls_.back().second, at);
}

std::string Leases::Ended(const std::string& site, Clock::TimePoint at) const {
  const auto known = heard_.find(site);
  if (known == heard_.end()) return "";
  const std::deque<Word>& words = known->second;
  const auto after =
      std::ranges::upper_bound(words, at - kJournaled, {}, &Word::came);  // it may not know of later ones
  if (after == words.begin()) return "";
  const Clock::TimePoint heard = std::prev(after)->heard;
  Clock::Duration ran = at - heard;
  for (const auto& [from, to] : stalls_) {
    if (to - from <= lease_ / 4) continue;  // too short to be noticed
    ran -= std::max(Clock::Duration::zero(), std::min(to, at) - std::max(from, heard));
  }
  if (ran + kExact >= lease_) return "";
  return absl::StrCat("the lease of ", site, " ended when the coordinator had run for ", Milliseconds(ran), " of ",
                      Milliseconds(lease_), " ms without a word of it");
}

// The settings of a simulated run, and its model, by chance.

struct DrawnRun {
  core::RunConfig config;
  core::SyntheticConfig model;
  int shards = 1;
};

core::SyntheticConfig DrawModel(Chance& chance);
DrawnRun DrawRun(Chance& chance);

core::SyntheticConfig DrawModel(Chance& chance) {
  core::SyntheticConfig model;
  model.step_ms = chance.Between(10, 60);
  model.apply = core::SyntheticApply::kOnSend;
  for (int64_t i = 0, tensors = chance.Between(4, 7); i < tensors; ++i) {
    model.tensors.push_back(
        {.name = absl::StrCat("t", i), .shape = {chance.Between(1, 4000)}, .init = 0.25F * static_cast<float>(i)});
  }
  for (const char* site : {"a", "b", "c", "d"}) {
    model.gradient_by_site[site] = static_cast<float>(chance.Between(-100, 100)) / 64.0F;
  }
  return model;
}

DrawnRun DrawRun(Chance& chance) {
  DrawnRun run;
  core::RunConfig& config = run.config;
  config.run_id = "sim";
  config.seed = 7;
  run.model = DrawModel(chance);
  config.model_kind = chance.OneIn(3) ? core::ModelKind::kExternal : core::ModelKind::kSynthetic;
  if (config.model_kind == core::ModelKind::kSynthetic) config.synthetic = run.model;
  config.inner = InnerOfSimulation();
  config.sync.num_fragments = static_cast<int>(chance.Between(1, 4));
  run.shards = config.sync.num_fragments > 1 && chance.OneIn(3) ? 2 : 1;
  // Parts of fragments for both shards, where each fragment has enough units; drawn from what was drawn, so that a
  // seed's other choices stay.
  config.sync.parts = run.shards == 2 && run.model.tensors.size() % 2 == 0 ? 2 : 1;
  if (!core::BuildFragmentMap(core::SyntheticManifest(run.model), config.sync).ok()) config.sync.parts = 1;
  config.sync.sync_every = chance.Between(config.sync.num_fragments + 2, 14);
  config.sync.fragment_sync_delay = chance.Below(std::min<int64_t>(config.sync.sync_every, 4));
  config.sync.mode = chance.OneIn(2) ? core::SyncMode::kQuorum : core::SyncMode::kSynchronous;
  constexpr core::CodecId kCodecs[] = {core::CodecId::kInt4, core::CodecId::kFloat32, core::CodecId::kSign,
                                       core::CodecId::kInt8};
  config.codec.up = kCodecs[chance.Below(4)];
  config.codec.down = kCodecs[chance.Below(4)];
  if (config.codec.up == core::CodecId::kSign && config.codec.down == core::CodecId::kInt8) {  // one in 16; as above
    config.codec.up = core::CodecId::kTopk32;
    config.codec.allow_down.assign(std::rbegin(core::kTopkCodecs), std::rend(core::kTopkCodecs));
    config.codec.down = core::SparseDown(config.codec.up, /*contributions=*/1);
  }
  config.membership.min_sites = 1;
  const bool quorum = config.sync.mode == core::SyncMode::kQuorum;
  config.membership.grace_ms = quorum ? chance.Between(0, 500) : 0;
  config.membership.lease_ms = chance.Between(400, 4000);
  if (quorum) config.membership.max_staleness = chance.Between(0, 3);
  config.membership.weights = core::WeightRule::kTokens;
  // None is refused: sites' gradients differ by a factor of 100, their sums by more, and where one site trains alone
  // for ten seconds the norm of what it sends falls by 10⁶, before those come back that went on by themselves.
  config.values.gate = 1e12;
  config.eval.every_rounds = 0;
  config.checkpoint.every_rounds = chance.Between(0, 4);
  config.checkpoint.max_update_log_bytes = chance.Between(0, 1) * (1 << 20);
  config.checkpoint.min_free_bytes = 0;
  return run;
}

namespace {

constexpr int64_t kCalmLeases = 20;
constexpr core::Version kCalmRounds = 4;
constexpr auto kSilenceEnds = std::chrono::seconds(10);
constexpr int kMostLooks = 300;      // 50 ms apart
constexpr int64_t kDamageOneIn = 4;  // worlds; the others see the faults of sound disks alone

}  // namespace

World::World(uint64_t seed, const std::string& folder) : machine_(seed), network_(&machine_, {}) {
  damages_ = machine_.chance().OneIn(kDamageOneIn);
  fault_every_ms_ = machine_.chance().Between(1000, damages_ ? 6000 : 12'000);
  const DrawnRun drawn = DrawRun(machine_.chance());
  config_ = drawn.config;
  model_ = drawn.model;
  shards_ = drawn.shards;
  promises_ = std::make_unique<Promises>(config_, shards_);
  promises_->Offer(model_);
  leases_ = std::make_unique<Leases>(milliseconds(config_.membership.lease_ms));
  network_.Observe([this](const Call& call, bool to_client, const std::string& message) {
    promises_->Heard(call, to_client, message);
    if (call.method != Method::kControl) return;
    v1::CoordinatorMessage answered;
    const bool welcomes = to_client && answered.ParseFromString(message) && answered.has_welcome();
    for (const auto& hub : hubs_) {
      if (welcomes && hub->node() == call.server_node) hub->NoteHeard();
    }
    if (Coordinators::ShardOf(call.server_node) != 0) return;
    if (welcomes) welcomed_.insert(call.number);
    v1::SiteMessage said;
    if (to_client || !welcomed_.contains(call.number) || !said.ParseFromString(message)) return;
    if (!said.has_progress() || (mirrored_ && call.server_node != LeaderOf(0).node())) return;
    const Clock::TimePoint now = machine_.Now();
    leases_->Heard(call.client_node, now - milliseconds(said.progress().unheard_ms()), now);
  });
  // Drawn from what was drawn, so that a seed's other choices stay.
  mirrored_ = !damages_ && (config_.sync.sync_every + fault_every_ms_) % 3 == 0;
  for (int i = 0; i < shards_; ++i) {
    coordinators_.push_back({.shard = {i, shards_}, .mirrored = mirrored_});
  }
  for (int i = 0; i < shards_; ++i) {
    for (const Node& node : Coordinators::Nodes(i, mirrored_)) {
      hubs_.push_back(std::make_unique<CoordinatorProgram>(&machine_, &network_, config_,
                                                           &coordinators_[static_cast<size_t>(i)], node, folder));
    }
  }
  const int64_t sites = machine_.chance().Between(1, 4);
  for (int64_t i = 0; i < sites; ++i) {
    sites_.push_back(std::make_unique<SiteProgram>(&machine_, &network_, std::string(1, static_cast<char>('a' + i)),
                                                   shards_, mirrored_, &model_, &promises_->ledger(), folder));
  }
  const auto watch = [this](Program& program) {
    program.ended = [this](const Node& node, const std::string& why) {
      ends_[node] = why;
      ++counts_["ends"];
      // An end is allowed where the disk is sick, or the run or the operator asked for it.
      const bool expected = absl::StartsWith(why, "UNAVAILABLE") || absl::StartsWith(why, "CANCELLED") ||
                            absl::StrContains(why, "No space left") || absl::StrContains(why, "Input/output error") ||
                            absl::StrContains(why, "full") ||
                            absl::StrContains(why, "is in the run already and alive") ||
                            absl::StrContains(why, "disk I/O error") || why == CoordinatorProgram::kHandedOver ||
                            absl::StrContains(why, "a standby leads this run");
      if (!expected) wrong_ends_.push_back(node + ": " + why);
    };
  };
  for (const auto& hub : hubs_) {
    watch(*hub);
    hub->ended = [this, hub = hub.get(), ended = hub->ended](const Node& node, const std::string& why) {
      if (absl::StartsWith(why, "DATA_LOSS") && hub->disk().Restore(why)) {
        ends_[node] = why;
        ++counts_["refused starts"];
      } else {
        ended(node, why);
      }
    };
  }
  for (const auto& hub : hubs_) Damage(*hub, "log");
  for (const auto& site : sites_) Damage(*site, "0");  // its newest checkpoint
  for (const auto& site : sites_) {
    watch(*site);
    site->ended = [this, site = site.get(), ended = site->ended](const Node& node, const std::string& why) {
      // By the run, or by the site's own checkpoint of it, where another site has not heard so yet.
      const bool other_model =
          absl::StrContains(why, "the model differs") ||
          (absl::StrContains(why, "trainer.safetensors: tensor") && absl::StrContains(why, "values, got"));
      if (counts_["other models"] > 0 && other_model) {
        TakeModel(site->used());
      } else {
        ended(node, why);
      }
    };
  }
}

World::~World() = default;

// ---- Faults ----

void World::Damage(Program& program, const std::string& mostly) {
  if (!damages_) return;
  Chance& chance = machine_.chance();
  program.disk().damage = {.flipped_bit = chance.Between(2, 6),
                           .truncated = chance.Between(2, 6),
                           .lost_write = chance.Between(2, 6),
                           .misdirected_write = chance.Between(2, 6),
                           .mostly = mostly};
}

// The one of a shard's two that leads; where none does, the one that is to lead first.
CoordinatorProgram& World::LeaderOf(int shard) {
  const auto first = static_cast<size_t>(shard) * (mirrored_ ? 2 : 1);
  return mirrored_ && hubs_[first + 1]->leads() ? *hubs_[first + 1] : *hubs_[first];
}

// Where there are standbys no site: one that was killed has forgotten which epoch it has seen since its checkpoint, and
// a former leader takes its word for that.
Program& World::AnyProgram() {
  const size_t programs = hubs_.size() + (mirrored_ ? 0 : sites_.size());
  const auto index = static_cast<size_t>(machine_.chance().Below(static_cast<int64_t>(programs)));
  if (index < hubs_.size()) return *hubs_[index];
  return *sites_[index - hubs_.size()];
}

void World::NextFault() {
  machine_.After(milliseconds(machine_.chance().Between(20, fault_every_ms_)), [this] {
    if (!faults_on_) return;
    OneFault();
    NextFault();
  });
}

void World::OneFault() {
  Chance& chance = machine_.chance();
  CoordinatorProgram& coordinator = LeaderOf(static_cast<int>(chance.Below(shards_)));
  const Node& hub = coordinator.node();
  SiteProgram& trainer = *sites_[static_cast<size_t>(chance.Below(static_cast<int64_t>(sites_.size())))];
  const Node& site = trainer.node();
  const auto count = [&](const char* what, const std::string& of) {
    ++counts_[what];
    machine_.Log(absl::StrCat("fault ", what, " ", of));
  };
  const bool kills = damages_ && chance.OneIn(3);
  Program& program = kills && chance.OneIn(2) ? coordinator : AnyProgram();
  if (mirrored_ && chance.OneIn(6)) {
    CoordinatorProgram& standby = StandbyOf(coordinator);
    if (!coordinator.leads() || !standby.running()) return;
    if (chance.OneIn(2)) {
      count("handovers", standby.node());
      return standby.Promote(/*leader_is_stopped=*/false);
    }
    return LoseLeader(coordinator, standby);
  }
  switch (kills ? 0 : chance.Below(16)) {
    case 0:
    case 1:
    case 2:
      if (!program.running()) return;
      count("kills", program.node());
      if (&program == &LeaderOf(0)) leases_->Died(machine_.Now());
      program.KillFor(milliseconds(chance.Between(0, 3000)));
      if (chance.OneIn(8) && dynamic_cast<SiteProgram*>(&program) != nullptr) {
        count("lost disks", program.node());
        program.disk().Lose();
      }
      return;
    case 3:
      if (!program.running()) return;
      count("stalls", program.node());
      return Stall(program, milliseconds(chance.Between(100, 6000)));
    case 4:
    case 5: count("cuts", site); return network_.BreakSome(site, hub, chance.Between(1, 3));
    case 6: count("blocks", site); return network_.Block(site, hub, milliseconds(chance.Between(50, 9000)));
    case 7: count("blocks", site); return network_.Block(hub, site, milliseconds(chance.Between(50, 9000)));
    case 8: count("delays", ""); return network_.set_most_delay_us(chance.Between(300, 400'000));
    case 9: {
      if (mirrored_) return;
      count("quits", site);
      return trainer.Quit();
    }
    case 10:
      count("drains", site);
      return LeaderOf(0).Command([site](server::RunExchange& coordinator) {
        coordinator.Ask(server::input::Drain{site}).status().IgnoreError();
      });
    case 11:
      count("pauses", "");
      LeaderOf(0).Command([](server::RunExchange& coordinator) {
        coordinator.Ask(server::input::ChangeRun{v1::ChangeRunRequest::PAUSE}).status().IgnoreError();
      });
      machine_.After(milliseconds(chance.Between(100, 5000)), [this] { Resume(); });
      return;
    case 12: return TryAnotherModel();
    case 14: {
      count("sets", "");
      const std::string lr = absl::StrCat("0.", chance.Between(1, 9));
      return LeaderOf(0).Command([lr](server::RunExchange& coordinator) {
        v1::ChangeSettingsRequest request;
        request.add_changes()->set_key("outer.lr");
        request.mutable_changes(0)->set_value(lr);
        coordinator.Ask(server::input::ChangeSettings{request}).status().IgnoreError();
      });
    }
    case 13: return Die(trainer, coordinator, chance.Between(1, 3));
    default: {
      DiskFaults& faults = program.disk().faults;
      faults = {};
      if (chance.OneIn(3)) return;
      count("sick disks", program.node());
      faults.no_room = chance.OneIn(4) ? chance.Between(20, 200) : 0;
      faults.write_error = chance.OneIn(4) ? chance.Between(20, 200) : 0;
      faults.sync_error = chance.OneIn(4) ? chance.Between(10, 100) : 0;
      faults.slow_sync = chance.OneIn(2) ? chance.Between(2, 10) : 0;
      return;
    }
  }
}

CoordinatorProgram& World::StandbyOf(const CoordinatorProgram& leader) {
  const size_t at = std::ranges::find(hubs_, &leader, &std::unique_ptr<CoordinatorProgram>::get) - hubs_.begin();
  return *hubs_[at ^ 1];
}

// The leader's machine is gone, sometimes after starts that no site has heard of. The operator promotes the standby once
// it answers, if it has all that was heard of; otherwise the machine comes back. A supervisor starts the former leader
// some seconds after that.
void World::LoseLeader(CoordinatorProgram& leader, CoordinatorProgram& standby) {
  ++counts_["lost leaders"];
  machine_.Log("fault lost leader " + leader.node());
  if (&leader == &LeaderOf(0)) leases_->Died(machine_.Now());
  leader.Kill();
  const bool again = machine_.chance().OneIn(3);
  if (again) leader.Start();
  machine_.After(milliseconds(machine_.chance().Between(5, 300)), [this, again, &leader, &standby] {
    if (again && leader.running()) leader.Kill();
    WaitToPromote(leader, standby, machine_.Now() + std::chrono::seconds(20));
  });
}

void World::WaitToPromote(CoordinatorProgram& leader, CoordinatorProgram& standby, Clock::TimePoint until) {
  if (leader.running()) return;
  if (standby.leads()) {
    ++counts_["promotions"];
    return leader.StartIn(milliseconds(machine_.chance().Between(0, 4000)));
  }
  if (machine_.Now() >= until || !faults_on_) return leader.Start();
  if (standby.HasAllOf(leader)) standby.Promote(/*leader_is_stopped=*/true);
  machine_.After(std::chrono::seconds(1), [this, &leader, &standby, until] { WaitToPromote(leader, standby, until); });
}

// Two of a shard may not lead at the same time for longer than a deposed one takes to hear of the other, or to go on
// after a stall. That they do not commit the same in the meantime is among the promises.
void World::WatchLeaders() {
  for (int i = 0; mirrored_ && i < shards_; ++i) {
    const auto first = static_cast<size_t>(i) * 2;
    const bool both = hubs_[first]->leads() && hubs_[first + 1]->leads();
    int& looks = coordinators_[static_cast<size_t>(i)].both_led;
    looks = both ? looks + 1 : 0;
    if (looks > kMostLooks) {
      wrong_ends_.push_back(absl::StrCat(hubs_[first]->node(), " and ", hubs_[first + 1]->node(), " lead"));
    }
  }
  machine_.After(milliseconds(50), [this] { WatchLeaders(); });
}

void World::Die(const SiteProgram& site, const CoordinatorProgram& hub, int64_t one_in) {
  ++counts_["silent deaths"];
  machine_.Log(absl::StrCat("fault silent death ", site.node(), " ", hub.node()));
  constexpr Network::Deaf kDeaf[] = {Network::Deaf::kBoth, Network::Deaf::kClient, Network::Deaf::kServer};
  const Network::Deaf deaf = kDeaf[machine_.chance().Below(3)];
  network_.Die(site.node(), hub.node(), one_in, deaf, /*bulk_only=*/machine_.chance().OneIn(2));
}

// Nothing else fails any more, and new connections work: every site is to train within ten seconds, and the time that
// it takes to be merged again. A connection on which only the coordinator is deaf is found by the next upload over it,
// which may wait for a round that waited for another such one: once more for each shard.
bool World::TrainsAfterDeaths(Clock::Duration round) {
  const bool of_all = machine_.chance().OneIn(2);
  for (const auto& site : sites_) {
    for (const auto& hub : hubs_) {
      if (of_all || site == sites_.front()) Die(*site, *hub, machine_.chance().Between(1, 2));
    }
  }
  BeginCalm();
  // A chunk on its way up a link whose times are not known may take a minute (transport/connection_watch.h).
  const auto chunk = mirrored_ ? std::chrono::seconds(65) : std::chrono::seconds(0);
  machine_.Run(machine_.Now() + chunk + kSilenceEnds * (1 + std::ssize(hubs_)) + round * (kCalmRounds + 2), 10'000'000,
               [&] { return !promises_->broken().empty() || !wrong_ends_.empty() || Trains(); });
  return Trains();
}

void World::BeginCalm() {
  calm_versions_.clear();
  for (int p = 0; p < config_.sync.map_fragments(); ++p) calm_versions_.push_back(promises_->newest(p));
  for (const auto& site : sites_) calm_steps_[site->node()] = promises_->last_step(site->node());
}

// Before anybody has trained: all sites go, and after their leases others bring another model.
void World::TryAnotherModel() {
  if (config_.model_kind != core::ModelKind::kExternal || promises_->seeded() || counts_["other models"] > 0) return;
  ++counts_["other models"];
  machine_.Log("fault another model");
  // The first one goes and comes back with another model. The others go, too, or are only silent for too long.
  const bool silent = machine_.chance().OneIn(2);
  for (const auto& site : sites_) {
    if (silent && site != sites_.front() && site->running()) {
      site->Stall(milliseconds(config_.membership.lease_ms + machine_.chance().Between(1000, 6000)));
      continue;
    }
    if (site->running()) site->Kill();
    site->disk().Lose();
    site->StartIn(milliseconds(config_.membership.lease_ms + machine_.chance().Between(0, 3000)));
  }
  earlier_model_ = model_;
  do {
    model_ = DrawModel(machine_.chance());
  } while (!core::BuildFragmentMap(core::SyntheticManifest(model_), config_.sync).ok());
  promises_->Offer(model_);
}

// The run has the other one: its initial parameters were durable before anybody heard so, or a lease was not over.
void World::TakeModel(const core::SyntheticConfig& refused) {
  if (model_ != refused) return;
  std::swap(model_, earlier_model_);
}

// ---- The run ----

std::string World::Broken() const {
  std::vector<std::string> all = promises_->broken();
  all.insert(all.end(), wrong_ends_.begin(), wrong_ends_.end());
  return absl::StrJoin(all, "\n  ");
}

bool World::Trains() const {
  return std::ranges::all_of(sites_, [&](const auto& site) {
    for (int p = 0; p < config_.sync.map_fragments(); ++p) {
      if (promises_->last_merged(site->node(), p) < calm_versions_[static_cast<size_t>(p)] + kCalmRounds) return false;
    }
    return promises_->last_step(site->node()) != calm_steps_.at(site->node());  // less, if it has joined anew
  });
}

std::string World::WhoWaits() const {
  std::string text;
  for (const auto& hub : hubs_) {
    absl::StrAppend(&text, "\n  ", hub->node(), hub->coordinator() == nullptr ? ": does not serve" : ": serves");
    if (const auto end = ends_.find(hub->node()); end != ends_.end())
      absl::StrAppend(&text, "; ended before: ", end->second);
  }
  for (const auto& site : sites_) {
    absl::StrAppend(&text, "\n  ", site->node(), site->site() == nullptr ? ": does not train" : ": trains", ", step ",
                    promises_->last_step(site->node()));
    for (int p = 0; p < config_.sync.map_fragments(); ++p) {
      absl::StrAppend(&text, ", last in version ", promises_->last_merged(site->node(), p), " of ", p);
    }
    if (const auto end = ends_.find(site->node()); end != ends_.end())
      absl::StrAppend(&text, "; ended before: ", end->second);
  }
  for (int p = 0; p < config_.sync.map_fragments(); ++p) {
    absl::StrAppend(&text, "\n  fragment ", p, ": version ", promises_->newest(p));
    if (!calm_versions_.empty())
      absl::StrAppend(&text, ", ", calm_versions_[static_cast<size_t>(p)], " when the faults ended");
  }
  return text;
}

// An operator sees that the run is paused, and resumes it.
void World::StayCalm() {
  Resume();
  machine_.After(std::chrono::seconds(2), [this] { StayCalm(); });
}

void World::Stall(Program& program, Clock::Duration time) {
  const bool leads = &program == &LeaderOf(0) && (!mirrored_ || LeaderOf(0).leads());
  if (leads) leases_->StoodStill(machine_.Now(), machine_.Now() + time);
  program.Stall(time);
}

void World::WatchLeases() {
  LeaderOf(0).Command([this](server::RunExchange& coordinator) {
    const auto events = coordinator.journal().History(last_event_, 1000);
    if (!events.ok()) return;  // a sick disk
    const int64_t now_unix_ms = core::SystemClock().UnixMs();
    for (const server::Event& event : *events) {
      last_event_ = event.id;
      const bool lease_ended =
          absl::StrContains(event.text, "not heard of") || absl::StrContains(event.text, "does not hear");
      if (event.kind != "drop" || !lease_ended) continue;
      const Clock::TimePoint at = machine_.Now() - milliseconds(now_unix_ms - event.unix_ms);
      if (std::string wrong = leases_->Ended(event.site, at); !wrong.empty()) wrong_ends_.push_back(std::move(wrong));
    }
  });
  machine_.After(std::chrono::seconds(1), [this] { WatchLeases(); });
}

void World::Resume() {
  LeaderOf(0).Command([](server::RunExchange& coordinator) {
    coordinator.Ask(server::input::ChangeRun{v1::ChangeRunRequest::RESUME}).status().IgnoreError();
  });
}

std::string World::Run(int64_t events) {
  for (const auto& hub : hubs_) hub->Start();
  for (const auto& site : sites_) site->Start();
  NextFault();
  WatchLeases();
  if (mirrored_) WatchLeaders();
  if (config_.model_kind == core::ModelKind::kExternal && machine_.chance().OneIn(2)) {
    network_.set_most_delay_us(400'000);  // the initial parameters take a while
    machine_.After(milliseconds(machine_.chance().Between(100, 2500)), [this] { TryAnotherModel(); });
  }
  const auto failed = [this] { return !promises_->broken().empty() || !wrong_ends_.empty(); };
  machine_.Run(machine_.Now() + std::chrono::hours(10), events, failed);
  if (failed()) return Broken();
  faults_on_ = false;
  machine_.Log("calm");
  network_.Heal();
  network_.set_most_delay_us(3'000);  // a round takes longer, or a site that is behind stays so
  for (const auto& hub : hubs_) hub->disk().faults = {};
  for (const auto& site : sites_) site->disk().faults = {};
  BeginCalm();
  StayCalm();
  const auto round = milliseconds(model_.step_ms * config_.sync.sync_every * 3 + 1000);
  const auto bound = milliseconds(config_.membership.lease_ms) * kCalmLeases + round * 10 + std::chrono::seconds(90);
  machine_.Run(machine_.Now() + bound, 10'000'000, [&] { return failed() || Trains(); });
  promises_->CheckAllMerged();
  if (failed()) return Broken();
  if (!Trains()) return absl::StrCat("it does not train again", WhoWaits());
  const bool trains = TrainsAfterDeaths(round);
  if (failed()) return Broken();
  if (!trains) return absl::StrCat("it does not train soon after connections died without a word", WhoWaits());
  return "";
}

std::string World::Summary() const {
  std::vector<std::string> parts;
  for (const auto& [what, count] : counts_) parts.push_back(absl::StrCat(count, " ", what));
  int64_t disk_faults = 0, damaged_at_sites = 0, passed_over = 0, damaged = 0, repaired = 0, untraceable = 0;
  for (const auto& hub : hubs_) {
    disk_faults += hub->disk().faults_met();
    damaged += hub->disk().files_damaged();
    repaired += hub->repaired();
    untraceable += hub->untraceable();
  }
  for (const auto& site : sites_) {
    disk_faults += site->disk().faults_met();
    damaged_at_sites += site->disk().files_damaged();
    passed_over += site->passed_over();
  }
  if (damages_) {
    parts.push_back(absl::StrCat("1 worlds with damage, ", damaged, " damaged files of coordinators, ",
                                 damaged_at_sites, " damaged files of sites, ", passed_over,
                                 " checkpoints passed over, ", repaired, " repaired starts, ", untraceable,
                                 " untraceable losses"));
  }
  return absl::StrCat(machine_.events(), " events, ", absl::StrJoin(parts, ", "), ", ", disk_faults, " disk faults, ",
                      promises_->joins(), " joins, ", promises_->merges(), " merges, ", promises_->acknowledged(),
                      " acknowledged, ", promises_->ledger().verified(), " verified, ",
                      promises_->ledger().contributions_verified(), " contributions, log ",
                      absl::Hex(machine_.log_hash(), absl::kZeroPad16));
}

}  // namespace causeway::sim
