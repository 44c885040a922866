#include "server/merge/merge.h"

#include <array>
#include <atomic>
#include <mutex>
#include <optional>

#include "codecs/chunk_writer.h"
#include "codecs/compression.h"
#include "core/check.h"
#include "server/merge/contribution.h"
#include "server/merge/radial_directional.h"
#include "server/merge/work_items.h"

namespace causeway::server {
namespace {

// Tensors with their own weights are merged in groups: first the weights, then the tensors. A group is work for all
// threads many times over, so that waiting for each other between the two costs nothing, and small compared with a
// fragment, so that the first chunks need not wait for all of it.
constexpr int64_t kGroupUnitsPerThread = 16 * kItemUnits;

// A chunk of the update in progress: pieces of it come from several threads.
struct OpenChunk {
  std::once_flag begun;
  std::optional<codecs::ChunkWriter> writer;
  std::atomic<int64_t> units_left = 0;
  std::string bytes;  // once there are none left
};

// Figures of one item, until its turn to be added.
struct ItemFigures {
  StepProducts products;
  Agreements agreements;

  explicit ItemFigures(size_t contributions) { Clear(contributions); }
  void Clear(size_t contributions) {
    products = {};
    agreements.xx = 0;
    agreements.dx.assign(contributions, 0.0);
    agreements.dd.assign(contributions, 0.0);
  }
  void Add(const ItemFigures& other) {
    products.Add(other.products);
    agreements.Add(other.agreements);
  }
};

// One round on its way into a fragment's state.
class RoundMerge {
 public:
  RoundMerge(const core::Fragment& fragment, std::span<const MergeInput> inputs, const MergeSettings& settings,
             core::ThreadTeam& threads, FragmentState& state)
      : fragment_(fragment),
        settings_(settings),
        threads_(threads),
        state_(state),
        sample_(fragment, state.version),
        plan_(codecs::PlanChunks(fragment, settings.down)),
        open_(plan_.size()),
        figures_(inputs.size()),
        figures_of_item_(threads.window(), figures_) {
    std::vector<ContributionReader> readers;
    for (const MergeInput& input : inputs) {
      weights_.push_back(input.weight);
      factors_.push_back(input.factor);
      readers.emplace_back(input.chunks);
    }
    readers_.assign(threads.threads(), readers);
  }

  MergeResult Run(const std::function<void(std::string chunk)>& emit);

 private:
  void MergeTensors(std::span<const core::TensorPlace> tensors, std::span<const std::vector<float>> weights,
                    const std::function<void(std::string chunk)>& emit);
  void MergePiece(const Piece& piece, size_t chunk, std::span<const float> weights,
                  std::span<ContributionReader> readers, ItemFigures& figures);
  uint64_t MergeTile(const Tile& tile, const codecs::ChunkSpan& chunk, std::span<const float> weights,
                     std::span<ContributionReader> readers, codecs::ChunkWriter& update, ItemFigures& figures);

