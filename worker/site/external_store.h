// θ in the hands of another program: reads and moves become pieces of work that the program takes and does.
//
//   site's threads   BeginRead, Move ─► pieces ─► Take ─► CarryOut, or the program's own ─► Done ─► Move, AwaitRead end
//
// What the program trains may lie anywhere and have any dtype of core/dtype.h; between it and us go float32 values,
// which stay where they are: a move's are those of Movement. CarryOut does a piece on θ in the host's memory, in place
// (worker/site/work_piece.h). θ elsewhere, as on a device or in other processes, is the program's to read and to move.
//
// Thread-safe. Move blocks the site's step thread until the program has done the pieces; End lets go of all that wait.
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
#include "worker/site/work_piece.h"

namespace causeway::worker {

class ExternalStore final : public replica::ParameterStore {
 public:
  struct Tensor {
    int64_t values = 0;
    core::DType dtype = core::DType::kFloat32;
    uint64_t digest_seed = 0;  // core::ThetaSeed of its name
    bool synced = true;
  };

  // `tensors` of the manifest. `changed` is called, with nothing held, when there is new work.
  ExternalStore(std::vector<Tensor> tensors, std::function<void()> changed);

  core::DType dtype(int tensor) const override { return tensors_[tensor].dtype; }
  replica::ThetaEncoder* encoder() override { return encoder_.get(); }
  int64_t BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) override;
  absl::Status AwaitRead(int64_t ticket) override;

  // θ lies on a device, where `encoder` encodes contributions. Before the site joins.
  struct DeviceCalls {
    // Queues a copy of values there on a stream of the program's, and then the event.
    std::function<absl::Status(void* stream, float* to, const void* theta, int64_t count, int event)> copy;
    std::function<absl::Status(void* event)>
        order_after;                                 // what is encoded from here on comes after the program's event
    std::function<absl::Status(void* event)> await;  // the host waits for it
  };
  void EncodeOnDevice(std::shared_ptr<replica::ThetaEncoder> encoder, DeviceCalls calls);
  // θ of the ranges to `to` on the device, by the program as kKeep pieces; returns when all are queued.
  absl::Status KeepTheta(const replica::UnitRanges& ranges, float* to, int event);

  // Hands out an array of each tensor as kWrite pieces marked `anchor`; returns when they are done.
  absl::Status HandOutAnchor(std::vector<std::vector<float>>& tensors);

  // The digest of θ as it is now (core/theta_digest.h): of the tensors that are synced.
  absl::StatusOr<uint64_t> Digest();

  // ---- The program ----
  std::optional<WorkPiece> Take();                         // none: there is nothing to take now
  bool has_work() const;                                   // that was not taken
  absl::Status Done(int64_t id, const absl::Status& how);  // INVALID_ARGUMENT: no such piece was taken
  // Once the program's event on the device has come: what the device reads is waited for there.
  absl::Status DoneAfter(int64_t id, void* event);
  // Does a piece that was taken and says that it is done. `theta` is where its first value lies in the host's memory,
  // in the tensor's dtype; for a piece of the anchor a float32 array of its size.
  absl::Status CarryOut(int64_t id, void* theta);
  // Queues a kKeep piece, whose first value lies at `theta` on the device, on the program's stream; it is done then.
  absl::Status Keep(int64_t id, const void* theta, void* stream);

  // All that wait return `why`, once the program has done what it took, and so does what comes later.
  void End(const absl::Status& why);
  bool has_taken_work() const;  // that the program has not done: its memory is in use

 private:
  // Pieces that are awaited together.
  struct Batch {
    size_t left = 0;   // not done
    size_t taken = 0;  // of these, in the program's hands: their memory is in use
  };

  absl::Status DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) override;
  absl::StatusOr<WorkPiece> Taken(const char* operation, int64_t id) const;
  std::vector<WorkPiece> PiecesOf(const replica::UnitRanges& ranges, std::span<float> padded,
                                  const WorkPiece& like) const;
  int64_t Post(const std::vector<WorkPiece>& pieces);  // the batch's ticket
  absl::Status Await(int64_t ticket);
  absl::Status Perform(const std::vector<WorkPiece>& pieces) { return Await(Post(pieces)); }

  const std::vector<Tensor> tensors_;
  const std::function<void()> changed_;
  std::shared_ptr<replica::ThetaEncoder> encoder_;  // null: the host's
  DeviceCalls device_;

  mutable core::Mutex mutex_;
  core::Condition done_;
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::pair<WorkPiece, int64_t>> waiting_ ABSL_GUARDED_BY(mutex_);       // with their tickets
  std::map<int64_t, std::pair<WorkPiece, int64_t>> taken_ ABSL_GUARDED_BY(mutex_);  // by piece, with their tickets
  std::map<int64_t, Batch> batches_ ABSL_GUARDED_BY(mutex_);
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::worker
