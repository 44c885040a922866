#include "worker/optimizer/momentum_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "codecs/codec.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

const codecs::Codec& Sign() { return codecs::GetCodec(core::CodecId::kOnebitAdamSign); }

uint8_t* At(std::byte* bytes, int64_t offset) { return reinterpret_cast<uint8_t*>(bytes + offset); }
const uint8_t* At(const std::byte* bytes, int64_t offset) { return reinterpret_cast<const uint8_t*>(bytes + offset); }

}  // namespace

MomentumExchange::MomentumExchange(const core::Manifest& manifest, TrainerRanks ranks,
                                   std::span<const float> second_moment, int64_t bucket_bytes)
    : ranks_(std::move(ranks)), second_moment_(second_moment), residual_(second_moment.size_bytes()) {
  const std::vector<int64_t> borders = core::FlatOffsets(manifest);
  CHECK(borders.back() == std::ssize(second_moment));
  const int64_t bucket_values = std::max<int64_t>(1, bucket_bytes / static_cast<int64_t>(sizeof(float)));
  const int world = ranks_.world();
  int64_t owned = 0;
  for (int64_t end = std::ssize(second_moment); world > 1 && end > 0; end = buckets_.back().first) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.first = std::max<int64_t>(0, end - bucket_values);
    bucket.owned = owned;
    for (int rank = 0; rank < world; ++rank) {
      const auto border = [&](int before) { return bucket.first + (end - bucket.first) * before / world; };
      bucket.ranges.push_back(MakeRange(borders, border(rank), border(rank + 1), bucket.range_bytes));
    }
    owned += bucket.ranges[ranks_.rank()].count;
    for (std::vector<std::byte>* all : {&bucket.encoded, &bucket.received, &bucket.averages}) {
      all->resize(bucket.range_bytes * world);
    }
    bucket.average.resize(bucket.range_bytes);
  }
  owned_.resize(owned);
}

MomentumExchange::Range MomentumExchange::MakeRange(const std::vector<int64_t>& borders, int64_t first, int64_t end,
                                                    int64_t& bytes) const {
  Range range{.first = first, .count = end - first, .pieces = {}};
  auto border = std::ranges::upper_bound(borders, first);
  int64_t scale_bytes = 0, code_bytes = 0;
  for (int64_t begin = first; begin < end; ++border) {
    const int64_t count = std::min(end, *border) - begin;
    if (count == 0) continue;
    range.pieces.push_back({.first = begin, .count = count, .scales = scale_bytes, .codes = code_bytes});
    scale_bytes += Sign().ScaleBytes(count);
    code_bytes += Sign().CodeBytes(count);
    begin += count;
  }
  for (Piece& piece : range.pieces) piece.codes += scale_bytes;
  bytes = std::max(bytes, scale_bytes + code_bytes);
  return range;
}

absl::Status MomentumExchange::Await(Collectives::Ticket ticket) {
  const absl::Status status = ranks_.values->Await(ticket, TimeoutOf(ranks_.timeout_s));
  return status.ok() ? status : absl::InternalError(status.message());
}

void MomentumExchange::MaskRange(const Range& range, float* values) const {
  const float* const v = second_moment_.data() + range.first;
  for (int64_t i = 0; i < range.count; ++i) values[i] = v[i] == 0 ? 0.0f : values[i];
}

absl::Status MomentumExchange::Encode(const Range& range, const float* values, float* residual,
                                      std::byte* bytes) const {
  for (const Piece& piece : range.pieces) {
    const int64_t at = piece.first - range.first;
    const codecs::EncodeJob job{.values = values + at,
                                .count = piece.count,
                                .rotation = {},
                                .beta = 1,
                                .residual = residual + at,
                                .next_residual = residual + at,
                                .scales = At(bytes, piece.scales),
                                .codes = At(bytes, piece.codes)};
    if (!Sign().Encode(job)) {
      return absl::DataLossError(absl::StrFormat(
          "1-bit Adam: expected momenta below 2^100, got one beyond or not finite among values %d to %d of the model",
          piece.first, piece.first + piece.count - 1));
    }
  }
  MaskRange(range, residual);
  return absl::OkStatus();
}

void MomentumExchange::Decode(const Range& range, const std::byte* bytes, bool add, float* values) const {
  for (const Piece& piece : range.pieces) {
    Sign().Decode({.scales = At(bytes, piece.scales),
                   .codes = At(bytes, piece.codes),
                   .rotation = {},
                   .values = values + (piece.first - range.first),
                   .count = piece.count,
                   .add = add ? std::optional(1.0f) : std::nullopt});
  }
}

void MomentumExchange::Begin(std::span<float> momentum) {
  CHECK(momentum.size() == second_moment_.size());
  momentum_ = momentum;
  sent_ = 0;
}

