// The text that a site trains on, in segments that each belong to one site, and a held-out tail.
//
//   |segment 0|segment 1| …                                        |segment n−1|   held out   |
//   eu        asia      us …  (rendezvous hashing over the sites)                evaluation only
//
// Every site has the same file, so all agree on the owners of segments without communication. A segment belongs to the
// site of the highest hash of (run seed, site, segment): when a site joins it takes segments from all the others, and
// nothing else moves (Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996). n is 1024, fewer for
// a small file, so that each segment holds at least four sequences. A site that has a text of its own (data.mode own)
// has it as one segment, so that a row may begin anywhere.
//
// Immutable after Open, thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/run_config.h"
#include "formats/token_file.h"
#include "worker/model/llama_model.h"

namespace causeway::worker {

class Corpus {
 public:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;

    int64_t size() const { return end - begin; }
  };

  // `held_out` is the share of the tokens, at the end of the file, that no site trains on. INVALID_ARGUMENT if the file
  // has fewer tokens than one segment and one held-out sequence need, with the number required. A share of 0 holds
  // nothing out, and then there are no evaluation windows. `held_out_path` is a file or folder that is no part of the
  // text, also where it lies in the folder `path`; or empty.
  static absl::StatusOr<std::shared_ptr<const Corpus>> Open(const std::string& path, const formats::TokenFormat& format,
                                                            int64_t sequence, double held_out,
                                                            core::DataMode mode = core::DataMode::kShared,
                                                            const std::string& held_out_path = "");

  // Opens a text that is held out as a whole, only for evaluation.
  static absl::StatusOr<std::shared_ptr<const Corpus>> OpenHeldOut(const std::string& path,
                                                                   const formats::TokenFormat& format,
                                                                   int64_t sequence);

  const formats::TokenFile& tokens() const { return tokens_; }
  int64_t size() const { return tokens_.size(); }
  int64_t sequence() const { return sequence_; }    // tokens in a row of a batch
  int64_t window() const { return sequence_ + 1; }  // tokens that a row needs: each is predicted from those before it
  uint32_t operator[](int64_t i) const { return tokens_[i]; }

  Range training() const { return {0, held_out_begin_}; }
  Range held_out() const { return {held_out_begin_, tokens_.size()}; }

  int64_t num_segments() const { return num_segments_; }
  Range Segment(int64_t i) const;

  // The segments of each site, in the order of `sites`. Where rendezvous hashing would leave a site with none, it takes
  // the segment with its highest hash from a site that has several. INVALID_ARGUMENT if there are more sites than
  // segments.
  absl::StatusOr<std::vector<std::vector<int64_t>>> AssignSegments(uint64_t seed,
                                                                   const std::vector<core::SiteId>& sites) const;

  // Start of evaluation window i of `count`, evenly spaced over the held-out tail.
  int64_t HeldOutWindow(int64_t i, int64_t count) const;

  // Adds the row that begins at `begin` to a batch.
  void AppendRow(int64_t begin, Batch& batch) const;

 private:
  Corpus(formats::TokenFile tokens, std::string path, int64_t sequence, double held_out, int64_t most_segments);

  // INVALID_ARGUMENT: the tokens that `sites` sites need, and how many there are.
  absl::Status TooSmall(int64_t sites) const;

  formats::TokenFile tokens_;
  std::string path_;
  int64_t sequence_;
  double held_out_share_;
  int64_t held_out_begin_;
  int64_t num_segments_;
};

}  // namespace causeway::worker
