// The values that coordinator and sites exchange about membership in a run.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "core/ids.h"

namespace causeway::core {

// A site's place in the schedule, decided when it is ready. It continues from `step`, holds at least `versions`, and
// its first contribution to fragment p has base version first_versions[p]; updates to earlier versions only move it.
struct Entry {
  Step step = 0;
  std::vector<Version> versions;
  std::vector<Version> first_versions;
  std::vector<SiteId> sites;  // the sites that share the data
  int64_t stay = 0;           // the site's stay, counted as in SiteRecord

  friend bool operator==(const Entry&, const Entry&) = default;
};

enum class SiteState { kJoining, kTraining, kDraining, kGone };
inline constexpr std::array kSiteStates = {SiteState::kJoining, SiteState::kTraining, SiteState::kDraining,
                                           SiteState::kGone};
constexpr const char* SiteStateName(SiteState state) {
  return std::array{"joining", "training", "draining", "gone"}[static_cast<size_t>(state)];
}

// How the stay of a site that is gone has ended.
enum class Ended {
  kLeft,
  kFinished,  // it has done all its steps
  kExpired,   // its lease ended and it is missed: no operator asked it to leave, before or since
  kDrained,   // an operator had asked it to leave
  kDropped,   // it has to join anew
};
inline constexpr std::array kEnds = {Ended::kLeft, Ended::kFinished, Ended::kExpired, Ended::kDrained, Ended::kDropped};
constexpr const char* EndedName(Ended ended) {
  return std::array{"left", "finished", "expired", "drained", "dropped"}[static_cast<size_t>(ended)];
}

constexpr bool IsJoining(SiteState state) { return state == SiteState::kJoining; }  // it has no place yet
// True for a site that has its place in the schedule: it shares the data, and rounds may expect it.
constexpr bool IsActive(SiteState state) { return state == SiteState::kTraining || state == SiteState::kDraining; }

// A contribution that was admitted to a round: it will be merged, or has been.
struct Admitted {
  Version base = 0;    // version of the anchor from which the outer gradient was taken
  int64_t tokens = 0;  // tokens that its site trained since its last merged contribution to the fragment
  int64_t steps = 0;
  double norm = 0;  // ‖d‖ of the decoded values; 0: unknown

  friend bool operator==(const Admitted&, const Admitted&) = default;
};

// A merged contribution whose length is known.
struct Merged {
  Version version = 0;  // version that its round made
  Admitted admitted;
  float factor = 1;  // factor by which its values were scaled

  double length() const { return admitted.norm * double{factor}; }
  friend bool operator==(const Merged&, const Merged&) = default;
};
inline constexpr size_t kMergedKept = 16;

// The rules' record of one site.
struct SiteRecord {
  SessionId session;
  SiteState state = SiteState::kGone;
  Ended ended = Ended::kLeft;           // how the stay ended, if the site is gone
  std::string reason;                   // why it is in that state
  std::vector<Version> first_versions;  // see Entry; empty before the site has entered
  std::vector<Version> last_merged;     // base version of its last merged contribution, −1 = none
  int64_t stay = 0;                     // how often the name has joined anew: with the session it identifies a stay
  // Set by the values of its contributions (server/rounds/value_rules.h).
  int refusals = 0;                        // refused contributions in a row
  bool quarantined = false;                // after too many refusals: it follows the updates, and counts for no round
  bool starts_anew = false;                // its state is void: when it joins, it starts from the anchor
  int64_t releases = 0;                    // how often an operator has released it
  std::vector<std::deque<Merged>> merged;  // by fragment: the last kMergedKept, oldest first; empty: none yet

  friend bool operator==(const SiteRecord&, const SiteRecord&) = default;
};

// A contribution that is far longer than usual and merged nevertheless, or one that is far later than usual.
struct Outlier {
  enum class Kind {
    kScaled,   // too long: scaled down to the gate
    kBroken,   // too long again and again, unlike most others: scaled to the usual length from now on
    kWhole,    // too long, but merged whole, since there is no gate
    kApart,    // the lengths of the run's two sites differ by more than the gate: neither is scaled for it
    kAwaited,  // the others' open round waits for it far longer than usual
  };
  Kind kind = Kind::kScaled;
  SiteId site;  // kApart: the site with the longer contribution
  FragmentId fragment = 0;
  Version version = 0;  // version that its round made
  std::string text;     // "norm 32 is 26 times the usual 1.2, and was scaled by 0.31"
};

// The whole state of the rules of server/rounds, which a restart of the coordinator must find again.
struct RoundState {
  bool seeded = false;            // the initial parameters are there
  bool started = false;           // min_sites were ready at some time
  bool finished = false;          // a site has done all its steps
  bool paused = false;            // an operator has paused the run
  bool stopped = false;           // an operator has stopped the run: sites leave, and none joins
  std::vector<Version> versions;  // number of decided rounds, by fragment
  std::vector<std::map<SiteId, Admitted>> contributions;  // admitted to the open round of each fragment
  std::map<SiteId, SiteRecord> sites;                     // every site that ever joined
  std::vector<int64_t> tokens;                            // by fragment: tokens of all contributions merged into it

  friend bool operator==(const RoundState&, const RoundState&) = default;
};

// The membership that the other shards of a run follow: the sites in the run, and the decisions of shard 0 and its
// operators for all.
struct Member {
  SessionId session;
  int64_t stay = 0;
  SiteState state = SiteState::kGone;
  Ended ended = Ended::kLeft;
  std::string reason;
  std::vector<Version> first_versions;  // other shards' fragments: by the schedule; those shards know the exact values
  int64_t releases = 0;                 // counted as in SiteRecord

  friend bool operator==(const Member&, const Member&) = default;
};
struct Membership {
  bool started = false;
  bool finished = false;
  bool paused = false;
  bool stopped = false;
  SiteId seeder;  // the initial parameters were requested from it; empty once all shards have them
  std::map<SiteId, Member> sites;

  friend bool operator==(const Membership&, const Membership&) = default;
};

}  // namespace causeway::core