  const core::Fragment& fragment_;
  const MergeSettings& settings_;
  core::ThreadTeam& threads_;
  FragmentState& state_;
  const TileSample sample_;
  const std::vector<codecs::ChunkSpan> plan_;
  std::vector<OpenChunk> open_;                           // of plan_
  std::vector<float> weights_;                            // λ_m
  std::vector<float> factors_;                            // f_m
  std::vector<std::vector<ContributionReader>> readers_;  // of each thread
  size_t next_chunk_ = 0;                                 // of plan_, the first that is not merged
  std::atomic<uint64_t> digest_ = 0;
  ItemFigures figures_;                       // of finished items
  std::vector<ItemFigures> figures_of_item_;  // by item mod window
};

// One tile: contributions in, encoded bytes, W, v and ē out. Returns the digest of the tile's units.
uint64_t RoundMerge::MergeTile(const Tile& tile, const codecs::ChunkSpan& chunk, std::span<const float> weights,
                               std::span<ContributionReader> readers, codecs::ChunkWriter& update,
                               ItemFigures& figures) {
  alignas(core::kCacheLineBytes) std::array<float, kTileValues> x_buffer, g_buffer;
  const std::span<float> blocks(x_buffer.data(), tile.values_in_blocks());
  const std::span<float> g(g_buffer.data(), tile.values);
  const auto of_tile = [&](core::AlignedFloats& values, int64_t count) {
    return std::span<float>(values).subspan(tile.first_value(), count);
  };

  const std::optional<uint64_t> rotated = readers.front().rotation_seed();
  DecodeSum(tile, readers, weights, blocks);
  if (const auto part = sample_.Of(tile)) AddAgreements(*part, readers, blocks, figures.agreements);
  const int64_t residual_values = codecs::ResidualValues({chunk.codec, 0, tile.values});
  const bool stays_rotated = rotated && codecs::GetCodec(chunk.codec).rotates();
  if (rotated && !stays_rotated) codecs::Unrotate({*rotated, tile.first_unit * core::kBlocksPerUnit}, blocks);
  codecs::ChunkFeedback feedback;
  if (settings_.feedback_down > 0) {
    const std::span<float> residual = of_tile(state_.residual, residual_values);
    feedback = {settings_.feedback_down, residual, residual};
  }
  update.WriteMean(tile.first_unit - chunk.first_unit, stays_rotated ? blocks : blocks.first(tile.values),
                   stays_rotated, feedback, g);
  const core::OuterParameters outer = settings_.down.OuterAt(fragment_, tile.first_unit, settings_.outer);
  figures.products.Add(
      MeasuredOuterStep(outer, g, of_tile(state_.momentum, tile.values), of_tile(state_.anchor, tile.values)));
  const auto units = std::span<const float>(state_.anchor).subspan(tile.first_value(), tile.padded_values());
  return core::DigestUnits(units, tile.first_unit);
}

// Merges tile by tile. The thread that merges the last piece of a chunk seals it.
void RoundMerge::MergePiece(const Piece& piece, size_t chunk, std::span<const float> weights,
                            std::span<ContributionReader> readers, ItemFigures& figures) {
  const codecs::ChunkSpan& span = plan_[chunk];
  OpenChunk& open = open_[chunk];
  std::call_once(open.begun, [&] {
    open.units_left = span.units();
    open.writer.emplace(span, codecs::GainFor(settings_.feedback_down));
  });
  for (ContributionReader& reader : readers) reader.SeekTo(span.first_unit + piece.first_unit);
  uint64_t digest = 0;
  const int64_t end_unit = piece.first_unit + piece.units;
  for (int64_t unit = piece.first_unit; unit < end_unit; unit += kTileUnits) {
    digest += MergeTile(TileAt(span.first_unit, span.values, unit), span, weights, readers, *open.writer, figures);
  }
  digest_.fetch_add(digest, std::memory_order_relaxed);  // a sum modulo 2^64 has no order
  if (open.units_left.fetch_sub(piece.units) > piece.units) return;
  open.bytes = open.writer->Finish();
  if (settings_.zstd) open.bytes = codecs::CompressChunk(std::move(open.bytes));
  open.writer.reset();
}

// Merges the next tensors of the fragment, with the weights of each.
void RoundMerge::MergeTensors(std::span<const core::TensorPlace> tensors, std::span<const std::vector<float>> weights,
                              const std::function<void(std::string chunk)>& emit) {
  const size_t first = next_chunk_;
  std::vector<int64_t> units;
  std::vector<size_t> tensor_of;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t end_unit = tensors[t].first_unit + tensors[t].units();
    for (; next_chunk_ < plan_.size() && plan_[next_chunk_].first_unit < end_unit; ++next_chunk_) {
      units.push_back(plan_[next_chunk_].units());
      tensor_of.push_back(t);
    }
  }
  const WorkItems items(units);
  threads_.RunInOrder(
      items.size(),
      [&](int worker, int64_t item) {
        ItemFigures& figures = figures_of_item_[item % threads_.window()];
        figures.Clear(weights_.size());
        for (const Piece& piece : items[item]) {
          MergePiece(piece, first + piece.source, weights[tensor_of[piece.source]], readers_[worker], figures);
        }
      },
      [&](int64_t item) {
        figures_.Add(figures_of_item_[item % threads_.window()]);
        for (const Piece& piece : items[item]) {
          if (piece.first_unit + piece.units == units[piece.source]) emit(std::move(open_[first + piece.source].bytes));
        }
      });
}

MergeResult RoundMerge::Run(const std::function<void(std::string chunk)>& emit) {
  const std::span<const core::TensorPlace> tensors = fragment_.tensors;
  if (settings_.rule == core::MergeRule::kAverage) {
    MergeTensors(tensors, std::vector(tensors.size(), ScaledWeights(weights_, factors_)), emit);
    return {digest_, figures_.products, figures_.agreements.Cosines()};
  }
  for (size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
    int64_t units = 0;
    while (end < tensors.size() && units < kGroupUnitsPerThread * threads_.threads()) units += tensors[end++].units();
    const auto group = tensors.subspan(begin, end - begin);
    MergeTensors(group, RadialDirectionalWeights(group, readers_.front(), weights_, factors_, threads_), emit);
  }
  return {digest_, figures_.products, figures_.agreements.Cosines()};
}

void CheckArguments(const core::Fragment& fragment, std::span<const MergeInput> inputs, const MergeSettings& settings,
                    const FragmentState& state) {
  CHECK(!inputs.empty());
  for (size_t i = 1; i < inputs.size(); ++i) CHECK(inputs[i - 1].site < inputs[i].site);
  for (const MergeInput& input : inputs) CHECK(input.weight >= 0 && input.weight <= 1 && input.factor <= 1);
  for (const MergeInput& input : inputs) CHECK(Cover(input.chunks, fragment));
  const size_t padded = fragment.padded_values();
  CHECK(state.anchor.size() == padded && state.momentum.size() == padded);
  CHECK(state.residual.size() == (settings.feedback_down > 0 ? padded : 0));
}

}  // namespace

std::vector<float> NormalizedWeights(std::span<const double> weights) {
  double sum = 0;
  for (double weight : weights) sum += weight;
  CHECK(weights.empty() || sum > 0);
  std::vector<float> normalized;
  for (double weight : weights) normalized.push_back(static_cast<float>(weight / sum));
  return normalized;
}

MergeResult Merge(const core::Fragment& fragment, std::span<const MergeInput> inputs, const MergeSettings& settings,
                  FragmentState& state, const std::function<void(std::string chunk)>& emit) {
  CheckArguments(fragment, inputs, settings, state);
  std::optional<core::ThreadTeam> alone;
  core::ThreadTeam& threads = settings.threads != nullptr ? *settings.threads : alone.emplace(1);
  MergeResult result = RoundMerge(fragment, inputs, settings, threads, state).Run(emit);
  ++state.version;
  return result;
}

}  // namespace causeway::server
