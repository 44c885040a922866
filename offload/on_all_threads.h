// A pass over many values on all threads of a team, in pieces that lie in one array.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "core/thread_team.h"

namespace causeway::offload {

// Calls work(first, count) for every piece of 0 … values − 1, concurrently and in any order. A piece is 65,536 values,
// 1.8 MB of AdamW's traffic: far more than taking it costs.
inline void OnAllThreads(core::ThreadTeam& team, int64_t values,
                         absl::FunctionRef<void(int64_t first, int64_t count)> work) {
  constexpr int64_t kPiece = int64_t{1} << 16;
  team.RunInOrder((values + kPiece - 1) / kPiece,
                  [&](int, int64_t piece) { work(piece * kPiece, std::min(kPiece, values - piece * kPiece)); },
                  [](int64_t) {});
}

}  // namespace causeway::offload
