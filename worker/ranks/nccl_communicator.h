// A non-blocking NCCL communicator: each call returns at once, and is polled until NCCL has accepted it.
//
//   Call ──► ncclAllReduce … ──► ncclInProgress? ──► ncclCommGetAsyncError, every 20 µs to 1 ms, until it is another
//                                                    result, or the group has failed
//   its end ──► ncclCommFinalize, polled ──► ncclCommDestroy; an error, or too long: ncclCommAbort
//
// For one thread at a time, with the device current on it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway::worker {

// NCCL as a table of functions that are found at run time, so that Causeway builds and starts without it.
//
//   CAUSEWAY_NCCL, or else libnccl.so.2 ──dlopen──► dlsym of each name ──► version ≥ 2.14? ──► NcclApi
//
// The declarations are our own: nccl.h needs CUDA's headers, and RCCL, which has the same symbols, needs others. They
// equal those of the C interface except for the names; tests/worker/ranks/nccl_header_test.cc compares them where
// nccl.h is installed. 2.14 is the first version with non-blocking communicators, which a deadline requires.

inline constexpr int kFirstNcclVersion = 21400;  // NCCL_VERSION(2, 14, 0)

struct NcclComm;  // ncclComm: opaque, known only to NCCL

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum class NcclType : int { kInt8 = 0, kFloat32 = 7 };
enum class NcclReduction : int { kSum = 0 };

// Identifies a communicator that is being created: rank 0 obtains one and sends it to the others.
struct NcclUniqueId {
  char bytes[128];
};

// ncclConfig_t of version 2.14. Later versions append fields, and use defaults for those in a struct of this size.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = kFirstNcclVersion;
  int blocking = 0;
};

struct NcclApi {
  NcclResult (*get_version)(int* version);
  NcclResult (*get_unique_id)(NcclUniqueId* id);
  NcclResult (*init_rank_config)(NcclComm** comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config);
  NcclResult (*get_async_error)(NcclComm* comm, NcclResult* error);
  NcclResult (*abort)(NcclComm* comm);
  NcclResult (*finalize)(NcclComm* comm);
  NcclResult (*destroy)(NcclComm* comm);
  NcclResult (*all_reduce)(const void* send, void* receive, size_t count, NcclType type, NcclReduction reduction,
                           NcclComm* comm, void* stream);
  NcclResult (*reduce_scatter)(const void* send, void* receive, size_t receive_count, NcclType type,
                               NcclReduction reduction, NcclComm* comm, void* stream);
  NcclResult (*all_gather)(const void* send, void* receive, size_t send_count, NcclType type, NcclComm* comm,
                           void* stream);
  NcclResult (*broadcast)(const void* send, void* receive, size_t count, NcclType type, int root, NcclComm* comm,
                          void* stream);
  NcclResult (*send)(const void* bytes, size_t count, NcclType type, int peer, NcclComm* comm, void* stream);
  NcclResult (*receive)(void* bytes, size_t count, NcclType type, int peer, NcclComm* comm, void* stream);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  const char* (*get_error_string)(NcclResult result);
  const char* (*get_last_error)(NcclComm* comm);  // null where the library has none

  std::string file;
  int version = 0;
};

// "2.14.3"
std::string NcclVersionName(int version);

// The environment's CAUSEWAY_NCCL, or the name by which the system finds it.
std::string NcclFile();

// Loads a file once; it stays as long as the process, since NCCL has threads of its own. NOT_FOUND: the file and the
// reason, or the symbol that it lacks. FAILED_PRECONDITION: both versions. Thread-safe.
absl::StatusOr<const NcclApi*> LoadNccl(const std::string& file = NcclFile());

class NcclCommunicator {
 public:
  using GiveUp = std::function<absl::Status()>;  // not OK: the reason to stop waiting

  // Waits until all ranks have joined. `most_finalize`: how long the destructor waits for the other ranks.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Make(const NcclApi& nccl, const NcclUniqueId& id, int rank,
                                                                int world, GiveUp give_up,
                                                                std::chrono::nanoseconds most_finalize);
  // All calls must be done, unless Abort was called. Finalizes and destroys it, or aborts it if that fails or takes too
  // long.
  ~NcclCommunicator();

  // Errors name the failed call by `name`.
  absl::Status Call(absl::string_view name, const std::function<NcclResult(const NcclApi&, NcclComm*)>& call);

  // OK, or an error of the operations on the device.
  absl::Status AsyncError(absl::string_view name) const;

  // Ends the operations on the device: their memory belongs to the caller again. No call may follow.
  void Abort();

 private:
  NcclCommunicator(const NcclApi& nccl, GiveUp give_up, std::chrono::nanoseconds most_finalize)
      : nccl_(nccl), give_up_(std::move(give_up)), most_finalize_(most_finalize) {}

  absl::Status Settle(absl::string_view name, NcclResult result, const GiveUp& give_up) const;
  absl::Status Finalize();
  absl::Status ErrorOf(absl::string_view name, NcclResult result) const;

  const NcclApi& nccl_;
  const GiveUp give_up_;
  const std::chrono::nanoseconds most_finalize_;
  NcclComm* comm_ = nullptr;
};

// Polls often at first, for short operations, then less and less often, for long ones.
class PollPause {
 public:
  std::chrono::microseconds Next() {
    const std::chrono::microseconds now = next_;
    next_ = std::min(2 * next_, std::chrono::microseconds(1000));
    return now;
  }
  void Reset() { next_ = kFirst; }

 private:
  static constexpr std::chrono::microseconds kFirst{20};
  std::chrono::microseconds next_ = kFirst;
};

}  // namespace causeway::worker