absl::Status MomentumExchange::Send(int64_t first) {
  for (; sent_ < buckets_.size() && buckets_[sent_].first >= first; ++sent_) {
    Bucket& bucket = buckets_[sent_];
    for (size_t rank = 0; rank < bucket.ranges.size(); ++rank) {
      const Range& range = bucket.ranges[rank];
      RETURN_IF_ERROR(Encode(range, momentum_.data() + range.first, residual_.Values<float>().data() + range.first,
                             bucket.encoded.data() + bucket.range_bytes * rank));
    }
    bucket.ticket = ranks_.values->AllToAll(bucket.encoded, bucket.received);
  }
  return absl::OkStatus();
}

absl::Status MomentumExchange::Average(Bucket& bucket) {
  RETURN_IF_ERROR(Await(bucket.ticket));
  const Range& range = bucket.ranges[ranks_.rank()];
  sum_.resize(std::max<size_t>(sum_.size(), range.count));
  for (int rank = 0; rank < ranks_.world(); ++rank) {
    Decode(range, bucket.received.data() + bucket.range_bytes * rank, rank > 0, sum_.data());
  }
  const float share = 1.0f / static_cast<float>(ranks_.world());
  for (int64_t i = 0; i < range.count; ++i) sum_[i] *= share;
  MaskRange(range, sum_.data());
  RETURN_IF_ERROR(Encode(range, sum_.data(), owned_.data() + bucket.owned, bucket.average.data()));
  bucket.ticket = ranks_.values->AllGather(bucket.average, bucket.averages);
  return absl::OkStatus();
}

absl::Status MomentumExchange::Finish() {
  if (ranks_.world() == 1) {
    if (!std::exchange(carries_, false)) return absl::OkStatus();
    const std::span<float> residual = residual_.Values<float>();
    for (size_t i = 0; i < momentum_.size(); ++i) momentum_[i] += std::exchange(residual[i], 0.0f);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Send(0));
  for (Bucket& bucket : buckets_) RETURN_IF_ERROR(Average(bucket));
  for (Bucket& bucket : buckets_) {
    RETURN_IF_ERROR(Await(bucket.ticket));
    for (int rank = 0; rank < ranks_.world(); ++rank) {
      const Range& range = bucket.ranges[rank];
      float* const values = momentum_.data() + range.first;
      Decode(range, bucket.averages.data() + bucket.range_bytes * rank, /*add=*/false, values);
      MaskRange(range, values);
    }
  }
  return absl::OkStatus();
}

// ---- Checkpoints ----

absl::StatusOr<MomentumExchange::State> MomentumExchange::Gather() {
  const int world = ranks_.world();
  if (ranks_.rank() > 0) {
    ranks_.values->Send(BytesOf(residual()), 0);
    RETURN_IF_ERROR(Await(ranks_.values->Send(BytesOf(owned_residual()), 0)));
    return State{};
  }
  State state;
  state.residuals.emplace_back(residual().begin(), residual().end());
  state.owned.resize(residual().size());
  for (int rank = 0; rank < world; ++rank) {
    std::vector<float> owned = owned_;
    if (rank > 0) {
      int64_t count = 0;
      for (const Bucket& bucket : buckets_) count += bucket.ranges[rank].count;
      owned.resize(count);
      ranks_.values->Receive(BytesOf(std::span(state.residuals.emplace_back(residual().size()))), rank);
      RETURN_IF_ERROR(Await(ranks_.values->Receive(BytesOf(std::span(owned)), rank)));
    }
    const float* from = owned.data();
    for (const Bucket& bucket : buckets_) {
      const Range& range = bucket.ranges[rank];
      std::copy_n(from, range.count, state.owned.data() + range.first);
      from += range.count;
    }
  }
  return state;
}

void MomentumExchange::Restore(const State& state) {
  const std::span<float> residual = residual_.Values<float>();
  const auto old_world = std::ssize(state.residuals);
  if (old_world == ranks_.world()) {
    std::ranges::copy(state.residuals[ranks_.rank()], residual.begin());
  } else {
    std::ranges::fill(residual, 0.0f);
    for (const std::vector<float>& other : state.residuals) {
      for (size_t i = 0; i < residual.size(); ++i) residual[i] += other[i] / static_cast<float>(old_world);
    }
  }
  // With one rank there is no second leg: its residual joins that of the first.
  if (ranks_.world() == 1) {
    carries_ = true;
    for (size_t i = 0; i < residual.size(); ++i) residual[i] += state.owned[i];
  }
  for (const Bucket& bucket : buckets_) {
    const Range& range = bucket.ranges[ranks_.rank()];
    std::copy_n(state.owned.data() + range.first, range.count, owned_.data() + bucket.owned);
  }
}

}  // namespace causeway::worker
