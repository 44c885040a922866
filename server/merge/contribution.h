// The chunks of one fragment from one site, spooled as they arrive, still encoded, until they are complete.
//
//   plan      |chunk 0|chunk 1|chunk 2| …      known to both ends (PlanChunks)
//   arrived   |  yes  |       |  yes  |        in any order, from several streams; a repeat is ignored
//
// Every chunk is checked in full when it arrives, so that a complete contribution can be merged without failing. Chunks
// that have arrived are kept when a stream breaks: the next stream sends only Missing(). Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "codecs/chunk.h"
#include "core/mutex.h"

namespace causeway::server {

class Contribution {
 public:
  explicit Contribution(std::vector<codecs::ChunkSpan> plan);

  // INVALID_ARGUMENT if the bytes are not a valid chunk (compressed or not), or not one of the plan;
  // FAILED_PRECONDITION if it is of another codec than the plan's. Nothing changes then.
  absl::Status Add(std::string bytes);

  std::vector<int> Missing() const;  // indices in the plan, ascending
  bool complete() const;

  // For a complete contribution, which no longer changes: its checked chunks in unit order, and their bytes. They live
  // as long as the contribution.
  std::vector<codecs::ChunkView> Views() const;
  const std::vector<std::string>& chunks() const;
  double Norm() const;  // ‖d‖ of the decoded values, in their codec's domain

 private:
  const std::vector<codecs::ChunkSpan> plan_;
  mutable core::Mutex mutex_;
  size_t num_missing_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> chunks_;                      // empty: not arrived; changed under mutex_, like views_
  std::vector<std::optional<codecs::ChunkView>> views_;  // of chunks_
  std::vector<double> squares_;                          // ‖d‖² of each
};

}  // namespace causeway::server
