#include "worker/library/external_site.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/run_config.h"
#include "worker/device/cuda/cuda_encode_backend.h"
#include "worker/device/device_encoder.h"
#include "worker/library/json_object.h"

namespace causeway::worker {
namespace {

// Encodes the contributions of an external site whose θ lies on a CUDA device there, with
// worker/device/device_encoder.h.

#ifdef CAUSEWAY_WITH_CUDA
// To be called before the site joins. UNAVAILABLE: the library was built without CUDA, or there is no such device.
// INVALID_ARGUMENT: θ is not float32.
absl::Status EncodeOnCuda(int device, const core::RunConfig& config, const ExternalModel& model, ExternalStore* store) {
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    if (!model.tensors[i].synced || model.tensors[i].dtype == core::DType::kFloat32) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", model.manifest[i].name, ": expected float32, got ",
                                                   core::DTypeName(model.tensors[i].dtype)));
  }
  struct Encoding {
    std::unique_ptr<CudaEncodeBackend> backend;
    std::unique_ptr<DeviceEncoder> encoder;  // after it
  };
  auto encoding = std::make_shared<Encoding>();
  ASSIGN_OR_RETURN(encoding->backend, CudaEncodeBackend::Make(device));
  encoding->encoder = std::make_unique<DeviceEncoder>(
      encoding->backend.get(),
      [store](const replica::UnitRanges& ranges, float* to, offload::Device::Event taken) {
        return store->KeepTheta(ranges, to, taken);
      },
      DeviceEncoder::Options{.way = {},
                             .memory = config.sync.device_memory,
                             .parameters = core::NumParameters(model.manifest),
                             .residuals = config.codec.feedback_up > 0});
  CudaEncodeBackend* const backend = encoding->backend.get();
  ExternalStore::DeviceCalls calls{
      .copy = [backend](
                  void* stream, float* to, const void* theta, int64_t count,
                  int event) { return backend->CopyOn(stream, to, static_cast<const float*>(theta), count, event); },
      .order_after = [backend](void* event) { return backend->OrderAfter(event); },
      .await = CudaEncodeBackend::Await};
  replica::ThetaEncoder* const encoder = encoding->encoder.get();
  store->EncodeOnDevice(std::shared_ptr<replica::ThetaEncoder>(std::move(encoding), encoder), std::move(calls));
  return absl::OkStatus();
}
#else
absl::Status EncodeOnCuda(int, const core::RunConfig&, const ExternalModel&, ExternalStore*) {
  return absl::UnavailableError("this library was built without CUDA; expected the cuda preset");
}
#endif

using nlohmann::json;
using Turn = StepThread::Turn;

constexpr double kRateSeconds = 1;                              // window over which tokens/s is measured
constexpr auto kIdleTimeout = std::chrono::milliseconds(150);   // with the next one, a site's end takes half a second
constexpr auto kHeardTimeout = std::chrono::milliseconds(150);  // for the coordinator to receive the leave

json NullUnlessFinite(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json FragmentsJson(const core::Progress& progress) {
  json fragments = json::array();
  for (const auto& [id, fragment] : progress.fragments) {
    fragments.push_back({{"id", id}, {"slack_s", fragment.slack_s}, {"delay", fragment.delay}});
  }
  return fragments;
}

json DigestsJson(const core::Progress& progress) {
  json digests = json::object();
  for (const auto& [id, anchor] : progress.digests) {
    digests[absl::StrCat(id)] = {{"version", anchor.version}, {"digest", core::DigestText(anchor.digest)}};
  }
  return digests;
}

}  // namespace

ExternalSite::ExternalSite(const ExternalRun& run, ExternalModel model)
    : config_(run.config()),
      name_(run.site()),
      model_(std::move(model)),
      step_thread_([this] { return store_.has_work(); }),
      store_(model_.tensors, [this] { step_thread_.Look(); }),
      link_(run.NewLink()),
      site_(config_, name_, model_.manifest, &store_, link_.get()),
      files_(run.shards().front(), model_.files) {
  site_.SetData(model_.data);
  site_.watch().SetTimeout(run.rank_timeout_s());
}

absl::StatusOr<Turn> ExternalSite::Run(const std::string& operation, Timeout timeout,
                                       std::function<absl::Status()> body) {
  if (left_) return absl::FailedPreconditionError(absl::StrCat("expected no call after site_leave, got ", operation));
  return step_thread_.Run(operation, timeout, std::move(body));
}

// ---- Before the first step ----

absl::Status ExternalSite::EncodeOnDevice(int cuda_device) {
  if (joined_) return absl::FailedPreconditionError("site_encode_on: expected before site_join, got after it");
  const absl::Status encodes = EncodeOnCuda(cuda_device, config_, model_, &store_);
  return absl::IsUnavailable(encodes) ? absl::InvalidArgumentError(encodes.message()) : encodes;
}

