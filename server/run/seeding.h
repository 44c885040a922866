// The initial parameters on their way from the site that supplies them: parts by fragment, until all of this
// coordinator's are here.
//
//   Expect ─► Part … (chunks arrive) ─► IsWhole ─► Take ─► DecodeSeed ─► SaveSeed ─► Parameters
//
// Seeding: one owner at a time. The functions are pure, but for files.
#pragma once

#include <memory>
#include <vector>

#include "core/fragment_map.h"
#include "core/ids.h"
#include "server/merge/contribution.h"
#include "server/run/parameters.h"
#include "server/store/journal.h"

namespace causeway::server {

class Seeding {
 public:
  void Void() { parts_.clear(); }  // discards what has come, and expects nothing
  void Expect(int num_fragments) { parts_.assign(num_fragments, nullptr); }
  bool expects() const { return !parts_.empty(); }
  bool expects(core::FragmentId fragment) const { return fragment >= 0 && fragment < std::ssize(parts_); }

  // The part of an expected fragment, whose chunks are being received.
  std::shared_ptr<Contribution> Part(const core::Fragment& fragment);
  int64_t NumArrived() const;
  bool IsWhole(const core::FragmentMap& map, const core::Shard& shard) const;  // has all that the shard owns
  std::vector<std::shared_ptr<Contribution>> Take() { return std::exchange(parts_, {}); }

 private:
  std::vector<std::shared_ptr<Contribution>> parts_;  // by fragment; null: nothing has come; empty: none expected
};

// Releases each part as soon as it is decoded; another shard's are null. `with_residual`: the return leg has error
// feedback.
std::vector<StartingFragment> DecodeSeed(const core::FragmentMap& map, std::vector<std::shared_ptr<Contribution>> parts,
                                         bool with_residual);

// Durable when it returns. Sets the fragments' digests.
absl::Status SaveSeed(const core::FragmentMap& map, const core::Shard& shard, std::vector<StartingFragment>& fragments,
                      Journal& journal);

}  // namespace causeway::server
