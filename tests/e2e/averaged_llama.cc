// averaged_llama RUN_YAML DATA OUT SITE…: trains the run's Llama in one process, on the mean of the gradients that the
// sites would have at each step, and exports it. A run with H = 1 and outer SGD(1) must come to the same;
// test_averaging.py compares them. It shares the model and the data with the product, and none of the synchronisation.
#include <cstdio>

#include "core/check.h"
#include "core/fragment_map.h"
#include "core/model_manifest.h"
#include "formats/model_export.h"
#include "formats/run_yaml.h"
#include "worker/data/site_batches.h"
#include "worker/model/llama_model.h"

namespace causeway {
namespace {

// θ ← θ − lr · Σ_m g_m / M
void Descend(double lr, const std::vector<worker::TensorValues>& site_gradients, worker::TensorValues& parameters) {
  for (int i = 0; i < parameters.size(); ++i) {
    for (size_t j = 0; j < parameters[i].size(); ++j) {
      double sum = 0;
      for (const worker::TensorValues& gradients : site_gradients) sum += gradients[i][j];
      parameters[i][j] -= static_cast<float>(lr * sum / static_cast<double>(site_gradients.size()));
    }
  }
}

absl::Status Export(const core::RunConfig& config, const worker::TensorValues& parameters, const std::string& out) {
  ASSIGN_OR_RETURN(const core::FragmentMap map,
                   core::BuildFragmentMap(core::LlamaManifest(config.llama), 1, config.sync.fragment_assignment));
  std::vector<float> padded(map.fragment(0).padded_values());
  for (const core::TensorPlace& place : map.fragment(0).tensors) {
    std::ranges::copy(parameters[place.tensor], padded.begin() + place.first_unit * core::kUnitValues);
  }
  const std::vector<std::span<const float>> fragments = {padded};
  ASSIGN_OR_RETURN(const formats::ExportForm form, formats::MakeExportForm(config, "float32", /*assets=*/""));
  return formats::WriteExport(out, form, map, fragments, std::vector<core::Version>{config.steps});
}

absl::Status Run(const std::string& run_yaml, const std::string& data, const std::string& out,
                 const std::vector<core::SiteId>& sites) {
  ASSIGN_OR_RETURN(const core::RunConfig config, formats::ReadRunYaml(run_yaml));
  ASSIGN_OR_RETURN(const auto corpus, worker::Corpus::Open(data, {config.llama.vocab_size, config.data.token_bytes},
                                                           config.sequence_length(), config.eval.held_out));
  const core::Manifest manifest = core::LlamaManifest(config.llama);
  worker::TensorValues parameters(manifest);
  worker::InitializeLlama(config.llama, config.seed, parameters);
  worker::LlamaModel model(config.llama, config.inner.batch_size, config.sequence_length(),
                           worker::LlamaModel::Use::kTraining);
  std::vector<worker::SiteBatches> batches;
  std::vector<worker::TensorValues> gradients;
  for (const core::SiteId& site : sites) {
    batches.emplace_back(corpus, config.seed, site, config.inner.batch_size);
    gradients.emplace_back(manifest);
    RETURN_IF_ERROR(batches.back().SetSites(sites));
  }
  for (core::Step t = 1; t <= config.steps; ++t) {
    for (size_t m = 0; m < sites.size(); ++m) {
      const worker::Batch batch = batches[m].BatchAt(t);
      gradients[m].Clear();
      model.Forward(parameters.View(), batch);
      model.Backward(parameters.View(), batch, gradients[m].MutableView());
    }
    Descend(config.inner.lr, gradients, parameters);
  }
  return Export(config, parameters, out);
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "averaged_llama RUN_YAML DATA OUT SITE…\n");
    return 2;
  }
  const absl::Status status = causeway::Run(argv[1], argv[2], argv[3], {argv + 4, argv + argc});
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
