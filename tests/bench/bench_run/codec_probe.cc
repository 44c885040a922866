#include "tests/bench/bench_run/codec_probe.h"

#include <cmath>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "codecs/chunk.h"
#include "codecs/compression.h"
#include "core/check.h"
#include "core/outer_step.h"
#include "formats/safetensors.h"
#include "transport/messages.h"

namespace causeway::bench {
namespace {

// The chunks cover a fragment of `padded_values`, and have been checked before.
template <typename Chunk>
std::vector<float> Decode(const std::vector<Chunk>& chunks, int64_t padded_values) {
  std::vector<float> values(padded_values);
  for (const Chunk& bytes : chunks) {
    const auto chunk = codecs::ExpandChunk(std::string(bytes.begin(), bytes.end()));
    CHECK(chunk.ok());
    const auto view = codecs::ChunkView::Parse(*chunk);
    CHECK(view.ok());
    const codecs::ChunkSpan& span = view->span();
    view->Decode(span.first_unit, std::span(values).subspan(span.first_value(), span.values));
  }
  return values;
}

double Norm(std::span<const float> values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// W of this version, which is the open round's base as long as the caller has not contributed to it.
std::vector<float> FetchAnchor(server::RunExchange& coordinator, const core::Fragment& fragment,
                               core::Version version) {
  v1::DownloadRequest request;
  request.mutable_context()->set_protocol(transport::kProtocol);
  request.set_fragment(fragment.id);
  request.set_anchor_version(version);
  std::shared_ptr<server::ChunkSource> found;
  while (found == nullptr) {  // until there is a snapshot of that version
    auto woken = std::make_shared<std::promise<void>>();
    server::Waiter waiter = [woken] { woken->set_value(); };
    const server::Ready begun = coordinator.Handle(server::input::BeginDownload{request, waiter});
    CHECK(begun.status.ok());
    found = begun.download.source;
    if (found == nullptr) woken->get_future().wait();
  }
  const auto header = found->Header([] {});
  CHECK(header && header->version == version);
  std::vector<std::string> chunks;  // the first half is W, the second v
  for (int i = 0; i < header->num_chunks / 2; ++i) chunks.push_back(*found->Get(i, [] {}).chunk);
  return Decode(chunks, fragment.padded_values());
}

}  // namespace

void LegFigures::Add(std::span<const float> truth, std::span<const float> decoded) {
  CHECK(truth.size() == decoded.size());
  const double norm = Norm(truth);
  if (norm == 0) return;  // nothing was trained
  double squares = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double difference = static_cast<double>(decoded[i]) - truth[i];
    squares += difference * difference;
  }
  error += std::sqrt(squares) / norm;
  norm_ratio += Norm(decoded) / norm;
  ++count;
}

void RoundSums::Add(const core::SiteId& site, core::FragmentId fragment, core::Version base,
                    std::vector<float> decoded) {
  core::MutexLock lock(mutex_);
  decoded_[{fragment, base}][site] = std::move(decoded);
}

std::vector<float> RoundSums::TakeMean(core::FragmentId fragment, core::Version base) {
  core::MutexLock lock(mutex_);
  const auto round = decoded_.extract({fragment, base});
  CHECK(!round.empty());
  std::vector<float> mean;
  for (const auto& [site, decoded] : round.mapped()) {
    mean.resize(decoded.size());
    const float weight = 1.0f / static_cast<float>(round.mapped().size());
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += weight * decoded[i];
  }
  return mean;
}

void ProbedSite::Record(std::string dir, std::set<core::Version> bases) {
  record_dir_ = std::move(dir);
  for (core::Version base : bases) recordings_[base];
}

absl::Status ProbedSite::BeforeSend(const core::FragmentMap& map, core::FragmentId fragment, core::Version base,
                                    core::Step step, const std::vector<std::span<float>>& tensors,
                                    server::RunExchange& coordinator) {
  std::vector<float> delta = FetchAnchor(coordinator, map.fragment(fragment), base);
  for (const core::TensorPlace& place : map.fragment(fragment).tensors) {
    const auto part = std::span(delta).subspan(place.first_unit * core::kUnitValues, place.values);
    core::OuterGradient(part, tensors[place.tensor], part);
  }
  if (recordings_.contains(base)) RETURN_IF_ERROR(RecordFragment(map, fragment, base, step, delta));
  core::MutexLock lock(mutex_);
  sending_[fragment] = std::move(delta);
  return absl::OkStatus();
}

absl::Status ProbedSite::RecordFragment(const core::FragmentMap& map, core::FragmentId fragment, core::Version base,
                                        core::Step step, std::span<const float> delta) {
  Recording& recording = recordings_[base];
  recording.tensors.resize(map.manifest().size());
  recording.steps.resize(map.num_fragments());
  for (const core::TensorPlace& place : map.fragment(fragment).tensors) {
    const auto part = delta.subspan(place.first_unit * core::kUnitValues, place.values);
    recording.tensors[place.tensor].assign(part.begin(), part.end());
  }
  recording.steps[fragment] = step;
  if (++recording.fragments < map.num_fragments()) return absl::OkStatus();
  std::vector<formats::TensorData> data;
  for (size_t i = 0; i < recording.tensors.size(); ++i) {
    data.push_back({map.manifest()[i].name, map.manifest()[i].shape, recording.tensors[i]});
  }
  return formats::WriteSafetensors(
             absl::StrFormat("%s/round_%04d.safetensors", record_dir_, base), data,
             {{"site", site_}, {"base", absl::StrCat(base)}, {"steps", absl::StrJoin(recording.steps, ",")}})
      .status();
}

void ProbedSite::OnContribution(core::FragmentId fragment, core::Version base, const std::vector<core::Bytes>& chunks) {
  std::vector<float> delta;
  {
    core::MutexLock lock(mutex_);
    delta = std::move(sending_[fragment]);
  }
  std::vector<float> decoded = Decode(chunks, static_cast<int64_t>(delta.size()));
  up_.Add(delta, decoded);
  sums_->Add(site_, fragment, base, std::move(decoded));
}

void ProbedSite::OnUpdate(core::FragmentId fragment, core::Version base, const std::vector<std::string>& chunks) {
  if (!compares_updates_) return;
  const std::vector<float> mean = sums_->TakeMean(fragment, base);
  down_.Add(mean, Decode(chunks, static_cast<int64_t>(mean.size())));
}

}  // namespace causeway::bench
