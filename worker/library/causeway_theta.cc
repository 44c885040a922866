// The functions of causeway.h that need no site: they move and digest θ in this process's memory.
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "worker/library/causeway.h"
#include "worker/library/entry_point.h"
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
