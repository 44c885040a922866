// The batches of one site: rows of text from its own segments of the corpus.
//
// The row of (step, row number) begins at a position that is a pure function of (seed, site, step, row) and of the
// sites that share the data, so that a restarted worker needs no reader state. One owner thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/ids.h"
#include "worker/data/corpus.h"

namespace causeway::worker {

class SiteBatches {
 public:
  SiteBatches(std::shared_ptr<const Corpus> corpus, uint64_t seed, core::SiteId site, int64_t batch_rows);

  // Sets the sites that share the data, with or without this one. INVALID_ARGUMENT if the corpus is too small for that
  // many; the segments then stay as they were.
  absl::Status SetSites(std::vector<core::SiteId> sites);

  const std::vector<int64_t>& segments() const { return segments_; }

  // The position at which row `row` of step t begins.
  int64_t RowBegin(core::Step t, int64_t row) const;
  // The rows of step t that rank `rank` of `world` takes: of all rows, dealt in order. The number of rows is a multiple
  // of the world.
  Batch BatchAt(core::Step t, int rank = 0, int world = 1) const;

 private:
  std::shared_ptr<const Corpus> corpus_;
  uint64_t seed_;
  core::SiteId site_;
  int64_t batch_rows_;
  std::vector<int64_t> segments_;  // never empty
};

}  // namespace causeway::worker
