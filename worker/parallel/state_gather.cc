#include "worker/parallel/state_gather.h"

#include <algorithm>
#include <map>
#include <string>

#include "core/check.h"

namespace causeway::worker {

absl::StatusOr<std::vector<GatheredTensor>> GatherTensors(const TrainerRanks& ranks, const core::Manifest& whole,
                                                          const core::Manifest& held, const TensorValues& parameters,
                                                          OptimizerState& optimizer, const StatePieces& pieces_of) {
  std::vector<formats::TensorData> state;
  std::map<std::string, std::string> metadata;
  for (size_t i = 0; i < held.size(); ++i) {
    state.push_back({held[i].name, held[i].shape, parameters[static_cast<int>(i)]});
  }
  RETURN_IF_ERROR(optimizer.AppendState(state, metadata));
  const size_t kinds = state.size() / held.size();  // θ, and what the optimizer has of each tensor
  // After θ, tensor by tensor: "first_moment.NAME", "second_moment.NAME".
  const auto at = [&](size_t kind, size_t i) { return kind == 0 ? i : held.size() + i * (kinds - 1) + kind - 1; };
  std::vector<GatheredTensor> gathered;
  for (size_t kind = 0; kind < kinds && ranks.rank() == 0; ++kind) {
    const std::string& first = state[at(kind, 0)].name;
    const std::string prefix = first.substr(0, first.size() - held[0].name.size());
    for (const core::TensorSpec& spec : whole) {
      gathered.push_back({prefix + spec.name, spec.shape, std::vector<float>(static_cast<size_t>(spec.NumValues()))});
    }
  }
  Collectives::Ticket ticket = 0;
  for (int from = 0; from < ranks.world(); ++from) {
    if (ranks.rank() != 0 && ranks.rank() != from) continue;
    const std::vector<Piece> pieces = pieces_of(from);
    for (size_t kind = 0; kind < kinds; ++kind) {
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (pieces[i].rank != from) continue;
        if (ranks.rank() != 0) {
          ticket = ranks.values->Send(BytesOf(state[at(kind, i)].values), 0);
          continue;
        }
        std::vector<float>& values = gathered[kind * whole.size() + static_cast<size_t>(pieces[i].tensor)].values;
        const std::span<float> to =
            std::span(values).subspan(static_cast<size_t>(pieces[i].first), static_cast<size_t>(pieces[i].count));
        if (from == 0) {
          std::ranges::copy(state[at(kind, i)].values, to.begin());
        } else {
          ticket = ranks.values->Receive(BytesOf(to), from);
        }
      }
    }
  }
  const absl::Status done = ticket == 0 ? absl::OkStatus() : ranks.values->Await(ticket, TimeoutOf(ranks.timeout_s));
  optimizer.Saved();
  RETURN_IF_ERROR(RankFailure(done));
  return gathered;
}

}  // namespace causeway::worker
