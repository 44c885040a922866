#include "worker/loop/ranked_trainer.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/layout.h"
#include "core/random.h"
#include "core/theta_digest.h"

namespace causeway::worker {
namespace {

using Kind = RankCommand::Kind;

constexpr size_t kPieceBytes = size_t{64} << 20;  // of a file that all ranks get

// ---- A move, as bytes ----

struct MoveHead {
  uint32_t kind = 0;
  float factor = 0;
};

std::string MovePayload(const replica::UnitRanges& ranges, const replica::Movement& movement) {
  const MoveHead head{static_cast<uint32_t>(movement.kind), movement.factor};
  std::string payload(sizeof(head) + ranges.size() * sizeof(replica::UnitRange), '\0');
  std::memcpy(payload.data(), &head, sizeof(head));
  if (!ranges.empty()) {
    std::memcpy(payload.data() + sizeof(head), ranges.data(), ranges.size() * sizeof(replica::UnitRange));
  }
  return payload;
}

replica::UnitRanges ParseMove(const std::string& payload, replica::Movement& movement) {
  MoveHead head;
  CHECK(payload.size() >= sizeof(head) && (payload.size() - sizeof(head)) % sizeof(replica::UnitRange) == 0);
  std::memcpy(&head, payload.data(), sizeof(head));
  movement.kind = static_cast<replica::Movement::Kind>(head.kind);
  movement.factor = head.factor;
  replica::UnitRanges ranges((payload.size() - sizeof(head)) / sizeof(replica::UnitRange));
  if (!ranges.empty()) std::memcpy(ranges.data(), payload.data() + sizeof(head), payload.size() - sizeof(head));
  return ranges;
}

// ---- Equality of the ranks ----

uint64_t DigestOf(Trainer& trainer, const replica::UnitRanges& ranges) {
  uint64_t digest = 0;
  for (const replica::UnitRange& range : ranges) {
    const std::span<const float> values = trainer.tensor(range.tensor);
    const int64_t first = range.first * core::kUnitValues;
    const int64_t end = std::min(std::ssize(values), (range.first + range.count) * core::kUnitValues);
    digest += core::ThetaDigest(core::ThetaSeed(trainer.manifest()[range.tensor].name), first,
                                values.subspan(first, end - first));
  }
  return digest;
}

replica::UnitRanges AllRanges(const core::Manifest& manifest) {
  replica::UnitRanges ranges;
  for (size_t i = 0; i < manifest.size(); ++i) {
    ranges.push_back({static_cast<int>(i), 0, core::UnitsFor(manifest[i].NumValues())});
  }
  return ranges;
}

uint64_t DataDigest(const Trainer& trainer) {
  const core::SiteData data = trainer.data();
  uint64_t digest = 0;
  for (const auto& one : {data.training, data.held_out}) {
    digest = core::HashCombine(digest, one ? one->digest : 0);
    digest = core::HashCombine(digest, one ? static_cast<uint64_t>(one->tokens) : 0);
  }
  return digest;
}

// INTERNAL names the first rank that differs from the leader.
absl::Status CheckEqual(RankControl& control, uint64_t mine, const std::string& what) {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, control.GatherDigests(mine));
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank] == digests[0]) continue;
    return absl::InternalError(absl::StrCat(control.group().NameOf(static_cast<int>(rank)), " differs: expected ", what,
                                            " with digest ", absl::Hex(digests[0], absl::kZeroPad16),
                                            ", as rank 0, got ", absl::Hex(digests[rank], absl::kZeroPad16)));
  }
  return absl::OkStatus();
}

absl::Status CheckStart(RankControl& control, Trainer& trainer) {
  RETURN_IF_ERROR(CheckEqual(control, DataDigest(trainer), "data"));
  return CheckEqual(control, DigestOf(trainer, AllRanges(trainer.manifest())), "initial parameters");
}

absl::Status CheckMoved(RankControl& control, Trainer& trainer, const replica::UnitRanges& ranges) {
  return CheckEqual(control, DigestOf(trainer, ranges), "parameters after a move");
}

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
  std::string path = (std::filesystem::temp_directory_path() / "causeway-trainer-XXXXXX").string();
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

// The ranks work together, and the leader says nothing else meanwhile.
class Together {
 public:
  explicit Together(RankControl& control) : control_(control) { control_.BeginTogether(); }
  ~Together() { control_.EndTogether(); }

 private:
  RankControl& control_;
};

}  // namespace

// ---- The leader ----

absl::Status RankedStore::DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) {
  if (control_.alone()) return own_.store().Move(ranges, movement);
  const Together together(control_);
  RETURN_IF_ERROR(control_.Tell({Kind::kMove, std::ssize(movement.values), MovePayload(ranges, movement)}));
  // Broadcast writes on the other ranks alone.
  RETURN_IF_ERROR(
      control_.Broadcast(BytesOf(std::span(const_cast<float*>(movement.values.data()), movement.values.size()))));
  RETURN_IF_ERROR(own_.store().Move(ranges, movement));
  return CheckMoved(control_, own_, ranges);
}

absl::Status RankedTrainer::CheckAlike() {
  if (control_.alone()) return absl::OkStatus();
  const Together together(control_);
  RETURN_IF_ERROR(control_.Tell({.kind = Kind::kCheck}));
  return CheckStart(control_, own_);
}

absl::StatusOr<StepResult> RankedTrainer::Step(core::Step t) {
  const Together together(control_);
  RETURN_IF_ERROR(told_);
  RETURN_IF_ERROR(control_.Tell({.kind = Kind::kStep, .count = t}));
  ASSIGN_OR_RETURN(const StepResult result, own_.Step(t));
  if (own_.stop_requested()) stop_();
  return result;
}

void RankedTrainer::SetSites(const std::vector<core::SiteId>& names) {
  if (told_.ok()) told_ = control_.Tell({.kind = Kind::kSites, .payload = absl::StrJoin(names, "\n")});
  own_.SetSites(names);
}

absl::StatusOr<formats::FileDigest> RankedTrainer::Save(const std::string& path) {
  const Together together(control_);
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
  const Together together(control_);
  RETURN_IF_ERROR(control_.Tell({.kind = Kind::kLoad, .count = bytes}));
  return SendFile(control_, path, bytes);
}

// ---- A follower ----

namespace {

absl::Status FollowMove(const RankCommand& command, Trainer& trainer, RankControl& control) {
  replica::Movement movement;
  const replica::UnitRanges ranges = ParseMove(command.payload, movement);
  std::vector<float> values(command.count);
  RETURN_IF_ERROR(control.Broadcast(BytesOf(std::span(values))));
  movement.values = values;
  RETURN_IF_ERROR(trainer.store().Move(ranges, movement));
  return CheckMoved(control, trainer, ranges);
}

absl::Status Follow(const RankCommand& command, Trainer& trainer, RankControl& control) {
  switch (command.kind) {
    case Kind::kCheck: return CheckStart(control, trainer);
    case Kind::kLoad: return ReceiveFile(control, command.count, trainer);
    case Kind::kSites:
      trainer.SetSites(absl::StrSplit(command.payload, '\n', absl::SkipEmpty()));
      return absl::OkStatus();
    case Kind::kStep: return trainer.Step(command.count).status();
    case Kind::kSave: return trainer.GatherState();
    case Kind::kMove: return FollowMove(command, trainer, control);
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
      control.group().Abort(std::string(status.message()));  // where it is not known yet
      return status;
    }
  }
}

}  // namespace causeway::worker