absl::Status ExternalSite::Restore(std::span<const SiteStateParts::Part> parts) {
  if (joined_ || theta_digest_) {
    return absl::FailedPreconditionError(
        absl::StrCat("site_restore: expected once, before site_join, got ", joined_ ? "after it" : "twice"));
  }
  ASSIGN_OR_RETURN(RestoredParts restored, FromParts(parts));
  const CheckpointIdentity& identity = restored.checkpoint.identity;
  if (identity.run != config_.run_id || identity.site != name_) {
    return absl::InvalidArgumentError(absl::StrCat("state: expected one of site ", name_, " in run ", config_.run_id,
                                                   ", got one of site ", identity.site, " in run ", identity.run));
  }
  link_->Resume(identity.session, {identity.lineage, identity.proofs});
  theta_digest_ = restored.theta_digest;
  step_ = restored.checkpoint.site.facts.step;
  site_.Restore(std::move(restored.checkpoint.site));
  return absl::OkStatus();
}

absl::Status ExternalSite::CompareTheta() {
  if (!theta_digest_) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint64_t digest, store_.Digest());
  if (digest == *theta_digest_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("state: expected the parameters of step ", step_, ", with digest ",
                                                 core::DigestText(*theta_digest_), ", got others, with digest ",
                                                 core::DigestText(digest)));
}

absl::StatusOr<Turn> ExternalSite::Join(Timeout timeout, core::Step& step) {
  if (in_run_) return absl::FailedPreconditionError("site_join: expected once, got it again after the site has joined");
  joined_ = true;
  ASSIGN_OR_RETURN(const Turn turn, Run("site_join", timeout, [this]() -> absl::Status {
                     RETURN_IF_ERROR(CompareTheta());
                     theta_digest_.reset();
                     ASSIGN_OR_RETURN(step_, site_.Join());
                     report_.step = step_;
                     return absl::OkStatus();
                   }));
  if (turn == Turn::kDone) {
    in_run_ = true;
    files_.Begin();
    step = step_;
    stepped_at_ = rated_.at = core::SystemClock().Now();
  }
  return turn;
}

// ---- Steps ----

void ExternalSite::Count(core::Step step, const StepReport& report) {
  const core::Clock& clock = core::SystemClock();
  report_.step = step;
  report_.tokens += report.tokens;
  report_.loss = report.loss;
  report_.compute_s += std::isnan(report.step_s) ? clock.SecondsSince(stepped_at_) : report.step_s;
  if (const double since_s = clock.SecondsSince(rated_.at); since_s >= kRateSeconds) {
    report_.tokens_per_s = static_cast<double>(report_.tokens - rated_.tokens) / since_s;
    rated_.at = clock.Now();
    rated_.tokens = report_.tokens;
  }
  site_.ReportWith([this](SiteReport& whole) { whole.Trained(report_); });
}

absl::StatusOr<Turn> ExternalSite::AfterStep(core::Step step, const StepReport& report, Timeout timeout,
                                             core::Step& next) {
  if (!in_run_) return absl::FailedPreconditionError("site_after_step: expected it after site_join, got it before");
  ASSIGN_OR_RETURN(const Turn turn,
                   Run(absl::StrCat("site_after_step of step ", step), timeout, [this, step, report]() -> absl::Status {
                     Count(step, report);
                     ASSIGN_OR_RETURN(step_, site_.AfterStep(step));
                     if (step_ != step) report_.compute_s = 0;  // a new place
                     return absl::OkStatus();
                   }));
  if (turn == Turn::kDone) {
    next = step_;
    stepped_at_ = core::SystemClock().Now();
  }
  return turn;
}

absl::StatusOr<Turn> ExternalSite::ReadAnchor(Timeout timeout) {
  return Run("site_read_anchor", timeout, [this]() -> absl::Status {
    AnchorCopy copy;
    site_.PostAnchorCopy([&](AnchorCopy taken) { copy = std::move(taken); });
    site_.FinishTasks();
    anchor_versions_ = copy.versions;
    return store_.HandOutAnchor(copy.tensors);
  });
}

absl::Status ExternalSite::ReportEval(double loss) {
  if (anchor_versions_.empty()) {
    return absl::FailedPreconditionError("site_report_eval: expected a call of site_read_anchor before it, got none");
  }
  if (!std::isfinite(loss)) {
    return absl::InvalidArgumentError(absl::StrCat("site_report_eval: expected a finite loss, got ", loss));
  }
  site_.ReportWith([&](SiteReport& report) { report.Evaluated(loss, anchor_versions_); });
  return absl::OkStatus();
}

absl::StatusOr<Turn> ExternalSite::Capture(Timeout timeout, SiteStateParts& state) {
  ASSIGN_OR_RETURN(const Turn turn, Run("site_capture", timeout, [this]() -> absl::Status {
                     ASSIGN_OR_RETURN(const uint64_t digest, store_.Digest());
                     const bool saved = site_.Checkpoint([&](const SiteCheckpoint& checkpoint) {
                       state_ = ToParts({config_.run_id, name_, link_->session(), checkpoint.facts.lineage,
                                         link_->remembered().proofs},
                                        checkpoint, digest);
                     });
                     if (saved) return absl::OkStatus();
                     return absl::FailedPreconditionError(
                         "site_capture: expected a site between two steps of its place in the run, got one without a "
                         "place");
                   }));
  if (turn == Turn::kDone) state = std::exchange(state_, {});
  return turn;
}

