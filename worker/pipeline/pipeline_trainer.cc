#include "worker/pipeline/pipeline_trainer.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/random.h"
#include "formats/posix_file.h"
#include "worker/train/trainer_file.h"

namespace causeway::worker {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;

core::Manifest Subset(const core::Manifest& manifest, const std::vector<int>& tensors) {
  core::Manifest subset;
  for (const int tensor : tensors) subset.push_back(manifest[static_cast<size_t>(tensor)]);
  return subset;
}

// As the whole model's, with what is not held empty.
MutableTensors Spread(size_t size, const std::vector<int>& held, TensorValues& values) {
  MutableTensors all(size);
  for (size_t i = 0; i < held.size(); ++i) all[static_cast<size_t>(held[i])] = values[static_cast<int>(i)];
  return all;
}

// Every rank's digest of the file is that of rank 0.
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
                                                               TrainerFiles files, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, formats::ReadFile(path, kMaxFileBytes));
  ASSIGN_OR_RETURN(plan::PipelineFile parsed, plan::ParsePipelineFile(text, path));
  if (parsed.shards) {
    return absl::InvalidArgumentError(absl::StrCat("--pipeline: ", path, ": expected width N copies, got shards"));
  }
  ASSIGN_OR_RETURN(const plan::PipelineFile file, FitPipeline(std::move(parsed), path, config, files.ranks.world()));
  ASSIGN_OR_RETURN(const PipelinePrograms programs, CompilePipeline(file.schedule));
  if (files.ranks.world() > 1) {
    RETURN_IF_ERROR(CheckSameFile(*files.ranks.values, text, path, TimeoutOf(files.ranks.timeout_s)));
  }
  files.ranks.devices = file.schedule.devices;
  RETURN_IF_ERROR(CheckRows(config, site, files.ranks.data_world()));
  ASSIGN_OR_RETURN(LlamaData data, LlamaData::Open(config, site, files));
  std::unique_ptr<PipelineTrainer> trainer(
      new PipelineTrainer(config, files, file, PlacesOf(file, config.llama), std::move(data)));
  RETURN_IF_ERROR(trainer->data_.Initialize(trainer->held_manifest_, trainer->parameters_));
  RETURN_IF_ERROR(trainer->Open(programs, files.trace_path));
  return trainer;
}

PipelineTrainer::PipelineTrainer(const core::RunConfig& config, const TrainerFiles& files,
                                 const plan::PipelineFile& file, PipelinePlaces places, LlamaData data)
    : file_(file),
      ranks_(files.ranks),
      data_(std::move(data)),
      places_(std::move(places)),
      held_manifest_(Subset(places_.manifest, held())),
      parameters_(held_manifest_),
      gradients_(held_manifest_),
      tied_head_(std::ranges::find(places_.head_devices, device()) == places_.head_devices.end()
                     ? 0
                     : static_cast<size_t>(places_.manifest[0].NumValues())),
      tensors_(Spread(places_.manifest.size(), held(), parameters_)),
      store_(tensors_, &bus()),
      parallel_(files.ranks),
      optimizer_(config, held_manifest_, parameters_, bus(), files.calibration_path),
      stages_(config.llama, file_, device(), {data_.rows() / file_.schedule.micro_batches, config.sequence_length()},
              Tensors(tensors_.begin(), tensors_.end()), GradientViews(),
              [this](const plan::Operation& operation) { Synchronize(operation); }) {}

MutableTensors PipelineTrainer::GradientViews() {
  MutableTensors views = Spread(places_.manifest.size(), held(), gradients_);
  views.emplace_back(tied_head_);  // used where the embedding is the head
  return views;
}

absl::Status PipelineTrainer::Open(const PipelinePrograms& programs, const std::string& trace_path) {
  programs_ = programs;
  ASSIGN_OR_RETURN(links_,
                   PipelineLinks::Open(*ranks_.values, programs_, file_.width, stages_.message_values(), timeout()));
  ASSIGN_OR_RETURN(exchange_, GradientExchange::Open(*ranks_.values, file_, places_, GradientViews(), timeout()));
  ASSIGN_OR_RETURN(trace_, PipelineTrace::Open(trace_path, *ranks_.values, programs_, file_.width, timeout()));
  const plan::PipelineSchedule& schedule = file_.schedule;
  spdlog::info("pipeline: device {} of {}, {} of {} tensors, {} micro-batches, {} receive buffers for a sender",
               device(), schedule.devices, held().size(), places_.manifest.size(), schedule.micro_batches,
               programs_.slots);
  return absl::OkStatus();
}

void PipelineTrainer::Synchronize(const plan::Operation& operation) {
  if (operation.kind == plan::OperationKind::kReduce) exchange_->Reduce(operation.stage);
}

std::vector<int> PipelineTrainer::holders(int tensor) const {
  std::vector<int> ranks;
  for (const int device : places_.devices[static_cast<size_t>(tensor)]) {
    for (int j = 0; j < file_.width; ++j) ranks.push_back(device * file_.width + j);
  }
  return ranks;
}

