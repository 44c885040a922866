// The functions of causeway.h: checks of what came, and the words for what went wrong.
//
//   entry point ─► Enter: process, thread, broken invariants ─► ExternalRun, ExternalSite ─► status and last error
#include "worker/library/causeway.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "worker/library/entry_point.h"
#include "worker/library/external_run.h"
#include "worker/library/external_site.h"
#include "worker/library/fork_guard.h"
#include "worker/library/log_queue.h"
#include "worker/library/work_piece.h"

namespace causeway::worker {
namespace {

absl::StatusOr<core::DType> ReadDType(uint32_t dtype) {
  if (dtype <= CAUSEWAY_FLOAT16) return static_cast<core::DType>(dtype);
  return absl::InvalidArgumentError(absl::StrCat("dtype: expected 0 to 2, got ", dtype));
}

absl::Status Move(const causeway_work* work, uint32_t dtype, void* theta) {
  RETURN_IF_ERROR(CheckSize(work, "work"));
  ASSIGN_OR_RETURN(const core::DType type, ReadDType(dtype));
  if (work->kind < CAUSEWAY_READ || work->kind > CAUSEWAY_ADD) {
    return absl::InvalidArgumentError(absl::StrCat("work.kind: expected 1 to 4, got ", work->kind));
  }
  if (work->count < 0) return absl::InvalidArgumentError(absl::StrCat("work.count: expected ≥ 0, got ", work->count));
  if (work->count > 0 && (theta == nullptr || work->values == nullptr)) return Missing("theta, work.values");
  MoveTheta(static_cast<WorkPiece::Kind>(work->kind), work->factor, type,
            {work->values, static_cast<size_t>(work->count)}, theta);
  return absl::OkStatus();
}

absl::Status Digest(const causeway_block* block, uint32_t dtype, const void* theta, uint64_t* digest) {
  RETURN_IF_ERROR(CheckSize(block, "block"));
  ASSIGN_OR_RETURN(const core::DType type, ReadDType(dtype));
  if (block->tensor == nullptr) return Missing("block.tensor");
  if (digest == nullptr) return Missing("digest");
  if (theta == nullptr && block->rows * block->columns > 0) return Missing("theta");
  *digest = DigestTheta(
      core::ThetaSeed(block->tensor), type,
      {.first = block->first, .rows = block->rows, .columns = block->columns, .stride = block->stride}, theta);
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway::worker

using namespace causeway;
using namespace causeway::worker;

uint64_t causeway_digest(const void* data, size_t bytes) { return core::Xxh3(data, bytes); }

int causeway_move(const causeway_work* work, uint32_t dtype, void* theta) {
  return Enter([&] { return Move(work, dtype, theta); });
}

int causeway_theta_digest(const causeway_block* block, uint32_t dtype, const void* theta, uint64_t* digest) {
  return Enter([&] { return Digest(block, dtype, theta, digest); });
}

struct causeway_run {
  std::unique_ptr<causeway::worker::ExternalRun> run;
  bool open = false;
  int sites = 0;
};

struct causeway_site {
  causeway_run* run = nullptr;
  const pid_t process = getpid();
  const std::thread::id thread = std::this_thread::get_id();
  const int64_t broken_before;  // invariants, when it was opened
  std::unique_ptr<causeway::worker::ExternalSite> site;
};

struct causeway_state {
  causeway::worker::SiteStateParts parts;
};

namespace causeway::worker {
namespace {

using Turn = StepThread::Turn;

absl::Status CheckUsable(const causeway_site* site) {
  if (site == nullptr) return Missing("site");
  if (site->process != getpid()) {
    return absl::FailedPreconditionError("forked after the site was opened: this process does not own it");
  }
  if (BrokenInvariants() == site->broken_before) return absl::OkStatus();
  return absl::InternalError("internal error: the site is over; the log says where");
}

absl::Status CheckOwned(const causeway_site* site) {
  RETURN_IF_ERROR(CheckUsable(site));
  if (site->thread == std::this_thread::get_id()) return absl::OkStatus();
  return absl::FailedPreconditionError("expected a call on the thread that opened the site, got one on another");
}

// An entry point about a site, on the thread that opened it.
template <typename Body>
int EnterSite(causeway_site* site, Body body) {
  return Enter([&]() -> decltype(body(*site->site)) {
    RETURN_IF_ERROR(CheckOwned(site));
    return body(*site->site);
  });
}

std::chrono::milliseconds Wait(int timeout_ms) { return std::chrono::milliseconds(std::max(0, timeout_ms)); }

// ---- Runs and sites ----

absl::Status OpenRun(const char* options, int timeout_ms, causeway_run** run) {
  if (run == nullptr) return Missing("run");
  LogQueue::Get();
  core::ThrowFailedChecks(OnBroken);
  if (*run == nullptr) {
    if (options == nullptr) return Missing("options");
    ASSIGN_OR_RETURN(std::unique_ptr<ExternalRun> opened, ExternalRun::Open(options));
    *run = new causeway_run{.run = std::move(opened)};
  }
  const absl::Status answered = (*run)->run->Await(Wait(timeout_ms));
  if (absl::IsDeadlineExceeded(answered)) return answered;
  if (!answered.ok()) {
    delete std::exchange(*run, nullptr);
    return answered;
  }
  if (std::exchange((*run)->open, true)) return absl::OkStatus();
  std::vector<transport::Address> addresses;
  for (const transport::LinkOptions& shard : (*run)->run->shards()) {
    addresses.push_back(shard.channel.proxy ? shard.channel.proxy->address : shard.coordinator);
  }
  CloseInForkedChildren(addresses);
  return absl::OkStatus();
}

absl::Status OpenSite(causeway_run* run, const char* model, causeway_site** site) {
  if (run == nullptr) return Missing("run");
  if (model == nullptr) return Missing("model");
  if (site == nullptr) return Missing("site");
  if (!run->open) return absl::FailedPreconditionError("expected a run that is open, got one that still connects");
  if (run->sites > 0) return absl::FailedPreconditionError("expected one site at a time, got a second");
  ASSIGN_OR_RETURN(ExternalModel parsed, ParseExternalModel(model, run->run->config()));
  auto opened = std::unique_ptr<causeway_site>(new causeway_site{.run = run, .broken_before = BrokenInvariants()});
  opened->site = std::make_unique<ExternalSite>(*run->run, std::move(parsed));
  ++run->sites;
  *site = opened.release();
  return absl::OkStatus();
}

absl::Status CloseSite(causeway_site* site) {
  if (site == nullptr || site->process != getpid()) return absl::OkStatus();  // it is the parent's
  if (site->thread != std::this_thread::get_id()) return CheckOwned(site);
  --site->run->sites;
  const bool intact = BrokenInvariants() == site->broken_before;
  if (site->site->End() && intact) {
    delete site;
    return absl::OkStatus();
  }
  if (!intact) return absl::OkStatus();  // its memory stays: what it would be freed by is not known to work
  return absl::FailedPreconditionError(
      "site_close: expected all work that was taken to be done, got some that is not; its memory stays");
}

absl::Status FillIn(const SiteStateParts& from, causeway_buffer* parts, int* count) {
  if (count == nullptr) return Missing("count");
  const int available = static_cast<int>(from.parts.size());
  if (parts == nullptr) {
    *count = available;
    return absl::OkStatus();
  }
  if (*count != available) {
    return absl::InvalidArgumentError(absl::StrCat("count: expected ", available, ", got ", *count));
  }
  for (int i = 0; i < available; ++i) {
    RETURN_IF_ERROR(CheckSize(&parts[i], "parts"));
    const auto& [name, bytes] = from.parts[i];
    parts[i].name = name.c_str();
    parts[i].data = bytes.data();
    parts[i].bytes = bytes.size();
  }
  return absl::OkStatus();
}

absl::Status RestoreSite(ExternalSite& site, const causeway_buffer* parts, int count) {
  if (parts == nullptr) return Missing("parts");
  std::vector<SiteStateParts::Part> given;
  for (int i = 0; i < count; ++i) {
    RETURN_IF_ERROR(CheckSize(&parts[i], "parts"));
    if (parts[i].name == nullptr || (parts[i].data == nullptr && parts[i].bytes > 0)) return Missing("parts");
    given.emplace_back(parts[i].name, std::span(static_cast<const std::byte*>(parts[i].data), parts[i].bytes));
  }
  return site.Restore(given);
}

absl::Status TakeWork(ExternalSite& site, causeway_work* work) {
  RETURN_IF_ERROR(CheckSize(work, "work"));
  const std::optional<WorkPiece> piece = site.TakeWork();
  if (!piece) return absl::DeadlineExceededError("there is no work now");
  *work = {.struct_size = sizeof(causeway_work),
           .kind = static_cast<uint32_t>(piece->kind),
           .id = piece->id,
           .tensor = piece->tensor,
           .flags = (piece->before_change ? uint32_t{CAUSEWAY_BEFORE_CHANGE} : 0u) |
                    (piece->anchor ? uint32_t{CAUSEWAY_ANCHOR} : 0u),
           .first = piece->first,
           .count = piece->count,
           .values = piece->digest != nullptr ? reinterpret_cast<float*>(piece->digest) : piece->values.data(),
           .factor = piece->factor,
           .device_values = piece->on_device};
  return absl::OkStatus();
}

absl::Status WriteJson(const std::string& text, char* json, size_t size) {
  if (json == nullptr) return Missing("json");
  const size_t copied = std::min(text.size(), size > 0 ? size - 1 : 0);
  std::memcpy(json, text.data(), copied);
  if (size > 0) json[copied] = '\0';
  if (copied == text.size() && size > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the buffer needs ", text.size() + 1, " bytes, got ", size));
}

int LevelOf(spdlog::level::level_enum level) {
  return std::clamp(static_cast<int>(level) - static_cast<int>(spdlog::level::debug), 0, 3);
}

absl::Status TakeLine(causeway_log_line* line) {
  RETURN_IF_ERROR(CheckSize(line, "line"));
  const std::optional<LogLine> taken = LogQueue::Get().Take();
  if (!taken) return absl::DeadlineExceededError("there is no line");
  line->level = LevelOf(taken->level);
  line->unix_ms = taken->unix_ms;
  line->dropped = taken->dropped;
  const size_t copied = std::min(taken->text.size(), sizeof line->text - 1);
  std::memcpy(line->text, taken->text.data(), copied);
  line->text[copied] = '\0';
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway::worker

// ---- The library ----

uint32_t causeway_abi(void) { return CAUSEWAY_ABI; }

const char* causeway_version(void) { return CAUSEWAY_VERSION; }

int causeway_error(causeway_error_info* info) {
  if (info == nullptr || info->struct_size != sizeof(causeway_error_info)) return CAUSEWAY_BAD_INPUT;
  const LastError& last = GetLastError();
  info->code = last.code;
  info->message = last.message.c_str();
  info->expected = last.expected.c_str();
  info->got = last.got.c_str();
  info->tensor = last.tensor.c_str();
  info->index = last.index;
  return CAUSEWAY_OK;
}

int causeway_log_take(causeway_log_line* line) {
  return Enter([&] { return TakeLine(line); });
}

// ---- A run ----

int causeway_run_open(const char* options, int timeout_ms, causeway_run** run) {
  return Enter([&] { return OpenRun(options, timeout_ms, run); });
}

int causeway_run_json(const causeway_run* run, const char** json) {
  return Enter([&] {
    if (run == nullptr) return Missing("run");
    if (json == nullptr) return Missing("json");
    if (!run->open) return absl::FailedPreconditionError("expected a run that is open, got one that still connects");
    *json = run->run->json().c_str();
    return absl::OkStatus();
  });
}

int causeway_run_close(causeway_run* run) {
  return Enter([&] {
    if (run != nullptr && run->sites > 0) {
      return absl::FailedPreconditionError("run_close: expected its site to be closed, got one that is open");
    }
    delete run;
    return absl::OkStatus();
  });
}

// ---- A site ----

int causeway_site_open(causeway_run* run, const char* model, causeway_site** site) {
  return Enter([&] { return OpenSite(run, model, site); });
}

int causeway_site_restore(causeway_site* site, const causeway_buffer* parts, int count) {
  return EnterSite(site, [&](ExternalSite& own) { return RestoreSite(own, parts, count); });
}

int causeway_site_join(causeway_site* site, int timeout_ms, int64_t* step) {
  if (step == nullptr) return Enter([] { return Missing("step"); });
  return EnterSite(site, [&](ExternalSite& own) { return own.Join(Wait(timeout_ms), *step); });
}

int causeway_site_after_step(causeway_site* site, int64_t step, const causeway_report* report, int timeout_ms,
                             int64_t* next_step) {
  return EnterSite(site, [&](ExternalSite& own) -> absl::StatusOr<Turn> {
    if (next_step == nullptr) return Missing("next_step");
    ExternalSite::StepReport did{.tokens = 0, .loss = std::nan(""), .step_s = std::nan("")};
    if (report != nullptr) {
      RETURN_IF_ERROR(CheckSize(report, "report"));
      did = {.tokens = report->tokens, .loss = report->loss, .step_s = report->step_s};
    }
    return own.AfterStep(step, did, Wait(timeout_ms), *next_step);
  });
}

int causeway_site_take_work(causeway_site* site, causeway_work* work) {
  return EnterSite(site, [&](ExternalSite& own) { return TakeWork(own, work); });
}

int causeway_site_work_done(causeway_site* site, int64_t id, void* cuda_event, int failed) {
  return Enter([&] {
    RETURN_IF_ERROR(CheckUsable(site));
    if (cuda_event != nullptr && failed == 0) return site->site->DoneAfter(id, cuda_event);
    return site->site->Done(id, failed != 0);
  });
}

int causeway_site_encode_on(causeway_site* site, int device) {
  return EnterSite(site, [&](ExternalSite& own) { return own.EncodeOnDevice(device); });
}

int causeway_site_keep(causeway_site* site, int64_t id, const void* theta, void* cuda_stream) {
  return Enter([&] {
    RETURN_IF_ERROR(CheckUsable(site));
    if (theta == nullptr) return Missing("theta");
    return site->site->Keep(id, theta, cuda_stream);
  });
}

int causeway_site_do_work(causeway_site* site, int64_t id, void* theta) {
  return Enter([&] {
    RETURN_IF_ERROR(CheckUsable(site));
    if (theta == nullptr) return Missing("theta");
    return site->site->CarryOut(id, theta);
  });
}

int causeway_site_read_anchor(causeway_site* site, int timeout_ms) {
  return EnterSite(site, [&](ExternalSite& own) { return own.ReadAnchor(Wait(timeout_ms)); });
}

int causeway_site_report_eval(causeway_site* site, double loss) {
  return EnterSite(site, [&](ExternalSite& own) { return own.ReportEval(loss); });
}

int causeway_site_capture(causeway_site* site, int timeout_ms, causeway_state** state) {
  return EnterSite(site, [&](ExternalSite& own) -> absl::StatusOr<Turn> {
    if (state == nullptr) return Missing("state");
    SiteStateParts parts;
    ASSIGN_OR_RETURN(const Turn turn, own.Capture(Wait(timeout_ms), parts));
    if (turn == Turn::kDone) *state = new causeway_state{std::move(parts)};
    return turn;
  });
}

int causeway_state_parts(const causeway_state* state, causeway_buffer* parts, int* count) {
  return Enter([&] { return state == nullptr ? Missing("state") : FillIn(state->parts, parts, count); });
}

int causeway_state_close(causeway_state* state) {
  return Enter([&] {
    delete state;
    return absl::OkStatus();
  });
}

int causeway_site_complete(causeway_site* site, int timeout_ms) {
  return EnterSite(site, [&](ExternalSite& own) { return own.Complete(Wait(timeout_ms)); });
}

int causeway_site_drain(causeway_site* site, int timeout_ms) {
  return EnterSite(site, [&](ExternalSite& own) { return own.Drain(Wait(timeout_ms)); });
}

int causeway_site_leave(causeway_site* site, int finished, const char* reason, int timeout_ms) {
  return EnterSite(site, [&](ExternalSite& own) {
    return own.Leave(finished != 0, reason == nullptr ? "" : reason, Wait(timeout_ms));
  });
}

int causeway_site_close(causeway_site* site) {
  return Enter([&] { return CloseSite(site); });
}

int causeway_site_stop(causeway_site* site) {
  return Enter([&] {
    RETURN_IF_ERROR(CheckUsable(site));
    site->site->Stop();
    return absl::OkStatus();
  });
}

int causeway_site_waits(causeway_site* site, const char* what) {
  return Enter([&] {
    RETURN_IF_ERROR(CheckUsable(site));
    site->site->Waits(what == nullptr ? "" : what);
    return absl::OkStatus();
  });
}

int causeway_site_ranks(causeway_site* site, const char* json) {
  return Enter([&] {
    RETURN_IF_ERROR(CheckUsable(site));
    return json == nullptr ? Missing("json") : site->site->ReportRanks(json);
  });
}

int causeway_site_progress_json(causeway_site* site, char* json, size_t size) {
  return Enter([&] {
    RETURN_IF_ERROR(CheckUsable(site));
    return WriteJson(site->site->ProgressJson(), json, size);
  });
}
