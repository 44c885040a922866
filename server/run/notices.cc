#include "server/run/notices.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "transport/messages.h"

namespace causeway::server {

void Notices::Note(RunParts& run) {
  if (const bool held = run.rules.held(); held != held_) {
    held_ = held;
    v1::CoordinatorMessage message;
    message.mutable_hold()->set_held(held);
    run.members.SendToAll(message, run.outbox);
  }
  const std::string reason = run.rules.Reason();
  if (reason == reason_) return;
  reason_ = reason;
  if (reason.empty()) return;
  const char* const state = RunStateName(run.rules.run_state());
  spdlog::info("{}: {}", state, reason);
  run.outbox.Note("run", absl::StrCat(state, ": ", reason));
  run.members.SendToAll(transport::NoticeOf(reason), run.outbox);
}

}  // namespace causeway::server