absl::StatusOr<double> PipelineTrainer::SumOfSquares(core::Step t) {
  const size_t tensors = places_.manifest.size();
  const std::vector<double> here = optimizer_.SquaresOf(gradients_);
  std::vector<double> mine(tensors), all(tensors * static_cast<size_t>(ranks_.world()));
  for (size_t i = 0; i < here.size(); ++i) mine[static_cast<size_t>(held()[i])] = here[i];
  const Collectives::Ticket ticket =
      ranks_.values->AllGather(BytesOf(std::span<const double>(mine)), BytesOf(std::span(all)));
  RETURN_IF_ERROR(RankFailure(ranks_.values->Await(ticket, timeout())));
  double sum = 0;
  for (size_t i = 0; i < tensors; ++i) {
    const double squares = all[static_cast<size_t>(OwnerOf(i)) * tensors + i];
    if (!std::isfinite(squares)) {
      if (!tensors_[i].empty()) RETURN_IF_ERROR(CheckFinite(places_.manifest[i], GradientViews()[i], t));
      return absl::DataLossError(absl::StrFormat("gradient of %s on %s is not finite in step %d",
                                                 places_.manifest[i].name, ranks_.values->NameOf(OwnerOf(i)), t));
    }
    sum += squares;
  }
  return sum;
}

absl::StatusOr<StepResult> PipelineTrainer::Step(core::Step t) {
  ASSIGN_OR_RETURN(const Batch batch, data_.BatchAt(t));
  gradients_.Clear();
  std::ranges::fill(tied_head_, 0.0f);
  stages_.BeginStep(batch, 1.0f / static_cast<float>(file_.width));
  exchange_->Begin();
  spans_.clear();
  if (trace_ != nullptr) RETURN_IF_ERROR(RankFailure(trace_->Begin()));
  RETURN_IF_ERROR(
      RankFailure(RunPipelineStep(programs_.devices[static_cast<size_t>(device())], *links_, stages_, spans_)));
  RETURN_IF_ERROR(RankFailure(exchange_->Finish()));
  if (trace_ != nullptr) RETURN_IF_ERROR(RankFailure(trace_->Write(t, spans_)));
  ASSIGN_OR_RETURN(const double squares, SumOfSquares(t));
  RankStep mine{
      .loss = stages_.loss() * file_.schedule.devices,  // the last stages' alone, of which the ranks' mean is taken
      .tokens = device() == 0 ? std::ssize(batch.tokens) : 0};
  for (const PipelineSpan& span : spans_) mine.compute_s += span.end_s - span.begin_s;
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, parallel_.Share(mine));
  RETURN_IF_ERROR(optimizer_.Step(t, gradients_, squares));
  const int64_t sent = links_->sent_bytes() + exchange_->sent_bytes();
  step_bytes_ = static_cast<double>(sent - std::exchange(sent_bytes_, sent));
  return ResultOf(steps);
}

core::RankProgress PipelineTrainer::rank_progress() const {
  core::RankProgress progress = parallel_.progress();
  progress.step_bytes += step_bytes_;
  return progress;
}

// θ and the optimizer's part of each tensor go from its first holder to rank 0.
absl::Status PipelineTrainer::GatherState() {
  std::vector<formats::TensorData> state;
  std::map<std::string, std::string> metadata;
  for (size_t i = 0; i < held().size(); ++i) {
    state.push_back({held_manifest_[i].name, held_manifest_[i].shape, parameters_[static_cast<int>(i)]});
  }
  RETURN_IF_ERROR(optimizer_.AppendState(state, metadata));
  const size_t kinds = state.size() / held().size();  // θ, and what the optimizer has of each tensor
  gathered_.clear();
  Collectives::Ticket ticket = 0;
  for (size_t kind = 0; kind < kinds; ++kind) {
    // Behind θ, tensor by tensor: "first_moment.NAME", "second_moment.NAME".
    const auto at = [&](size_t i) { return kind == 0 ? i : held().size() + i * (kinds - 1) + kind - 1; };
    const std::string& first = state[at(0)].name;
    const std::string prefix = first.substr(0, first.size() - held_manifest_[0].name.size());
    for (size_t tensor = 0, mine = 0; tensor < places_.manifest.size(); ++tensor) {
      const bool holds = mine < held().size() && held()[mine] == static_cast<int>(tensor);
      const core::TensorSpec& spec = places_.manifest[tensor];
      const int owner = OwnerOf(tensor);
      if (ranks_.rank() == 0) {
        gathered_.push_back(
            {prefix + spec.name, spec.shape, std::vector<float>(static_cast<size_t>(spec.NumValues()))});
        std::vector<float>& values = gathered_.back().values;
        if (owner == 0) {
          std::ranges::copy(state[at(mine)].values, values.begin());
        } else {
          ticket = ranks_.values->Receive(BytesOf(std::span(values)), owner);
        }
      } else if (owner == ranks_.rank()) {
        ticket = ranks_.values->Send(BytesOf(state[at(mine)].values), 0);
      }
      mine += holds ? 1 : 0;
    }
  }
  const absl::Status sent = ticket == 0 ? absl::OkStatus() : ranks_.values->Await(ticket, timeout());
  optimizer_.Saved();
  return RankFailure(sent);
}

absl::StatusOr<formats::FileDigest> PipelineTrainer::Save(const std::string& path) {
  std::vector<formats::TensorData> unused, tensors;
  std::map<std::string, std::string> metadata;
  RETURN_IF_ERROR(optimizer_.AppendState(unused, metadata));
  for (const Gathered& one : gathered_) tensors.push_back({one.name, one.shape, one.values});
  absl::StatusOr<formats::FileDigest> written = formats::WriteSafetensors(path, tensors, metadata);
  optimizer_.Saved();
  gathered_ = {};
  return written;
}

absl::Status PipelineTrainer::Load(const std::string& path) {
  return LoadTrainer(path, held_manifest_, parameters_, &optimizer_);
}

}  // namespace causeway::worker
