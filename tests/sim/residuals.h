// Whether sites lose nothing and add nothing: decoded + residual = inputs, for each contribution.
//
//   θ as the site's store gave it ─┐
//   W of the base, from the ledger ┼─► Δ + β e ─► encode ─► the bytes that were sent?   for an e that the site may have
//
// An e that a site may have: zero, and what each of its contributions so far left behind, merged or not; so a restart
// from a checkpoint is no special case. A contribution that fits none is wrong, if the one before it was seen whole.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/buffer_pool.h"
#include "core/fragment_map.h"
#include "core/run_config.h"
#include "replica/parameter_store.h"

namespace causeway::sim {

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

}  // namespace causeway::sim
