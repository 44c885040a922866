// θ held by another program: reads and moves become pieces of work that the program takes and carries out.
//
//   site's threads   BeginRead, Move ─► pieces ─► Take ─► CarryOut, or the program's own ─► Done ─► Move, AwaitRead end
//
// The program's tensors may lie anywhere and have any dtype of core/dtype.h; float32 values pass between it and us, and
// are not copied: those of a move are the values of Movement. CarryOut does a piece in place on θ in host memory
// (worker/library/work_piece.h). The program itself reads and moves θ that lies elsewhere, such as on a device or in
// other processes.
//
// Thread-safe. Move blocks the site's step thread until the program has done the pieces; End releases all waiting
// calls.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "replica/parameter_store.h"
#include "worker/library/work_piece.h"

namespace causeway::worker {

class ExternalStore final : public replica::ParameterStore {
 public:
  struct Tensor {
    int64_t values = 0;
    core::DType dtype = core::DType::kFloat32;
    uint64_t digest_seed = 0;  // core::ThetaSeed of its name
    bool synced = true;
  };

  // `tensors` are those of the manifest. `changed` is called, with no lock held, when there is new work.
  ExternalStore(std::vector<Tensor> tensors, std::function<void()> changed);

  core::DType dtype(int tensor) const override { return tensors_[tensor].dtype; }
  replica::ThetaEncoder* encoder() override { return encoder_.get(); }
  int64_t BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) override;
  absl::Status AwaitRead(int64_t ticket) override;

  // For θ on a device, where `encoder` encodes contributions. To be called before the site joins.
  struct DeviceCalls {
    // Queues a copy of values on the device on one of the program's streams, and then the event.
    std::function<absl::Status(void* stream, float* to, const void* theta, int64_t count, int event)> copy;
    std::function<absl::Status(void* event)> order_after;  // later encoding is ordered after the program's event
    std::function<absl::Status(void* event)> await;        // the host waits for it
  };
  void EncodeOnDevice(std::shared_ptr<replica::ThetaEncoder> encoder, DeviceCalls calls);
  // Has the program copy θ of the ranges to `to` on the device, as kKeep pieces; returns when all are queued.
  absl::Status KeepTheta(const replica::UnitRanges& ranges, float* to, int event);

  // Hands out an array of each tensor as kWrite pieces marked `anchor`; returns when they are done.
  absl::Status HandOutAnchor(std::vector<std::vector<float>>& tensors);

  // The digest of θ as it is now (core/digest.h), over the tensors that are synced.
  absl::StatusOr<uint64_t> Digest();

  // ---- The program ----
  std::optional<WorkPiece> Take();                         // none: there is no work to take now
  bool has_work() const;                                   // there is a piece that was not taken
  absl::Status Done(int64_t id, const absl::Status& how);  // INVALID_ARGUMENT: no such piece was taken
  // The piece is done once the program's event on the device has completed; what the device reads is waited for there.
  absl::Status DoneAfter(int64_t id, void* event);
  // Carries out a piece that was taken and marks it as done. `theta` points to its first value in host memory, in the
  // tensor's dtype; for a piece of the anchor, to a float32 array of its size.
  absl::Status CarryOut(int64_t id, void* theta);
  // Queues a kKeep piece, whose first value lies at `theta` on the device, on the program's stream, and marks it as
  // done.
  absl::Status Keep(int64_t id, const void* theta, void* stream);

  // All waiting calls return `why` once the program has done the pieces that it took; so do all later calls.
  void End(const absl::Status& why);
  bool has_taken_work() const;  // pieces that are not done yet: their memory is in use

 private:
  // Pieces that are awaited together.
  struct Batch {
    size_t left = 0;   // pieces that are not done
    size_t taken = 0;  // how many of these the program holds: their memory is in use
  };

  absl::Status DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) override;
  absl::StatusOr<WorkPiece> Taken(const char* operation, int64_t id) const;
  std::vector<WorkPiece> PiecesOf(const replica::UnitRanges& ranges, std::span<float> padded,
                                  const WorkPiece& like) const;
  int64_t Post(const std::vector<WorkPiece>& pieces);  // returns the batch's ticket
  absl::Status Await(int64_t ticket);
  absl::Status Perform(const std::vector<WorkPiece>& pieces) { return Await(Post(pieces)); }

  const std::vector<Tensor> tensors_;
  const std::function<void()> changed_;
  std::shared_ptr<replica::ThetaEncoder> encoder_;  // null: encoding on the host
  DeviceCalls device_;

  mutable core::Mutex mutex_;
  core::Condition done_;
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::pair<WorkPiece, int64_t>> waiting_ ABSL_GUARDED_BY(mutex_);       // with their tickets
  std::map<int64_t, std::pair<WorkPiece, int64_t>> taken_ ABSL_GUARDED_BY(mutex_);  // by piece's id, with their tickets
  std::map<int64_t, Batch> batches_ ABSL_GUARDED_BY(mutex_);
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::worker
