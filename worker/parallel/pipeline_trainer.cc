#include "worker/parallel/pipeline_trainer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/random.h"
#include "formats/text_file.h"
#include "worker/optimizer/trainer_file.h"
#include "worker/parallel/state_gather.h"

namespace causeway::worker {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;

// Checks that every rank's digest of the file equals that of rank 0.
absl::Status CheckSameFile(Collectives& ranks, const std::string& text, const std::string& path,
                           Collectives::Timeout timeout) {
  const uint64_t mine = core::HashCombine(text.size(), text);
  std::vector<uint64_t> all(static_cast<size_t>(ranks.world()));
  RETURN_IF_ERROR(
      ranks.Await(ranks.AllGather(BytesOf(std::span<const uint64_t>(&mine, 1)), BytesOf(std::span(all))), timeout));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::InvalidArgumentError(absl::StrCat("--pipeline: ", path,
                                                   ": expected the same file on all ranks, got another on ",
                                                   ranks.NameOf(static_cast<int>(rank))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> PipelineTrainer::Make(const core::RunConfig& config, const core::SiteId& site,
                                                               TrainerFiles files, const MakeStages& make_stages) {
  const std::string& path = files.pipeline_path;
  ASSIGN_OR_RETURN(const std::string text, formats::ReadTextFile(path, kMaxFileBytes));
  ASSIGN_OR_RETURN(plan::PipelineFile parsed, plan::ParsePipelineFile(text, path));
  ASSIGN_OR_RETURN(const plan::PipelineFile file, FitPipeline(std::move(parsed), path, config, files.ranks.world()));
  if (files.ranks.world() > 1) {
    RETURN_IF_ERROR(CheckSameFile(*files.ranks.values, text, path, TimeoutOf(files.ranks.timeout_s)));
  }
  files.ranks.devices = file.schedule.devices;
  RETURN_IF_ERROR(CheckRows(config, site, files.ranks.data_world()));
  ASSIGN_OR_RETURN(LlamaData data, LlamaData::Open(config, site, files));
  ASSIGN_OR_RETURN(std::unique_ptr<PipelinedLlama> model,
                   PipelinedLlama::Open(config, file, files.ranks, data.rows(), files.trace_path, make_stages));
  RETURN_IF_ERROR(data.Initialize(model->held_manifest(), model->parameters()));
  spdlog::info("pipeline: device {} of {}, {} of {} tensors, {} micro-batches, {} receive buffers for a sender",
               files.ranks.rank() / file.width, file.schedule.devices, model->held().size(),
               model->places().manifest.size(), file.schedule.micro_batches, model->slots());
  return std::unique_ptr<Trainer>(new PipelineTrainer(config, files, std::move(model), std::move(data)));
}

PipelineTrainer::PipelineTrainer(const core::RunConfig& config, const TrainerFiles& files,
                                 std::unique_ptr<PipelinedLlama> model, LlamaData data)
    : ranks_(files.ranks),
      data_(std::move(data)),
      model_(std::move(model)),
      store_(model_->tensors(), &bus()),
      parallel_(files.ranks),
      optimizer_(config, model_->held_manifest(), model_->parameters(), bus(), files.calibration_path) {}

std::vector<TensorPiece> PipelineTrainer::pieces(int tensor) const {
  std::vector<TensorPiece> pieces;
  for (const int rank : places().ranks[static_cast<size_t>(tensor)]) {
    pieces.push_back({rank, 0, manifest()[static_cast<size_t>(tensor)].NumValues()});
  }
  return pieces;
}

absl::StatusOr<double> PipelineTrainer::SumOfSquares(core::Step t) {
  const size_t tensors = places().manifest.size();
  const std::vector<double> here = optimizer_.SquaresOf(model_->gradients());
  std::vector<double> mine(tensors), all(tensors * static_cast<size_t>(ranks_.world()));
  for (size_t i = 0; i < here.size(); ++i) mine[static_cast<size_t>(held()[i])] = here[i];
  const Collectives::Ticket ticket =
      ranks_.values->AllGather(BytesOf(std::span<const double>(mine)), BytesOf(std::span(all)));
  RETURN_IF_ERROR(RankFailure(ranks_.values->Await(ticket, timeout())));
  double sum = 0;
  for (size_t i = 0; i < tensors; ++i) {
    const double squares = all[static_cast<size_t>(OwnerOf(i)) * tensors + i];
    if (!std::isfinite(squares)) {
      const auto mine_at = std::ranges::find(held(), static_cast<int>(i)) - held().begin();
      if (mine_at < std::ssize(held())) {
        RETURN_IF_ERROR(CheckFinite(places().manifest[i], model_->gradients()[static_cast<int>(mine_at)], t));
      }
      return absl::DataLossError(absl::StrFormat("gradient of %s on %s is not finite in step %d",
                                                 places().manifest[i].name, ranks_.values->NameOf(OwnerOf(i)), t));
    }
    sum += squares;
  }
  return sum;
}

absl::StatusOr<StepResult> PipelineTrainer::Step(core::Step t) {
  ASSIGN_OR_RETURN(const Batch batch, data_.BatchAt(t));
  RETURN_IF_ERROR(model_->Run(t, batch));
  ASSIGN_OR_RETURN(const double squares, SumOfSquares(t));
  const RankStep mine{.loss = model_->loss() * ranks_.devices,  // only from the last stages, averaged over the ranks
                      .compute_s = model_->compute_s(),
                      .tokens = ranks_.rank() < places().width ? std::ssize(batch.tokens) : 0};
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, parallel_.Share(mine));
  RETURN_IF_ERROR(optimizer_.Step(t, model_->gradients(), squares));
  const int64_t sent = model_->sent_bytes();
  step_bytes_ = static_cast<double>(sent - std::exchange(sent_bytes_, sent));
  return ResultOf(steps);
}

core::RankProgress PipelineTrainer::rank_progress() const {
  core::RankProgress progress = parallel_.progress();
  progress.step_bytes += step_bytes_;
  return progress;
}

absl::Status PipelineTrainer::GatherState() {
  ASSIGN_OR_RETURN(
      gathered_,
      GatherTensors(ranks_, manifest(), model_->held_manifest(), model_->parameters(), optimizer_, [this](int rank) {
        std::vector<StatePiece> pieces;
        for (const int tensor : places().held[static_cast<size_t>(rank)]) {
          const auto at = static_cast<size_t>(tensor);
          pieces.push_back({tensor, 0, manifest()[at].NumValues(), OwnerOf(at) == rank});
        }
        return pieces;
      }));
  return absl::OkStatus();
}

absl::StatusOr<formats::FileDigest> PipelineTrainer::Save(const std::string& path) {
  const std::vector<GatheredTensor> gathered = std::exchange(gathered_, {});
  return SaveGathered(path, gathered, optimizer_);
}

absl::Status PipelineTrainer::Load(const std::string& path) {
  return LoadTrainer(path, model_->held_manifest(), model_->parameters(), &optimizer_);
}

}  // namespace causeway::worker
