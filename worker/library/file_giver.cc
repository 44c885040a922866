#include "worker/library/file_giver.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/random.h"
#include "transport/backoff.h"
#include "transport/messages.h"

namespace causeway::worker {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::nanoseconds;

constexpr auto kTimeout = std::chrono::minutes(5);  // of a call: 7 MB at 200 kbit/s
constexpr int kQuickAttempts = 100;  // some minutes; an earlier coordinator, or a proxy, may not know the call
constexpr auto kLookAgain = std::chrono::minutes(10);

}  // namespace

FileGiver::~FileGiver() {
  {
    core::MutexLock lock(mutex_);
    ends_ = true;
    if (call_ != nullptr) call_->TryCancel();
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.Join();
}

void FileGiver::Begin() {
  if (files_.empty() || thread_.joinable()) return;
  thread_ = core::Thread([this] { core::Guarded([this] { Run(); }); });
}

bool FileGiver::WaitFor(nanoseconds time) {
  core::MutexLock lock(mutex_);
  return lock.WaitFor(changed_, time, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ends_; });
}

void FileGiver::Run() {
  for (int attempt = 0; !useless_;) {
    const auto stub =
        v1::Coordinator::NewStub(transport::MakeChannel(link_.coordinator, link_.channel, transport::Traffic::kBulk));
    const bool done = GiveAll(*stub);
    attempt = done ? 0 : attempt + 1;
    const auto backoff = std::chrono::milliseconds(transport::BackoffMs(attempt, core::DeviceRandom()));
    if (WaitFor(done || attempt > kQuickAttempts ? nanoseconds(kLookAgain) : nanoseconds(backoff))) return;
  }
}

bool FileGiver::GiveAll(v1::Coordinator::Stub& stub) {
  v1::KeepFileRequest request;
  request.mutable_context()->set_protocol(transport::kProtocol);
  request.mutable_context()->set_run_id(link_.run);
  request.mutable_context()->set_site(link_.site);
  for (const formats::ModelFile& file : files_) {
    v1::ModelFile& message = *request.add_files();
    message.set_name(file.name);
    message.set_bytes(file.bytes);
    message.set_digest(file.digest);
  }
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(core::SystemClock().Calendar() + kTimeout);
    {
      core::MutexLock lock(mutex_);
      if (ends_) return true;
      call_ = &context;
    }
    v1::KeptFiles kept;
    const grpc::Status status = stub.KeepFile(&context, request, &kept);
    {
      core::MutexLock lock(mutex_);
      call_ = nullptr;
    }
    if (!status.ok()) return !Understood(status);
    const auto next = std::ranges::find_if(files_, [&](const formats::ModelFile& file) {
      return std::ranges::find(kept.missing(), file.name) != kept.missing().end() &&
             std::ranges::any_of(kept.files(), [&](const v1::ModelFile& listed) {
               return listed.name() == file.name && listed.digest() == file.digest;
             });
    });
    if (next == files_.end()) {
      Compare(kept);
      return true;
    }
    if (next->name == request.name()) return false;  // it has taken it, and lacks it
    request.set_name(next->name);
    request.set_contents(next->compressed);
    if (link_.max_up_bytes_per_s > 0) {
      const duration<double> share(static_cast<double>(next->compressed.size()) / link_.max_up_bytes_per_s);
      if (WaitFor(duration_cast<nanoseconds>(share))) return true;
    }
  }
}

// Whether a later attempt may do better.
bool FileGiver::Understood(const grpc::Status& status) {
  const grpc::StatusCode code = status.error_code();
  spdlog::debug("the model's files are not at the coordinator yet: {}", status.error_message());
  if (code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::DEADLINE_EXCEEDED ||
      code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::RESOURCE_EXHAUSTED)
    return true;
  useless_ = true;
  spdlog::warn("the model's files are not kept at the coordinator, so that exports lack them: {}",
               status.error_message());
  return false;
}

void FileGiver::Compare(const v1::KeptFiles& kept) {
  if (std::exchange(compared_, true)) return;
  std::vector<std::string> others;
  for (const formats::ModelFile& file : files_) {
    const auto same = std::ranges::find_if(kept.files(), [&](const v1::ModelFile& listed) {
      return listed.name() == file.name && listed.digest() == file.digest;
    });
    if (same == kept.files().end()) others.push_back(file.name);
  }
  if (others.empty()) return;
  spdlog::info("exports have site {}'s files of the model; this site has others: {}", kept.site(),
               absl::StrJoin(others, ", "));
}

}  // namespace causeway::worker
