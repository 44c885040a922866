// The rules of a run with two coordinators: shard 0 decides who is in, the other follows it. Fragments 0 and 2 are the
// first's, 1 and 3 the second's. Scripts of testdata/shards/ have, beside the words of rules_script.h behind the name of
// one of the two:
//
//   shards min_sites=2            a new run; settings of both
//   lead join a                   an event at shard 0
//   1000 follower tick            and one at shard 1
//   tell                          what shard 0 has decided reaches the other, and what came of it there comes back
//   arrive a b                    each joins both, the initial parameters are there, and it is ready
//   contribute a fragment=1 base=0   at the shard whose fragment it is
//   train a b until=40            all contributions of these sites until the end of that inner step arrive
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/schedule.h"
#include "tests/server/rounds/rules_script.h"

namespace causeway::server {
namespace {

constexpr int64_t kEvery = 8;
constexpr int kFragments = 4;

class TwoShards {
 public:
  void Start(const std::string& settings = "") {
    *this = TwoShards();
    const std::string both = absl::StrCat("settings shards=2 fragments=", kFragments, " sync_every=", kEvery, settings);
    At(0, both), At(1, both + " shard=1");
  }

  std::string Tell() {
    // Without any field such a line would be a question.
    const std::string told = "membership started=0" + TextOf(rules(0).membership()).substr(std::strlen("membership"));
    std::string said = At(1, told + "follow");
    said += At(0, "shard index=1" + TextOf(rules(1).report()).substr(std::strlen("report")));
    return said;
  }

  std::string Arrive(const core::SiteId& site) {
    std::string said = At(0, "join " + site);
    said += Tell();
    said += At(1, absl::StrCat("join ", site, " stay=", rules(0).state().sites.at(site).stay));
    for (const int shard : {0, 1}) said += At(shard, "seeded");
    said += Tell();
    said += At(0, "ready " + site);
    return said += Tell();
  }

  std::string Train(const std::vector<core::SiteId>& sites, core::Step until) {
    std::string said;
    for (core::Step step = 1; step <= until; ++step) {
      for (core::FragmentId p = 0; p < kFragments; ++p) {
        const core::Version base = schedule_.SendsAt(p, step);
        for (const core::SiteId& site : sites) {
          const bool sends = step > trained_[site] && base >= rules(p % 2).state().sites.at(site).first_versions[p];
          if (base >= 0 && sends) said += Contribute(site, p, base);
        }
      }
    }
    for (const core::SiteId& site : sites) trained_[site] = until;
    return said;
  }

  std::string Contribute(const core::SiteId& site, core::FragmentId fragment, core::Version base) {
    return At(fragment % 2, absl::StrCat("contribute ", site, " fragment=", fragment, " base=", base));
  }

  // The outcomes of that shard, each with its name.
  std::string At(int shard, const std::string& lines) {
    std::string said;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(shards_[shard].Play(lines), '\n'))) {
      const bool outcome = line.starts_with("->") || line.starts_with("=>");
      if (outcome) absl::StrAppend(&said, line.substr(0, 3), shard == 0 ? "lead " : "follower ", line.substr(3), "\n");
    }
    return said;
  }

  std::string Do(const core::ScriptLine& line) {
    for (const std::string name : {"lead ", "follower "}) {  // perhaps behind a time
      const size_t at = line.line.find(name);
      if (at == std::string::npos || at != line.line.find_first_not_of("0123456789 ")) continue;
      return At(name == "follower ", std::string(line.line).erase(at, name.size()));
    }
    const std::string& verb = line.words.at(0);
    if (verb == "shards") return Start(line.line.substr(verb.size())), "";
    if (verb == "tell") return Tell();
    const std::vector<core::SiteId> sites(line.words.begin() + 1, line.words.end());
    if (verb == "train") return Train(sites, line.Number("until"));
    CHECK(verb == "arrive" || verb == "contribute");
    std::string said;
    for (const core::SiteId& site : sites) {
      said += verb == "arrive" ? Arrive(site) : Contribute(site, line.Number("fragment"), line.Number("base"));
    }
    return said;
  }

  const RunRules& rules(int shard) const { return shards_[shard].rules(); }
  const core::FragmentSchedule& schedule() const { return schedule_; }

 private:
  RulesScript shards_[2];
  std::map<core::SiteId, core::Step> trained_;
  core::FragmentSchedule schedule_{kEvery, kFragments, /*delay=*/0};
};

TEST(Shards, FollowTheFirstAsTheirScriptsExpect) {
  core::ExpectScripts(RULES_TESTDATA "/shards", [](const std::string& script) {
    TwoShards shards;
    return core::PlayScript(script, [&](const core::ScriptLine& line) { return shards.Do(line); });
  });
}

// Whatever shard 0 knows of the others' rounds: a joiner contributes to none that is decided, and to all that are due
// after it enters.
TEST(Shards, AJoinerContributesFirstToWhatIsOpenAtEach) {
  for (core::Step t = 0; t < 40; ++t) {
    for (const bool heard : {false, true}) {
      TwoShards shards;
      shards.Start();
      shards.Arrive("a");
      shards.Train({"a"}, t);
      shards.At(0, "join b");
      if (heard) shards.Tell();
      const std::string entered = shards.At(0, "ready b");
      const core::Step step = core::ScriptLine::Of(entered.substr(0, entered.find('\n'))).Number("step");
      ASSERT_LE(step, t);
      shards.Tell();
      for (core::FragmentId p : {1, 3}) {
        const core::Version first = shards.rules(1).state().sites.at("b").first_versions[p];
        ASSERT_EQ(first, shards.rules(1).state().versions[p]);
        ASSERT_GT(shards.schedule().SendStep(p, first), step);
      }
      // From its own step on it is as any other.
      shards.Train({"b"}, step);
      shards.Train({"a", "b"}, t + 2 * kEvery);
      for (core::FragmentId p = 0; p < kFragments; ++p) {
        ASSERT_EQ(shards.rules(p % 2).state().versions[p], shards.schedule().FirstBaseAfter(p, t + 2 * kEvery));
      }
    }
  }
}

}  // namespace
}  // namespace causeway::server
