#include "worker/model/embedding_shares.h"

#include <algorithm>
#include <numeric>

#include "worker/device/kernels/embedding_kernels.h"

namespace causeway::worker {

void EmbeddingShares::Assign(std::span<const int32_t> of_rows) {
  constexpr auto kMost = static_cast<int32_t>(kEmbeddingShareRows);
  order.resize(of_rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t row) { return of_rows[row]; });
  for (std::vector<int32_t>* part : {&tokens, &begins, &ends, &split}) part->clear();
  const auto rows = static_cast<int32_t>(order.size());
  for (const bool several : {true, false}) {
    for (int32_t begin = 0, end = 0; begin < rows; begin = end) {
      const int32_t token = of_rows[order[begin]];
      while (end < rows && of_rows[order[end]] == token) ++end;
      if ((end - begin > kMost) != several) continue;
      if (several) split.push_back(static_cast<int32_t>(count()));
      for (int32_t first = begin; first < end; first += kMost) {
        tokens.push_back(token);
        begins.push_back(first);
        ends.push_back(std::min(first + kMost, end));
      }
    }
    if (several) split.push_back(static_cast<int32_t>(count()));
  }
}

}  // namespace causeway::worker
