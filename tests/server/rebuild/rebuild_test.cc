// Sites that show what they hold, and the state that comes of it.
#include "server/rebuild/rebuild.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "core/digest.h"
#include "core/random.h"
#include "tests/core/fake_clock.h"
#include "tests/formats/temporary_folder.h"
#include "tests/server/run/direct_coordinator.h"
#include "tests/server/run/messages_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kVersion = 7;

// A site with W and v of the run's two fragments, and its end of the stream.
class HoldingSite final : public ShowPeer {
 public:
  HoldingSite(std::string name, const core::FragmentMap& map) : name_(std::move(name)) {
    for (const core::Fragment& fragment : map.fragments()) {
      core::FragmentState& state = held.emplace_back();
      state.version = kVersion - fragment.id;
      for (int64_t i = 0; i < fragment.padded_values(); ++i) {
        state.anchor.push_back(static_cast<float>(i + fragment.id));
        state.momentum.push_back(-static_cast<float>(i));
      }
    }
  }

  v1::Holdings Shown() const {
    v1::Holdings holdings;
    *holdings.mutable_context() = ContextForTest(name_);
    holdings.mutable_context()->set_lineage("lost");
    transport::ToProto(ManifestForTest(), holdings.mutable_manifest());
    for (size_t p = 0; p < held.size(); ++p) {
      v1::HeldFragment& fragment = *holdings.add_fragments();
      fragment.set_fragment(static_cast<int>(p));
      fragment.set_version(held[p].version);
      fragment.set_anchor_digest(held[p].Digest());
      fragment.set_momentum_digest(core::DigestUnits(held[p].momentum, 0));
    }
    return holdings;
  }

  // The fragment, in two pieces that do not end where W does.
  absl::Status Send(Rebuild& rebuild, core::FragmentId p) {
    std::string bytes(reinterpret_cast<const char*>(held[p].anchor.data()), held[p].anchor.size() * sizeof(float));
    bytes.append(reinterpret_cast<const char*>(held[p].momentum.data()), held[p].momentum.size() * sizeof(float));
    const size_t cut = bytes.size() / 8 * 4 + 64;
    const absl::Status first = rebuild.TakePiece(this, std::string_view(bytes).substr(0, cut));
    return first.ok() ? rebuild.TakePiece(this, std::string_view(bytes).substr(cut)) : first;
  }

  void Ask(core::FragmentId fragment) override { asked.push_back(fragment); }
  void End(const absl::Status& status) override { ended = status; }

  std::vector<core::FragmentState> held;
  std::vector<core::FragmentId> asked;
  std::optional<absl::Status> ended;

 private:
  const std::string name_;
};

class RebuildTest : public testing::Test {
 protected:
  RebuildTest() : map_(*core::BuildFragmentMap(ManifestForTest(), ConfigForTest().sync)) {
    for (const char* name : {"a", "b", "c"}) sites_[name] = std::make_shared<HoldingSite>(name, map_);
  }

  void ShowAll() {
    for (const auto& [name, site] : sites_) ASSERT_TRUE(rebuild_.BeginShow(site, site->Shown()).ok());
    clock_.Advance(RebuildRules::kSettleMs);
    rebuild_.Tick();
  }

  // Until no site has to send any more.
  void SendAll() {
    for (bool any = true; any;) {
      any = false;
      for (const auto& [name, site] : sites_) {
        for (const core::FragmentId p : std::exchange(site->asked, {})) {
          any = true;
          ASSERT_TRUE(site->Send(rebuild_, p).ok());
        }
      }
      rebuild_.Tick();
    }
  }

  std::unique_ptr<Journal> Open() { return *Journal::Open({.directory = folder_.path(), .run_config = "the config"}); }

  const core::FragmentMap map_;
  core::FakeClock clock_;
  Rebuild rebuild_{{.config = ConfigForTest(), .shard = {}, .accept = "", .clock = &clock_}};
  std::map<std::string, std::shared_ptr<HoldingSite>> sites_;
  TemporaryFolder folder_;
};

