
#include "tests/bench/bench_run/wire.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <utility>

#include "absl/strings/str_split.h"
#include "codecs/chunk.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/random.h"
#include "ctl/client_flags.h"
#include "formats/run_yaml.h"
#include "tests/bench/bench_run/bench_run.h"
#include "transport/sharded_link.h"

namespace causeway::bench {

namespace {

// Values of a fragment from index `first` of its padded array on, uniform in ±0.02.
void Fill(core::FragmentId fragment, int64_t first, std::span<float> values) {
  constexpr float kAmplitude = 0.02f;
  const uint64_t seed = core::SplitMix64(static_cast<uint64_t>(fragment));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = core::SplitMix64(seed + static_cast<uint64_t>(first) + i);
    values[i] = kAmplitude * (static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f);
  }
}

Chunks Encode(const core::Fragment& fragment, const codecs::LegCodec& leg) {
  auto chunks = std::make_shared<std::vector<core::Bytes>>();
  std::vector<float> values;
  for (const codecs::ChunkSpan& span : codecs::PlanChunks(fragment, leg)) {
    values.resize(span.values);
    Fill(fragment.id, span.first_value(), values);
    absl::StatusOr<std::string> chunk = codecs::EncodeChunk(span, values, {});
    CHECK(chunk.ok());
    chunks->push_back(*std::move(chunk));
  }
  return chunks;
}

}  // namespace

absl::StatusOr<core::FragmentMap> MapOf(const core::RunConfig& config) {
  if (config.model_kind != core::ModelKind::kSynthetic) {
    return absl::InvalidArgumentError("model.kind: light sites need synthetic");
  }
  core::Manifest manifest;
  for (const core::SyntheticTensor& tensor : config.synthetic.tensors) {
    const int layer = static_cast<int>(manifest.size());
    manifest.push_back({tensor.name, tensor.shape, core::TensorKind::kMatrix, layer});
  }
  return core::BuildFragmentMap(manifest, config.sync);
}

Chunks MakeContribution(const core::Fragment& fragment, const core::RunConfig& config) {
  return Encode(fragment, codecs::UpLeg(config));
}

Chunks MakeInitial(const core::Fragment& fragment) { return Encode(fragment, codecs::Unencoded()); }

uint64_t InitialDigest(const core::Fragment& fragment) {
  uint64_t digest = 0;
  std::vector<float> unit(core::kUnitValues);
  for (const core::TensorPlace& tensor : fragment.tensors) {
    for (int64_t i = 0; i < tensor.units(); ++i) {
      const int64_t values = std::min(core::kUnitValues, tensor.values - i * core::kUnitValues);
      std::ranges::fill(unit, 0.0f);
      Fill(fragment.id, (tensor.first_unit + i) * core::kUnitValues, std::span(unit).first(values));
      digest += core::DigestUnits(unit, tensor.first_unit + i);
    }
  }
  return digest;
}

int64_t PayloadBytes(const std::vector<core::Bytes>& chunks) {
  int64_t bytes = 0;
  for (const core::Bytes& chunk : chunks) bytes += static_cast<int64_t>(chunk.size());
  return bytes;
}

std::vector<std::string> NamesOfSites() { return absl::StrSplit(Given<std::string>("sites"), ','); }

absl::StatusOr<std::unique_ptr<transport::SessionLink>> LinkOf(const std::string& site) {
  const std::vector<std::string> texts = absl::StrSplit(Given<std::string>("coordinator"), ',');
  std::vector<transport::LinkOptions> shards;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(const transport::Address address, core::ParseAddress("an address", text));
    ASSIGN_OR_RETURN(const transport::ChannelOptions channel, ctl::ReadChannelOptions(address));
    shards.push_back({.coordinator = address, .channel = channel, .site = site, .channels = Given<int>("channels")});
  }
  return transport::MakeLink(std::move(shards));
}

absl::StatusOr<DescribedRun> Describe(transport::SessionLink& link) {
  ASSIGN_OR_RETURN(const transport::RunDescription description, link.Describe([] { return false; }));
  DescribedRun run;
  ASSIGN_OR_RETURN(run.config, formats::ParseRunConfig(description.run_config));
  ASSIGN_OR_RETURN(run.map, MapOf(run.config));
  return run;
}

void End(const absl::Status& status) {
  spdlog::error("{}", status.ToString());
  std::_Exit(1);
}

}  // namespace causeway::bench
