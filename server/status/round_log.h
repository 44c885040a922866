// The events of the last rounds and their times, which GET /timeline shows.
//
//   Begun ─► Arrived … ─► Decided ─► Merged ─► Taken …         of one (fragment, version)
//   └── open rounds, one each fragment ──┘└── ring of the last kKeptRounds ──┘
//
// `version` is the one that the round makes: base + 1. Times are Unix milliseconds, given by the caller. Pure: no
// clock, no lock; one owner at a time. Rounds handed out never change: a later write first copies the round, so that a
// snapshot costs one pointer per round.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/membership.h"
#include "core/progress.h"

namespace causeway::server {

struct LoggedRound {
  struct Arrival {
    core::SiteId site;
    int64_t begun_unix_ms = 0;               // its first chunk
    std::optional<int64_t> arrived_unix_ms;  // admitted
  };
  // A site's download of the update, in one stream or several.
  struct Download {
    core::SiteId site;
    int64_t begun_unix_ms = 0;
    int num_stripes = 0;
    uint32_t stripes = 0;                  // a bit for each finished stripe
    std::optional<int64_t> taken_unix_ms;  // all are finished
  };

  core::FragmentId fragment = 0;
  core::Version version = 0;
  std::vector<Arrival> arrivals;  // in order of their begin
  std::optional<int64_t> decided_unix_ms;
  std::optional<int64_t> merged_unix_ms;
  std::optional<uint64_t> digest;  // the anchor's digest, once the round is merged
  std::vector<Download> downloads;
  std::string reason;  // why it closed

  std::optional<int64_t> first_unix_ms() const;  // when the round's first chunk came
};

using LoggedRounds = std::vector<std::shared_ptr<const LoggedRound>>;

class RoundLog {
 public:
  // 64 sites' arrivals and downloads take 10 kB a round.
  static constexpr size_t kKeptRounds = 256;

  // The first chunk of a contribution to the round that makes `version` is on its way.
  void Begun(core::FragmentId fragment, core::Version version, const core::SiteId& site, int64_t unix_ms);
  void Arrived(core::FragmentId fragment, core::Version version, const core::SiteId& site, int64_t begun_unix_ms,
               int64_t unix_ms);
  // Drops a contribution that has begun and will not arrive.
  void Forget(core::FragmentId fragment, const core::SiteId& site);

  // Contributions that have begun and not arrived move to the fragment's next round.
  void Decided(core::FragmentId fragment, core::Version version, const std::string& reason, int64_t unix_ms);
  void Merged(core::FragmentId fragment, core::AnchorDigest committed, int64_t unix_ms);

  // One of `stripes` streams of the site's download is finished (core::kMaxStripes at most). If it was the last of
  // them, returns the milliseconds of the whole download. Does nothing for a round that is no longer kept.
  std::optional<int64_t> Taken(core::FragmentId fragment, core::Version version, const core::SiteId& site, int stripe,
                               int stripes, int64_t begun_unix_ms, int64_t unix_ms);

  // Decided rounds, oldest first, then the open ones by fragment.
  LoggedRounds rounds();

 private:
  struct Slot {
    std::shared_ptr<LoggedRound> round;
    bool handed_out = false;
  };

  static LoggedRound& Writable(Slot& slot);
  LoggedRound& Open(core::FragmentId fragment, core::Version version);
  Slot* Find(core::FragmentId fragment, core::Version version);  // among the decided rounds

  std::deque<Slot> decided_;
  std::map<core::FragmentId, Slot> open_;
};

}  // namespace causeway::server
