#include "worker/loop/ranked_trainer.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/environment.h"
#include "formats/run_yaml.h"

namespace causeway::worker {
namespace {

using Kind = RankCommand::Kind;

constexpr size_t kPieceBytes = size_t{64} << 20;  // of a file that all ranks receive

// ---- A file of the leader, on all ranks ----

absl::Status ReadFailed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("expected to read ", path, ", could not"));
}

absl::Status SendFile(RankControl& control, const std::string& path, int64_t bytes) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> piece;
  for (int64_t first = 0; first < bytes; first += static_cast<int64_t>(piece.size())) {
    piece.resize(std::min<int64_t>(kPieceBytes, bytes - first));
    if (!file.read(reinterpret_cast<char*>(piece.data()), static_cast<std::streamsize>(piece.size()))) {
      return ReadFailed(path);
    }
    RETURN_IF_ERROR(control.Broadcast(piece));
  }
  return absl::OkStatus();
}

absl::Status ReceiveFile(RankControl& control, int64_t bytes, Trainer& trainer) {
  ASSIGN_OR_RETURN(std::string path, core::FolderForTemporaryFiles());
  path += "/causeway-trainer-XXXXXX";
  const int descriptor = mkstemp(path.data());
  if (descriptor < 0) return absl::UnavailableError(absl::StrCat("expected to write ", path, ", could not"));
  close(descriptor);
  absl::Status status;
  {
    std::ofstream file(path, std::ios::binary);
    std::vector<std::byte> piece;
    for (int64_t first = 0; first < bytes && status.ok(); first += static_cast<int64_t>(piece.size())) {
      piece.resize(std::min<int64_t>(kPieceBytes, bytes - first));
      status = control.Broadcast(piece);
      file.write(reinterpret_cast<const char*>(piece.data()), static_cast<std::streamsize>(piece.size()));
    }
    if (status.ok() && !file.flush())
      status = absl::UnavailableError(absl::StrCat("expected to write ", path, ", could not"));
  }
  if (status.ok()) status = trainer.Load(path);
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return status;
}

}  // namespace

// ---- The leader ----

absl::Status RankedTrainer::CheckAlike() {
  if (control_.alone()) return absl::OkStatus();
  const RanksTogether together(control_);
  RETURN_IF_ERROR(control_.Tell({.kind = Kind::kCheck}));
  return CheckStart(control_, own_);
}

absl::StatusOr<StepResult> RankedTrainer::Step(core::Step t) {
  const RanksTogether together(control_);
  RETURN_IF_ERROR(told_);
  const std::string place = run_tokens_ ? absl::StrCat(*run_tokens_) : "";
  RETURN_IF_ERROR(control_.Tell({.kind = Kind::kStep, .count = t, .payload = place}));
  ASSIGN_OR_RETURN(const StepResult result, own_.Step(t));
  if (own_.stop_requested()) stop_();
  return result;
}

void RankedTrainer::Change(const core::RunConfig& config) {
  if (told_.ok()) told_ = control_.Tell({.kind = Kind::kSet, .payload = formats::SerializeRunConfig(config)});
  own_.Change(config);
}

void RankedTrainer::MoveSchedule(int64_t run_tokens) {
  run_tokens_ = run_tokens;
  own_.MoveSchedule(run_tokens);
}

void RankedTrainer::SetSites(const std::vector<core::SiteId>& names) {
  if (told_.ok()) told_ = control_.Tell({.kind = Kind::kSites, .payload = absl::StrJoin(names, "\n")});
  own_.SetSites(names);
}

absl::StatusOr<formats::FileDigest> RankedTrainer::Save(const std::string& path) {
  const RanksTogether together(control_);
  if (!control_.alone()) RETURN_IF_ERROR(control_.Tell({.kind = Kind::kSave}));
  RETURN_IF_ERROR(own_.GatherState());
  return own_.Save(path);
}

absl::Status RankedTrainer::Load(const std::string& path) {
  RETURN_IF_ERROR(own_.Load(path));
  if (control_.alone()) return absl::OkStatus();
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) return ReadFailed(path);
  const RanksTogether together(control_);
  RETURN_IF_ERROR(control_.Tell({.kind = Kind::kLoad, .count = bytes}));
  return SendFile(control_, path, bytes);
}

// ---- A follower ----

namespace {

absl::Status Follow(const RankCommand& command, Trainer& trainer, RankControl& control) {
  switch (command.kind) {
    case Kind::kCheck: return CheckStart(control, trainer);
    case Kind::kLoad: return ReceiveFile(control, command.count, trainer);
    case Kind::kSites:
      trainer.SetSites(absl::StrSplit(command.payload, '\n', absl::SkipEmpty()));
      return absl::OkStatus();
    case Kind::kSet: {
      ASSIGN_OR_RETURN(const core::RunConfig config, formats::ParseRunConfig(command.payload));
      trainer.Change(config);
      return absl::OkStatus();
    }
    case Kind::kStep: {
      int64_t run_tokens = 0;
      if (absl::SimpleAtoi(command.payload, &run_tokens)) trainer.MoveSchedule(run_tokens);
      return trainer.Step(command.count).status();
    }
    case Kind::kSave: return trainer.GatherState();
    case Kind::kMove: return FollowMove(command, trainer, control);
    case Kind::kRead: return FollowRead(command, trainer, control);
    default: return absl::InternalError("rank 0 is of another version");
  }
}

}  // namespace

absl::Status FollowLeader(Trainer& trainer, RankControl& control) {
  while (true) {
    ASSIGN_OR_RETURN(const RankCommand command, control.Next());
    if (command.kind == Kind::kEnd) {
      if (command.count == 1) return absl::OkStatus();
      return absl::InternalError(absl::StrCat("rank 0 has ended: ", command.payload));
    }
    if (const absl::Status status = Follow(command, trainer, control); !status.ok()) {
      control.group().Abort(std::string(status.message()));  // if unknown yet
      return status;
    }
  }
}

}  // namespace causeway::worker
