// The arithmetic of the run, done again beside it: every merge that a site hears of, from the bytes that were sent and
// an account of W, v and the residual that starts at the initial parameters and is its own alone.
//
//   chunks on their way up ─► contributions ─┐
//   header of an update ─► who, what weight ─┼─► server::Merge on the ledger's own state ─► bytes, digest: the same?
//   chunks on their way down ────────────────┘
//
// An update is compared once its digest is known. So a contribution that is merged twice or from other
// bytes, a residual that is lost or applied twice, and a merge that goes on from another state are found in the version
// that they make. A fragment whose update no site fetched is not followed from there on.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "causeway/v1/coordinator.pb.h"
#include "core/fragment_map.h"
#include "core/run_config.h"
#include "server/merge/merge.h"
#include "tests/sim/residuals.h"

namespace causeway::sim {

class Ledger {
 public:
  explicit Ledger(const core::RunConfig& config) : config_(config), residuals_(config) {}

  // The model that is trained, as the sites make it.
  void Begin(const core::SyntheticConfig& model);

  // A text that is returned says what is wrong; "": nothing.
  // `life` of the site; `sending` tells one contribution of it from another one of the same base.
  std::string SentUp(const v1::UploadHeader& header, const std::string& life, const std::string& sending,
                     std::string chunk);
  void Merged(core::FragmentId fragment, const v1::DownloadHeader& header);
  std::string SentDown(core::FragmentId fragment, core::Version version, std::string chunk);
  std::string Digest(core::FragmentId fragment, core::Version version, uint64_t digest);

  int64_t verified() const { return verified_; }
  int64_t contributions_verified() const { return residuals_.verified(); }

  // A site's life has read these ranges of its θ.
  void ReadTheta(const std::string& life, const replica::UnitRanges& ranges, std::span<const float> theta);

 private:
  using Key = std::tuple<core::FragmentId, core::Version, std::string>;
  using Place = std::pair<core::FragmentId, core::Version>;
  using Chunks = std::map<int64_t, std::string>;  // by first unit, expanded
  // All that was heard of the update that makes a version.
  struct Update {
    std::optional<v1::DownloadHeader> header;
    Chunks chunks;
    std::optional<uint64_t> digest;
  };
  // A merge of one choice among what the sites have sent.
  struct Result {
    core::FragmentState state;
    Chunks chunks;
    uint64_t digest = 0;
  };

  std::string Advance(core::FragmentId fragment);
  std::string MergeOne(core::FragmentId fragment, const Update& update);
  Result Merge(core::FragmentId fragment, const v1::DownloadHeader& header,
               const std::vector<const Chunks*>& chosen) const;
  bool IsWhole(core::FragmentId fragment, const Chunks& chunks) const;

  const core::RunConfig config_;
  std::optional<core::FragmentMap> map_;
  std::vector<core::FragmentState> states_;
  // A site that was started anew may send other bytes of the same base; which of them were admitted the digest tells.
  std::map<Key, std::map<std::string, Chunks>> sent_;
  std::map<Place, Update> updates_;
  std::map<Place, core::AlignedFloats> anchors_;  // W of the last versions
  Residuals residuals_;
  int64_t verified_ = 0;
};

}  // namespace causeway::sim
