// The place where the ranks of a site, one process each, meet to learn each other's addresses: rank 0 serves it.
//
//   rank 0 ─┐
//   rank 1 ─┼─► contact ─► the rendezvous waits for all ─► all contacts, to each; as often as they have to tell something
//   rank 2 ─┤              of one world, without duplicates,
//   rank 3 ─┘              and alike?
//
// A rank with another world or another identity, or a rank that appears twice, ends it for all, with both values in the
// message; a rank that does not come ends it after the timeout, with its number. Only a process that proves the site's
// key counts (class Hall). The text is plain, since it stays inside a site.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/ranks/rank_place.h"

namespace causeway::v1 {
class MeetReply;
class MeetRequest;
}  // namespace causeway::v1

namespace causeway::worker {

struct RankContact {
  std::string host;  // for error messages
  std::string addresses;
};

struct MeetOptions {
  RankPlace place;
  std::string identity;  // the same on all ranks
  RankKey key;
  double timeout_s = 600;  // the longest that a meeting may take
};

// One owner thread. Rank 0's destructor waits until the others have read their last answers.
class Rendezvous {
 public:
  // UNAVAILABLE: rank 0 cannot listen. INVALID_ARGUMENT: no such host.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Open(const MeetOptions& options);
  virtual ~Rendezvous() = default;

  // The contacts of all ranks, in their order. INVALID_ARGUMENT: the ranks do not fit, or rank 0 has another key.
  // DEADLINE_EXCEEDED: not all ranks have come. UNAVAILABLE: rank 0 has ended.
  absl::StatusOr<std::vector<RankContact>> Meet(const RankContact& mine);

 protected:
  explicit Rendezvous(const MeetOptions& options) : options_(options) {}
  virtual absl::Status Send(const v1::MeetRequest& request, v1::MeetReply& reply) = 0;

  const MeetOptions options_;

 private:
  int meetings_ = 0;
};

}  // namespace causeway::worker
