#include "worker/parallel/llama_data.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "formats/model_directory.h"
#include "worker/data/evaluation.h"
#include "worker/model/llama_model.h"

namespace causeway::worker {
namespace {

// "--data=texts: 3 files, a.txt to c.txt; skips 1 of .npy (x.npy)", of a folder.
std::string FolderText(const std::string& path, const formats::TokenFile& tokens) {
  const std::vector<std::string>& names = tokens.names();
  const auto name = [](const std::string& file) { return std::filesystem::path(file).filename().string(); };
  const std::string files =
      names.size() == 1 ? name(names[0])
                        : absl::StrCat(names.size(), " files, ", name(names.front()), " to ", name(names.back()));
  return absl::StrCat("--data=", path, ": ", files, tokens.skipped().empty() ? "" : "; ", tokens.skipped());
}

}  // namespace

absl::StatusOr<LlamaData> LlamaData::Open(const core::RunConfig& config, const core::SiteId& site,
                                          const TrainerFiles& files) {
  if (files.data_path.empty()) return absl::InvalidArgumentError("a llama model: expected --data=PATH, got none");
  const core::LlamaConfig& llama = config.llama;
  const formats::TokenFormat format{llama.vocab_size, config.data.token_bytes};
  const bool own = config.data.mode == core::DataMode::kOwn;
  const bool own_held_out = !files.held_out_path.empty();
  if (own_held_out && !own) {
    return absl::InvalidArgumentError(
        "--held_out: expected none, since in data.mode shared all sites evaluate on the tail of the run's data; got " +
        files.held_out_path);
  }
  const double tail = own_held_out ? 0 : config.eval.held_out;
  ASSIGN_OR_RETURN(std::shared_ptr<const Corpus> corpus, Corpus::Open(files.data_path, format, config.sequence_length(),
                                                                      tail, config.data.mode, files.held_out_path));
  const bool is_folder = corpus->tokens().names()[0] != files.data_path;
  if (is_folder && files.ranks.rank() == 0) spdlog::info("{}", FolderText(files.data_path, corpus->tokens()));
  std::shared_ptr<const Corpus> held_out = corpus;
  if (own_held_out) {
    ASSIGN_OR_RETURN(held_out, Corpus::OpenHeldOut(files.held_out_path, format, config.sequence_length()));
  }
  for (const auto* notes : {&corpus->tokens().notes(), own_held_out ? &held_out->tokens().notes() : nullptr}) {
    if (notes == nullptr || files.ranks.rank() != 0) continue;
    for (const std::string& note : *notes) spdlog::warn("{}", note);
  }
  return LlamaData(config, site, files, std::move(corpus), std::move(held_out));
}

LlamaData::LlamaData(const core::RunConfig& config, const core::SiteId& site, const TrainerFiles& files,
                     std::shared_ptr<const Corpus> corpus, std::shared_ptr<const Corpus> held_out)
    : config_(config),
      site_(site),
      corpus_(std::move(corpus)),
      held_out_(std::move(held_out)),
      rank_(files.ranks.data_rank()),
      world_(files.ranks.data_world()),
      batch_rows_(config.BatchRows(site, world_)),
      batches_(corpus_, config.seed, site, batch_rows_) {
  facts_.training = corpus_->tokens().Fingerprint();
  if (held_out_ != corpus_) facts_.held_out = held_out_->tokens().Fingerprint();
}

void LlamaData::SetSites(const std::vector<core::SiteId>& names) {
  if (config_.data.mode == core::DataMode::kShared) data_status_ = batches_.SetSites(names);
}

absl::StatusOr<Batch> LlamaData::BatchAt(core::Step t) const {
  RETURN_IF_ERROR(data_status_);
  return batches_.BatchAt(t, rank_, world_);
}

absl::Status LlamaData::Initialize(const core::Manifest& manifest, TensorValues& parameters) {
  const core::LlamaConfig& llama = config_.llama;
  if (llama.init_from.empty()) {
    InitializeLlama(llama, manifest, config_.seed, parameters);
    return absl::OkStatus();
  }
  if (formats::HasModel(llama.init_from)) {
    return formats::ReadModelDirectory(llama.init_from, manifest, parameters.MutableView(), core::LlamaManifest(llama));
  }
  std::error_code error;  // of a folder that may not be searched
  if (!std::filesystem::exists(llama.init_from + "/model.safetensors", error) && error) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.init_from: cannot read ", llama.init_from, ": ", error.message()));
  }
  initial_values_ = absl::FailedPreconditionError(
      absl::StrCat("model.init_from: expected model.safetensors or model.safetensors.index.json in ", llama.init_from,
                   " on the site that brings the initial parameters, got none on ", site_,
                   ": start a site that has the folder first, then this one again"));
  return absl::OkStatus();
}

std::unique_ptr<Evaluator> LlamaData::NewEvaluator() const {
  HeldOut windows = held_out();
  if (windows.corpus == nullptr) return nullptr;
  return std::make_unique<HostEvaluator>(config_.llama, std::move(windows), config_.inner.batch_size);
}

HeldOut LlamaData::held_out() const {
  if (held_out_->held_out().size() == 0) return {};
  return {held_out_, config_.eval.batches * config_.inner.batch_size};
}

}  // namespace causeway::worker