TEST_F(RebuildTest, StateIsBitByBitWhatTheSitesHold) {
  ShowAll();
  SendAll();
  ASSERT_TRUE(rebuild_.complete()) << rebuild_.Progress();
  ASSERT_TRUE(rebuild_.Save(*Open()).ok());
  EXPECT_EQ(sites_["a"]->ended, absl::OkStatus());
  const auto journal = Open();
  EXPECT_EQ(journal->identity().continues, "lost");
  EXPECT_THAT(journal->identity().former_lineages, ElementsAre("lost"));
  const StoredRun stored = *journal->Load();
  EXPECT_THAT(stored.rounds.versions, ElementsAre(kVersion, kVersion - 1));
  EXPECT_TRUE(stored.rounds.seeded && stored.rounds.started);
  EXPECT_THAT(stored.rounds.sites.at("b").last_merged, ElementsAre(kVersion - 1, kVersion - 2));
  for (const int p : {0, 1}) {
    const core::FragmentState state = *journal->LoadSnapshot(p, kVersion - p);
    EXPECT_EQ(state.anchor, sites_["a"]->held[p].anchor);
    EXPECT_EQ(state.momentum, sites_["a"]->held[p].momentum);
  }
  const std::vector<Event> events = *journal->History(0, 100);
  EXPECT_THAT(events.back().kind == "rebuild" ? events.back().text : events.at(events.size() - 2).text,
              HasSubstr("of lineage lost: versions 7, 6"));
}

TEST_F(RebuildTest, SiteThatSendsOtherThanItShowedIsRefusedByNameAndOthersAreAsked) {
  ShowAll();
  ASSERT_THAT(sites_["a"]->asked, ElementsAre(0));
  sites_["a"]->asked.clear();
  sites_["a"]->held[0].momentum[5] += 1;
  const absl::Status refused = sites_["a"]->Send(rebuild_, 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("what it sent of fragment 0 version 7 has the digests"));
  rebuild_.EndShow(sites_["a"].get());
  EXPECT_THAT(rebuild_.BeginShow(sites_["a"], sites_["a"]->Shown()).message(),
              HasSubstr("site a has sent other values"));
  // The fragment on its way from b comes anew, on a new stream.
  EXPECT_EQ(sites_["b"]->ended->code(), absl::StatusCode::kAborted);
  for (const char* name : {"b", "c"}) {
    rebuild_.EndShow(sites_[name].get());
    sites_[name]->asked.clear();
    ASSERT_TRUE(rebuild_.BeginShow(sites_[name], sites_[name]->Shown()).ok());
  }
  clock_.Advance(RebuildRules::kSettleMs);
  rebuild_.Tick();
  SendAll();
  ASSERT_TRUE(rebuild_.complete()) << rebuild_.Progress();
  ASSERT_TRUE(rebuild_.Save(*Open()).ok());
  const auto journal = Open();
  EXPECT_EQ(journal->LoadSnapshot(0, kVersion)->momentum, sites_["b"]->held[0].momentum);
  EXPECT_FALSE(journal->Load()->rounds.sites.contains("a"));
  const std::vector<Event> events = *journal->History(0, 100);
  EXPECT_TRUE(
      std::ranges::any_of(events, [](const Event& event) { return event.site == "a" && event.kind == "rebuild"; }));
}

TEST_F(RebuildTest, WitnessThatGoesIsReplaced) {
  ShowAll();
  ASSERT_THAT(sites_["a"]->asked, ElementsAre(0));
  rebuild_.EndShow(sites_["a"].get());
  sites_["a"]->asked.clear();
  rebuild_.Tick();
  SendAll();
  EXPECT_TRUE(rebuild_.complete()) << rebuild_.Progress();
}