// ---- The end ----

absl::StatusOr<Turn> ExternalSite::Complete(Timeout timeout) {
  return Run("site_complete", timeout, [this] {
    while (true) {
      const absl::Status completed = site_.CompleteRounds();
      if (!absl::IsAborted(completed)) return completed;
      const absl::StatusOr<core::Step> joined = site_.Join();  // dropped while it waited
      if (!joined.ok()) return joined.status();
    }
  });
}

absl::StatusOr<Turn> ExternalSite::Drain(Timeout timeout) {
  return Run("site_drain", timeout, [this] { return site_.DrainUploads(Site::kForEver); });
}

absl::StatusOr<Turn> ExternalSite::Leave(bool finished, const std::string& reason, Timeout timeout) {
  if (!left_) {
    Stop();
    store_.End(absl::CancelledError("the site leaves"));
    if (!step_thread_.AwaitIdle(timeout)) return Turn::kAgain;
    left_ = true;
  }
  return step_thread_.Run("site_leave", timeout, [this, finished, reason] {
    site_.Leave(finished, reason);
    return absl::OkStatus();
  });
}

bool ExternalSite::End() {
  Stop();
  store_.End(absl::CancelledError("the site is closed"));
  if (left_) link_->Hurry();
  if (!step_thread_.AwaitIdle(kIdleTimeout) || store_.has_taken_work()) return false;
  if (std::exchange(left_, true)) return true;
  const absl::StatusOr<Turn> told = step_thread_.Run("site_close", kHeardTimeout, [this] {
    site_.Leave(/*finished=*/false, "the program ends");
    return absl::OkStatus();
  });
  link_->Hurry();
  return step_thread_.AwaitIdle(kIdleTimeout);
}

// ---- Others ----

std::optional<WorkPiece> ExternalSite::TakeWork() {
  std::optional<WorkPiece> piece = store_.Take();
  if (piece) piece->tensor = model_.given_as[piece->tensor];
  return piece;
}

absl::Status ExternalSite::Done(int64_t id, bool failed) {
  return store_.Done(
      id, failed ? absl::InternalError(absl::StrCat("the program could not do work ", id)) : absl::OkStatus());
}

absl::Status ExternalSite::CarryOut(int64_t id, void* theta) { return store_.CarryOut(id, theta); }

void ExternalSite::Stop() {
  site_.RequestStop();
  step_thread_.Look();
}

void ExternalSite::Waits(const std::string& what) { site_.watch().Waits(what); }

absl::Status ExternalSite::ReportRanks(const std::string& text) {
  ASSIGN_OR_RETURN(JsonObject object, JsonObject::Parse(text, "ranks"));
  core::RankProgress ranks;
  RETURN_IF_ERROR(object.Read("ranks", ranks.ranks));
  RETURN_IF_ERROR(object.Read("hosts", ranks.hosts));
  RETURN_IF_ERROR(object.Read("slowest", ranks.slowest));
  RETURN_IF_ERROR(object.Read("slowest_step_s", ranks.slowest_step_s));
  RETURN_IF_ERROR(object.Read("standing_still", ranks.standing_still));
  RETURN_IF_ERROR(object.Finish());
  site_.watch().HasRanks(ranks);
  return absl::OkStatus();
}

std::string ExternalSite::ProgressJson() {
  const core::Progress progress = site_.GetProgress();
  const core::RunConfig& settings = site_.settings().newest();
  const bool tokens_are_done = settings.tokens > 0 && progress.run_tokens >= settings.tokens;
  const ExchangeTotals totals = site_.GetTotals();
  return json{{"step", progress.step},
              {"tokens", progress.tokens},
              {"loss", NullUnlessFinite(progress.loss)},
              {"tokens_per_s", progress.tokens_per_s},
              {"compute_s", progress.compute_s},
              {"stall_s", progress.stall_s},
              {"slack_s", progress.slack_s},
              {"wall_s", progress.wall_s},
              {"contributions_sent", progress.contributions_sent},
              {"contributions_merged", progress.contributions_merged},
              {"contributions_skipped", progress.contributions_skipped},
              {"up_bytes", totals.up_bytes},
              {"down_bytes", totals.down_bytes},
              {"codec_up", core::CodecName(totals.codec_up)},
              {"codec_down", core::CodecName(totals.codec_down)},
              {"merged_weight", totals.merged_weight},
              {"residual_norm", NullUnlessFinite(progress.residual_norm)},
              {"up_bytes_per_s", progress.link.up_bytes_per_s},
              {"down_bytes_per_s", progress.link.down_bytes_per_s},
              {"round_trip_s", progress.link.round_trip_s},
              {"rounds", site_.CompletedRounds()},
              {"run_steps", tokens_are_done ? progress.step : settings.steps},
              {"run_tokens", progress.run_tokens},
              {"stays", site_.stays()},
              {"sites", site_.sites()},
              {"stopping", site_.stop_requested()},
              {"digests", DigestsJson(progress)},
              {"fragments", FragmentsJson(progress)}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace causeway::worker
