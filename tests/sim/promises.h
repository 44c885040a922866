// The promises of every run, whatever fails: looked for in each message that a program is handed.
//
//   1. A contribution that was acknowledged is merged, and once: into the update of its base (synchronous), or of one
//   soon after.
//   2. The update that makes a version, and the digest of its anchor, are the same for everyone and for ever.
//   3. No peer knows what is not durable: a verdict, a version, an entry outlives every crash after it was heard.
//   4. The epoch of a state directory, the generation of the model and a site's stay never fall.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/run_config.h"
#include "tests/sim/ledger.h"
#include "tests/sim/network.h"

namespace causeway::sim {

class Promises {
 public:
  Promises(const core::RunConfig& config, int shards) : config_(config), shards_(shards), ledger_(config) {}

  void Heard(const Call& call, bool to_client, const std::string& message);
  const std::vector<std::string>& broken() const { return broken_; }

  // A model that sites bring. The one that the coordinator welcomes them to is trained.
  void Offer(const core::SyntheticConfig& model) { offered_.push_back(model); }

  // At the end, of what was acknowledged: what should have been merged by now and was not.
  void CheckAllMerged();

  bool seeded() const { return seeded_; }  // the run has initial parameters, as far as anybody has heard
  int64_t joins() const { return joins_; }
  int64_t merges() const { return static_cast<int64_t>(updates_.size()); }
  int64_t acknowledged() const { return static_cast<int64_t>(acknowledged_.size()); }
  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }
  core::Version newest(core::FragmentId fragment) const;
  core::Step last_step(const std::string& site) const;  // that it reported
  // The newest version that has something of the site; 0: none.
  core::Version last_merged(const std::string& site, core::FragmentId fragment) const;

 private:
  using Place = std::pair<core::FragmentId, core::Version>;  // of an update: the version that it makes
  struct Contribution {
    core::FragmentId fragment;
    core::Version base;
    std::string site;
    auto operator<=>(const Contribution&) const = default;
  };
  struct OpenCall {
    v1::UploadHeader upload;
    v1::DownloadRequest download;
    v1::DownloadHeader header;
    std::map<core::FragmentId, core::Version> acknowledged;  // the site's last ones, when it joined
  };

  void Break(const std::string& what) {
    if (!what.empty()) broken_.push_back(what);
  }
  void HeardControl(const Call& call, bool to_client, const std::string& message);
  void HeardUpload(const Call& call, bool to_client, const std::string& message);
  void HeardDownload(const Call& call, bool to_client, const std::string& message);
  void HeardHeader(const Call& call, const v1::DownloadRequest& request, const v1::DownloadHeader& header);
  void HeardDigest(core::FragmentId fragment, core::Version version, uint64_t digest, const std::string& from);

  const core::RunConfig config_;
  const int shards_;
  std::vector<std::string> broken_;
  std::map<int64_t, OpenCall> calls_;  // by number
  std::set<Contribution> acknowledged_;
  std::map<Contribution, core::Version> merged_;
  std::map<Place, std::string> updates_;  // all that is said of each, in one text
  std::map<Place, uint64_t> digests_;
  std::map<std::string, uint64_t> epochs_;       // as a site hears them of a shard
  std::map<std::string, uint64_t> generations_;  // too
  std::map<std::string, int64_t> stays_;         // too
  std::map<std::string, core::Step> steps_;      // by site
  std::map<std::pair<std::string, core::FragmentId>, core::Version> last_merged_;
  Ledger ledger_;
  std::vector<core::SyntheticConfig> offered_;
  uint64_t generation_ = 0;  // of the model, the newest that was heard of
  bool seeded_ = false;
  int64_t joins_ = 0;
};

}  // namespace causeway::sim