TEST_F(RebuildTest, WitnessThatSendsNothingIsAskedLastFromThenOn) {
  ShowAll();
  ASSERT_THAT(sites_["a"]->asked, ElementsAre(0));
  ASSERT_THAT(sites_["b"]->asked, ElementsAre(1));
  sites_["a"]->asked.clear();
  clock_.Advance(30'000);
  ASSERT_TRUE(sites_["b"]->Send(rebuild_, 1).ok());
  sites_["b"]->asked.clear();
  clock_.Advance(30'000);
  rebuild_.Tick();
  ASSERT_TRUE(sites_["a"]->ended);
  EXPECT_THAT(sites_["a"]->ended->message(), HasSubstr("did not arrive"));
  ASSERT_TRUE(rebuild_.BeginShow(sites_["a"], sites_["a"]->Shown()).ok());
  rebuild_.Tick();
  EXPECT_THAT(sites_["a"]->asked, IsEmpty());
  SendAll();
  EXPECT_TRUE(rebuild_.complete()) << rebuild_.Progress();
}

TEST_F(RebuildTest, PieceThatWasNotAskedForOrIsTooLongEndsTheStream) {
  ShowAll();
  EXPECT_THAT(rebuild_.TakePiece(sites_["c"].get(), "1234").message(), HasSubstr("was not asked for"));
  EXPECT_THAT(rebuild_.TakePiece(sites_["a"].get(), "123").message(), HasSubstr("got a piece of 3 bytes after 0"));
  const std::string long_piece(3 * map_.fragment(0).padded_values() * sizeof(float), 'x');
  EXPECT_THAT(rebuild_.TakePiece(sites_["a"].get(), long_piece).message(),
              HasSubstr("expected whole float32 values, "));
}

TEST_F(RebuildTest, HoldingsOfAnotherRunOrFragmentAreRefused) {
  v1::Holdings holdings = sites_["a"]->Shown();
  holdings.mutable_context()->set_run_id("other");
  EXPECT_THAT(rebuild_.BeginShow(sites_["a"], holdings).message(), HasSubstr("expected run test, got other"));
  holdings = sites_["a"]->Shown();
  holdings.mutable_fragments(0)->set_fragment(-1);
  EXPECT_THAT(rebuild_.BeginShow(sites_["a"], holdings).message(), HasSubstr("of fragment -1"));
  EXPECT_THAT(rebuild_.Progress(), HasSubstr("no site"));
}

// The journal's end was lost with the machine's power: fragment 0 is behind the sites', fragment 1 is not.
TEST_F(RebuildTest, StateThatLacksItsEndIsCompleted) {
  std::string before;
  {
    const auto journal = Open();
    before = journal->identity().lineage;
    OwnState own{.lineage = before, .rounds = {}, .model = {.generation = 3, .run = RunRecordOf(map_), .seeder = "a"}};
    own.rounds.sites["a"].state = core::SiteState::kTraining;
    own.rounds.sites["a"].releases = 2;
    own.fragments[0] = sites_["a"]->held[0];
    own.fragments[0].version = kVersion - 2;
    own.fragments[1] = sites_["a"]->held[1];
    own.fragments[1].residual.assign(own.fragments[1].anchor.size(), 0.5f);
    for (auto& [p, state] : own.fragments) ASSERT_TRUE(journal->SaveSnapshot(p, state, state.Digest()).ok());
    ASSERT_TRUE(journal->Begin(own.model.run, {.state = own.rounds, .model = own.model}).ok());
    Rebuild rebuild({.config = ConfigForTest(), .shard = {}, .accept = "", .own = own, .clock = &clock_});
    for (const auto& [name, site] : sites_) {
      v1::Holdings shown = site->Shown();
      shown.mutable_context()->set_lineage(before);
      ASSERT_TRUE(rebuild.BeginShow(site, shown).ok());
    }
    rebuild.Tick();
    EXPECT_THAT(sites_["a"]->asked, ElementsAre(0));
    ASSERT_TRUE(sites_["a"]->Send(rebuild, 0).ok());
    ASSERT_TRUE(rebuild.complete()) << rebuild.Progress();
    ASSERT_TRUE(rebuild.Save(*journal).ok());
  }
  const auto journal = Open();
  EXPECT_EQ(journal->identity().continues, before);
  const StoredRun stored = *journal->Load();
  EXPECT_THAT(stored.rounds.versions, ElementsAre(kVersion, kVersion - 1));
  EXPECT_EQ(stored.rounds.sites.at("a").releases, 2);
  EXPECT_EQ(stored.model.generation, 3);
  EXPECT_EQ(journal->LoadSnapshot(0, kVersion)->anchor, sites_["a"]->held[0].anchor);
  EXPECT_EQ(journal->LoadSnapshot(1, kVersion - 1)->residual[0], 0.5f) << "what stays keeps its rounding";
  const std::vector<Event> events = *journal->History(0, 100, "history_lost");
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_THAT(events[0].text, HasSubstr("it held versions 5, 6; the state was rebuilt"));
}

TEST_F(RebuildTest, StateThatLacksItsEndWaitsForNobodyWhereNoTwoAgree) {
  OwnState own{.lineage = "lost", .rounds = {}, .model = {.generation = 1, .run = RunRecordOf(map_), .seeder = ""}};
  for (const int p : {0, 1}) own.fragments[p] = sites_["a"]->held[p];
  own.fragments[0].version = kVersion - 2;
  own.rounds.sites["a"].state = core::SiteState::kTraining;
  Rebuild rebuild({.config = ConfigForTest(), .shard = {}, .accept = "", .own = own, .clock = &clock_});
  rebuild.Tick();
  EXPECT_FALSE(rebuild.undecided()) << "no site has come";
  ASSERT_TRUE(rebuild.BeginShow(sites_["a"], sites_["a"]->Shown()).ok());
  rebuild.Tick();
  EXPECT_TRUE(rebuild.undecided());
  EXPECT_FALSE(rebuild.complete());
  EXPECT_THAT(rebuild.Progress(), HasSubstr("no two sites hold the same version"));
}

// The site goes on with what it has: only what it sent for the version that is there now has to be sent again.
TEST_F(RebuildTest, SiteThatHoldsTheSameIsWelcomedAsOneOfTheContinuedLineage) {
  ShowAll();
  SendAll();
  ASSERT_TRUE(rebuild_.Save(*Open()).ok());
  const auto journal = Open();
  const auto coordinator =
      *RunExchange::Create({.config = ConfigForTest(), .clock = &clock_}, journal.get(), *journal->Load());
  const auto welcome_of = [&](const std::string& site, int64_t version) {
    v1::Join join = JoinOf(site);
    join.mutable_context()->set_lineage("lost");
    join.mutable_context()->set_epoch(90);
    for (const int64_t held : {version, version - 1}) join.add_versions(held);
    const auto peer = std::make_shared<RecordedPeer>();
    coordinator->Join(peer, join);
    journal->Flush();
    return peer->sent().at(0).welcome();
  };
  const v1::Welcome newest = welcome_of("a", kVersion);
  EXPECT_EQ(newest.continues(), "lost");
  EXPECT_THAT(newest.last_admitted(), ElementsAre(kVersion - 2, kVersion - 3)) << "what it waits for came too late";
  EXPECT_THAT(welcome_of("b", kVersion - 1).last_admitted(), ElementsAre(kVersion - 1, kVersion - 2));
  EXPECT_THAT(welcome_of("c", kVersion + 1).continues(), IsEmpty()) << "it holds more than what is here";
}

// Sites that come, go, step on and lie while a state is rebuilt from them, by chance: what is saved is what the run
// was.

constexpr int kSeeds = 60;
constexpr int64_t kNewest = 9;

enum class Lie { kNone, kShowsOther, kSendsOther, kShowsNewer };

class Chance {
 public:
  explicit Chance(uint64_t seed) : seed_(seed) {}
  int64_t Below(int64_t n) {
    return static_cast<int64_t>(core::HashCombine(seed_, count_++) % static_cast<uint64_t>(n));
  }
  bool OneIn(int64_t n) { return Below(n) == 0; }

 private:
  const uint64_t seed_;
  uint64_t count_ = 0;
};

// W and v of a fragment as the run made them.
core::FragmentState TruthOf(const core::Fragment& fragment, core::Version version) {
  core::FragmentState state{.version = version};
  for (int64_t i = 0; i < fragment.padded_values(); ++i) {
    state.anchor.push_back(static_cast<float>(1000 * version + 100 * fragment.id + i % 7));
    state.momentum.push_back(-static_cast<float>(version + i % 5));
  }
  return state;
}

struct SimulatedSite final : ShowPeer {
  void Ask(core::FragmentId fragment) override { asked = fragment; }
  void End(const absl::Status& status) override { ended = status; }

  std::string name;
  Lie lie = Lie::kNone;
  std::vector<core::FragmentState> held;
  bool shows = false;
  std::optional<core::FragmentId> asked;
  std::optional<absl::Status> ended;
};

class RebuildWorld {
 public:
  // `owns`: the coordinator has lost only the end of its state.
  RebuildWorld(uint64_t seed, bool owns)
      : chance_(seed), map_(*core::BuildFragmentMap(ManifestForTest(), ConfigForTest().sync)) {
    // Three honest ones: two of them hold the same. Two that differ by one version remember the one before.
    const int64_t sites = (owns ? 3 : 4) + chance_.Below(3);
    const int64_t liar = chance_.OneIn(3) ? -1 : chance_.Below(sites);
    for (int64_t i = 0; i < sites; ++i) {
      auto site = std::make_shared<SimulatedSite>();
      site->name = std::string(1, static_cast<char>('a' + i));
      if (i == liar) site->lie = static_cast<Lie>(1 + chance_.Below(3));
      // Behind by a fragment's turn, or by one more.
      const int64_t turns = chance_.Below(3);
      for (const core::Fragment& fragment : map_.fragments()) {
        site->held.push_back(TruthOf(fragment, kNewest - (turns + fragment.id) / 2));
      }
      sites_.push_back(std::move(site));
    }
    if (owns) BeginOwn();
    rebuild_ = std::make_unique<Rebuild>(
        RebuildOptions{.config = ConfigForTest(), .shard = {}, .accept = "", .own = own_, .clock = &clock_});
  }

  // Why it failed; "": it did not.
  std::string Run() {
    for (int turn = 0; turn < 4000 && !rebuild_->complete(); ++turn) {
      clock_.Advance(100);
      SimulatedSite& site = *sites_[static_cast<size_t>(chance_.Below(std::ssize(sites_)))];
      if (!site.shows) {
        Show(site);
      } else if (site.ended || chance_.OneIn(turn < 400 ? 12 : 1'000'000)) {  // it breaks, or was told to end
        site.shows = false;
        site.asked.reset();
        rebuild_->EndShow(&site);
      } else if (site.asked) {
        Send(site, *std::exchange(site.asked, std::nullopt));
      }
      rebuild_->Tick();
    }
    return rebuild_->complete() ? Check() : "it does not come to an end: " + rebuild_->Progress();
  }

 private:
  std::unique_ptr<Journal> Open() const { return *Journal::Open({.directory = folder_.path(), .run_config = "c"}); }

  void BeginOwn() {
    own_ = OwnState{
        .lineage = "lost", .rounds = {}, .model = {.generation = 1, .run = RunRecordOf(map_)}, .fragments = {}};
    const auto journal = Open();
    for (const core::Fragment& fragment : map_.fragments()) {
      const core::FragmentState own = TruthOf(fragment, kNewest - 1 - chance_.Below(4));
      ASSERT_TRUE(journal->SaveSnapshot(fragment.id, own, own.Digest()).ok());
      own_->fragments[fragment.id] = own;
    }
    ASSERT_TRUE(journal->Begin(own_->model.run, {.model = own_->model}).ok());
    for (const auto& site : sites_) own_->rounds.sites[site->name].state = core::SiteState::kTraining;
  }

  void Show(SimulatedSite& site) {
    site.ended.reset();
    v1::Holdings holdings;
    *holdings.mutable_context() = ContextForTest(site.name);
    holdings.mutable_context()->set_lineage("lost");
    transport::ToProto(ManifestForTest(), holdings.mutable_manifest());
    for (size_t p = 0; p < site.held.size(); ++p) {
      v1::HeldFragment& fragment = *holdings.add_fragments();
      fragment.set_fragment(static_cast<int>(p));
      fragment.set_version(site.held[p].version + (site.lie == Lie::kShowsNewer ? 5 : 0));
      fragment.set_anchor_digest(site.held[p].Digest() ^ (site.lie == Lie::kShowsOther ? 1 : 0));
      fragment.set_momentum_digest(core::DigestUnits(site.held[p].momentum, 0));
      const core::FragmentState before = TruthOf(map_.fragment(static_cast<int>(p)), site.held[p].version - 1);
      fragment.mutable_before()->set_version(before.version);
      fragment.mutable_before()->set_anchor_digest(before.Digest() ^ (site.lie == Lie::kNone ? 0 : 1));
      fragment.mutable_before()->set_momentum_digest(core::DigestUnits(before.momentum, 0));
    }
    site.shows = rebuild_->BeginShow(std::shared_ptr<ShowPeer>(&site, [](ShowPeer*) {}), holdings).ok();
  }

  void Send(SimulatedSite& site, core::FragmentId p) {
    core::FragmentState sent = site.held[static_cast<size_t>(p)];
    if (site.lie != Lie::kNone) sent.momentum[chance_.Below(std::ssize(sent.momentum))] += 1;
    for (const auto& values : {std::span(sent.anchor), std::span(sent.momentum)}) {
      const absl::Status taken =
          rebuild_->TakePiece(&site, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
      if (taken.ok()) continue;
      site.ended = taken;
      if (site.lie == Lie::kNone) fault_ = "an honest site is refused: " + std::string(taken.message());
      return;
    }
  }

  std::string Check() {
    if (!rebuild_->Save(*Open()).ok()) return "cannot save";
    const auto journal = Open();
    const std::vector<core::Version> versions = journal->Load()->rounds.versions;
    for (const core::Fragment& fragment : map_.fragments()) {
      const core::FragmentState truth = TruthOf(fragment, versions[static_cast<size_t>(fragment.id)]);
      const auto saved = journal->LoadSnapshot(fragment.id, truth.version);
      if (!saved.ok()) return std::string(saved.status().message());
      if (saved->anchor != truth.anchor || saved->momentum != truth.momentum) return "a site's lie was believed";
      if (own_ && truth.version < own_->fragments.at(fragment.id).version) return "it went back behind what it had";
      if (own_ && truth.version == own_->fragments.at(fragment.id).version) continue;
      const auto holds_less = [&](const auto& site) {
        return site->lie == Lie::kNone && site->held[static_cast<size_t>(fragment.id)].version <= truth.version;
      };
      if (std::ranges::none_of(sites_, holds_less)) return "a version that all sites are beyond was taken";
    }
    return fault_;
  }

  Chance chance_;
  const core::FragmentMap map_;
  core::FakeClock clock_;
  const TemporaryFolder folder_;
  std::optional<OwnState> own_;
  std::unique_ptr<Rebuild> rebuild_;
  std::vector<std::shared_ptr<SimulatedSite>> sites_;
  std::string fault_;
};

TEST(RebuildSimulation, StateIsWhatTheRunWasWhoeverComesGoesAndLies) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ASSERT_EQ(RebuildWorld(seed, /*owns=*/false).Run(), "") << "seed " << seed;
  }
}

TEST(RebuildSimulation, EndThatWasLostIsWhatTheRunWas) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ASSERT_EQ(RebuildWorld(seed, /*owns=*/true).Run(), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace causeway::server
