// Sites that come, go, step on and lie while a state is rebuilt from them, by chance: what is saved is what the run
// was.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "core/digest.h"
#include "core/random.h"
#include "server/rebuild/rebuild.h"
#include "tests/core/fake_clock.h"
#include "tests/formats/temporary_folder.h"
#include "tests/server/run/messages_for_test.h"

namespace causeway::server {
namespace {

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
