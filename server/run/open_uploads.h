// The contributions to the open round of each fragment: those that arrive, and those that were admitted. Here are their
// bytes; the rules' facts about them are in core::RoundState. One owner at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/ids.h"
#include "core/membership.h"
#include "server/merge/contribution.h"

namespace causeway::server {

class OpenUploads {
 public:
  struct Arriving {
    std::shared_ptr<Contribution> contribution;
    core::Version base = 0;
    int64_t begun_ms = 0;  // of the monotonic clock
  };

  void Begin(int num_fragments) { open_.assign(num_fragments, {}); }  // another model
  int num_fragments() const { return static_cast<int>(open_.size()); }

  const Arriving* Find(core::FragmentId fragment, const core::SiteId& site) const;  // null: none
  void Put(core::FragmentId fragment, const core::SiteId& site, Arriving arriving) {
    open_[fragment][site] = std::move(arriving);
  }
  // For a round that merges it; it must be there.
  std::shared_ptr<Contribution> Take(core::FragmentId fragment, const core::SiteId& site);
  void Erase(core::FragmentId fragment, const core::SiteId& site) { open_[fragment].erase(site); }
  void Clear(core::FragmentId fragment) { open_[fragment].clear(); }

 private:
  std::vector<std::map<core::SiteId, Arriving>> open_;
};

}  // namespace causeway::server
