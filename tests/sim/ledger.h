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

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "causeway/v1/coordinator.pb.h"
#include "core/buffer_pool.h"
#include "core/fragment_map.h"
#include "core/run_config.h"
#include "replica/parameter_store.h"
#include "server/merge/merge.h"

namespace causeway::sim {

// Whether sites lose nothing and add nothing: decoded + residual = inputs, for each contribution.
//
//   θ as the site's store gave it ─┐
//   W of the base, from the ledger ┼─► Δ + β e ─► encode ─► the bytes that were sent?   for an e that the site may have
//
// An e that a site may have: zero, and what each of its contributions so far left behind, merged or not; so a restart
// from a checkpoint is no special case. A contribution that fits none is wrong, if the one before it was seen whole.

class Residuals {
 public:
  using Values = std::vector<float>;

  explicit Residuals(const core::RunConfig& config) : config_(config) {}

  // θ of a fragment, padded, was read by the life of a site.
  void Read(const std::string& life, core::FragmentId fragment, std::span<const float> theta);

  // A contribution was sent whole: its chunks by first unit. `anchor`: W of its base. It says what is wrong; "":
  // nothing.
  std::string Sent(const std::string& life, const std::string& site, const core::Fragment& fragment,
                   std::span<const float> anchor, const std::map<int64_t, std::string>& chunks);

  // A contribution was sent that cannot be looked at: what the site has kept is not known from here on.
  void Lose(const std::string& site, core::FragmentId fragment) { lost_.insert({site, fragment}); }

  int64_t verified() const { return verified_; }

 private:
  struct Reading {
    int64_t number = 0;
    Values theta;
  };
  struct Readings {
    std::deque<Reading> last;
    int64_t number = 0;
    int64_t matched = -1;  // the last reading that a contribution was made of
  };

  bool Fits(const core::Fragment& fragment, std::span<const float> anchor, const Reading& reading,
            const Values& residual, const std::map<int64_t, std::string>& chunks, Values* next);

  const core::RunConfig config_;
  core::BufferPool pool_;
  std::map<std::pair<std::string, core::FragmentId>, Readings> readings_;        // by life
  std::map<std::pair<std::string, core::FragmentId>, std::deque<Values>> past_;  // by site; the newest first
  std::set<std::pair<std::string, core::FragmentId>> lost_;                      // what such a site keeps is not known
  std::map<std::pair<std::string, core::FragmentId>, int64_t> unmatched_;  // readings of a site since the last match
  int64_t verified_ = 0;
};

// A site's store, whose readings the checker hears of.
class WatchedStore final : public replica::ParameterStore {
 public:
  using Heard = std::function<void(const replica::UnitRanges&, std::span<const float>)>;
  WatchedStore(replica::ParameterStore* store, Heard heard) : store_(*store), heard_(std::move(heard)) {}

  core::DType dtype(int tensor) const override { return store_.dtype(tensor); }
  int64_t BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) override;
  absl::Status AwaitRead(int64_t ticket) override;

 private:
  absl::Status DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) override {
    return store_.Move(ranges, movement);
  }

  replica::ParameterStore& store_;
  const Heard heard_;
  std::map<int64_t, std::pair<replica::UnitRanges, std::span<float>>> reading_;
};

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
