#include "worker/data/site_batches.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/random.h"

namespace causeway::worker {

SiteBatches::SiteBatches(std::shared_ptr<const Corpus> corpus, uint64_t seed, core::SiteId site, int64_t batch_rows)
    : corpus_(std::move(corpus)), seed_(seed), site_(std::move(site)), batch_rows_(batch_rows) {
  CHECK(SetSites({site_}).ok());  // an open corpus has a segment for one site
}

absl::Status SiteBatches::SetSites(std::vector<core::SiteId> sites) {
  sites.push_back(site_);
  std::ranges::sort(sites);
  sites.erase(std::unique(sites.begin(), sites.end()), sites.end());
  ASSIGN_OR_RETURN(const auto owned, corpus_->AssignSegments(seed_, sites));
  segments_ = owned[std::ranges::find(sites, site_) - sites.begin()];
  return absl::OkStatus();
}

int64_t SiteBatches::RowBegin(core::Step t, int64_t row) const {
  const uint64_t site = core::HashCombine(seed_, site_);
  const uint64_t draw = core::HashCombine(core::HashCombine(site, static_cast<uint64_t>(t)), row);
  const Corpus::Range segment = corpus_->Segment(segments_[draw % segments_.size()]);
  const uint64_t starts = static_cast<uint64_t>(segment.size() - corpus_->window() + 1);
  return segment.begin + static_cast<int64_t>(core::SplitMix64(draw) % starts);
}

Batch SiteBatches::BatchAt(core::Step t, int rank, int world) const {
  Batch batch;
  const int64_t rows = batch_rows_ / world;
  for (int64_t row = rank * rows; row < (rank + 1) * rows; ++row) corpus_->AppendRow(RowBegin(t, row), batch);
  return batch;
}

}  // namespace causeway::worker
