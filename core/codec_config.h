// The encoding of both legs: `codec` of run.yaml (core/run_config.h).
#pragma once

#include <vector>

#include "core/codec_id.h"
#include "core/manifest.h"

namespace causeway::core {

struct CodecConfig {
  CodecId up = CodecId::kInt4;
  CodecId down = CodecId::kInt4;
  float feedback_up = 1.0f;  // β of the error feedback; 0 = off
  float feedback_down = 1.0f;
  std::vector<TensorKind> exempt;  // tensors of these kinds are bfloat16 on both legs
  bool zstd = false;               // chunks are compressed where it pays
  // `auto`: the coordinator chooses from these, listed best first and all of one domain, according to each round's
  // links; `up` and `down` are then the last, cheapest one, with which a run begins. Empty: no choice.
  std::vector<CodecId> allow_up;
  std::vector<CodecId> allow_down;

  // `down: sparse`: each round has that of topk's family which has room for all of its contributions' entries
  // (SparseDown). `down` is then that of min_sites contributions, and allow_down the family.
  bool sparse_down() const { return !allow_down.empty() && TopkEntries(allow_down.front()) > 0; }
  bool chooses_down() const { return !allow_down.empty() && !sparse_down(); }  // `auto`
  friend bool operator==(const CodecConfig&, const CodecConfig&) = default;
};

}  // namespace causeway::core
