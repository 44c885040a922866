// A libnccl.so.2 without GPUs, for tests: NCCL's names and prototypes over memory that threads and processes share.
//
//   ncclGetUniqueId ──► names a shared memory object ──► each rank maps it ──► all are there: it is unlinked
//   ncclAllReduce ──► FakeStream ──► piece of each rank to its place ─ barrier ─ sums in rank order ─ barrier ─ …
//
// Device memory is the host's, a stream is a FakeStream (fake_stream.h), worlds have at most 4 ranks. As with NCCL, a
// call may say ncclInProgress, and a rank whose peer is gone waits until its communicator is aborted. The environment
// makes it fail, and is read at each call:
//
//   FAKE_NCCL_VERSION=21003      the version that it says
//   FAKE_NCCL_REFUSE_INIT=1      no communicator is made
//   FAKE_NCCL_HANG_AFTER=2       the third operation of a communicator, and each after it, never ends
//   FAKE_NCCL_ERROR_AFTER=2      the same, and ncclCommGetAsyncError says ncclRemoteError
//   FAKE_NCCL_RANK=1             only rank 1 of a communicator hangs or has the error
//   FAKE_NCCL_FINALIZE_POLLS=9   polls until a communicator is finalized; 3 without it
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "tests/worker/ranks/fake_nccl_memory.h"
#include "tests/worker/ranks/fake_stream.h"
#include "tests/worker/ranks/nccl_functions.h"
#include "worker/ranks/nccl_communicator.h"

namespace {

using namespace fake_nccl;  // NOLINT: its types are this library's
using causeway::worker::NcclApi;
using causeway::worker::NcclComm;
using causeway::worker::NcclConfig;
using causeway::worker::NcclReduction;
using causeway::worker::NcclResult;
using causeway::worker::NcclType;
using causeway::worker::NcclUniqueId;

constexpr useconds_t kPollUs = 20;

int64_t NumberOf(const char* variable, int64_t absent) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? absent : std::atoll(value);
}

}  // namespace

namespace causeway::worker {

struct NcclComm {
  bool Fails(const char* variable) const {
    const int64_t rank_that_does = NumberOf("FAKE_NCCL_RANK", rank);
    return rank == rank_that_does && operations >= NumberOf(variable, INT64_MAX);
  }

  // False: the communicator was aborted first.
  template <typename Holds>
  bool Wait(Holds holds) const {
    while (!holds()) {
      if (aborted) return false;
      usleep(kPollUs);
    }
    return !aborted;
  }

  bool Barrier() {
    const uint64_t number = ++shared->arrived[rank];
    for (int other = 0; other < world; ++other) {
      if (!Wait([&] { return shared->arrived[other] >= number; })) return false;
    }
    return true;
  }

  // `body(offset, size)` for each piece, between two barriers: the ranks have put theirs, and have read the others'.
  bool Exchange(size_t bytes, const std::function<void(size_t offset, size_t size)>& put,
                const std::function<void(size_t offset, size_t size)>& take) {
    for (size_t offset = 0; offset < bytes; offset += kPieceBytes) {
      const size_t size = std::min(kPieceBytes, bytes - offset);
      put(offset, size);
      if (!Barrier()) return false;
      take(offset, size);
      if (!Barrier()) return false;
    }
    return true;
  }

  // to ← Σ over ranks of their piece's first values, in the order of the ranks.
  void Sum(size_t size, std::byte* to) const {
    for (size_t i = 0; i < size; i += sizeof(float)) {
      float sum = 0;
      for (int other = 0; other < world; ++other) {
        float value = 0;
        std::memcpy(&value, shared->pieces[other].bytes + i, sizeof(float));
        sum = other == 0 ? value : sum + value;
      }
      std::memcpy(to + i, &sum, sizeof(float));
    }
  }

  char name[sizeof(NcclUniqueId)] = {};
  Shared* shared = nullptr;
  int rank = 0;
  int world = 0;
  int64_t operations = 0;            // that were called
  int in_progress = 0;               // polls until the last call has been taken
  std::atomic<bool> failed = false;  // asynchronously
  std::atomic<bool> aborted = false;
  std::atomic<int64_t> queued = 0;  // operations on the stream
};

}  // namespace causeway::worker

namespace {

using Work = std::function<void(NcclComm& comm)>;

struct Queued {
  NcclComm* comm;
  Work work;
};

NcclResult Enqueue(NcclComm* comm, void* stream, Work work) {
  if (comm == nullptr || stream == nullptr || comm->in_progress > 0) return NcclResult::kInvalidArgument;
  const bool error = comm->Fails("FAKE_NCCL_ERROR_AFTER");
  if (error || comm->Fails("FAKE_NCCL_HANG_AFTER")) {
    work = [](NcclComm& self) { self.Wait([] { return false; }); };
  }
  if (error) comm->failed = true;
  ++comm->operations;
  ++comm->queued;
  auto* const fake = static_cast<FakeStream*>(stream);
  fake->enqueue(
      fake->self,
      [](void* argument) {
        const std::unique_ptr<Queued> queued(static_cast<Queued*>(argument));
        if (!queued->comm->aborted) queued->work(*queued->comm);
        --queued->comm->queued;
      },
      new Queued{comm, std::move(work)});
  comm->in_progress = 2;
  return NcclResult::kInProgress;
}

struct PassingOn {                  // from one rank to another
  const std::byte* from = nullptr;  // of a send
  std::byte* to = nullptr;          // of a receive
  size_t size = 0;
  int peer = 0;
  size_t passed = 0;

  // A piece, where the mailbox is ready for one. True: all have passed.
  bool Advance(NcclComm& self) {
    const bool sends = from != nullptr;
    Mailbox& mailbox = sends ? self.shared->mailboxes[self.rank][peer] : self.shared->mailboxes[peer][self.rank];
    if (passed < size && mailbox.full == (sends ? 0 : 1)) {
      const size_t n = std::min(kPieceBytes, size - passed);
      sends ? std::memcpy(mailbox.piece.bytes, from + passed, n) : std::memcpy(to + passed, mailbox.piece.bytes, n);
      mailbox.full = sends ? 1 : 0;
      passed += n;
    }
    return passed == size;
  }
};

struct Group {
  bool open = false;
  NcclComm* comm = nullptr;
  void* stream = nullptr;
  std::vector<PassingOn> passes;
};
thread_local Group group;

void PassAll(NcclComm& self, std::vector<PassingOn> passes) {
  self.Wait([&] {
    bool all = true;
    for (PassingOn& pass : passes) all = pass.Advance(self) && all;
    return all;
  });
}

NcclResult Pass(const PassingOn& pass, NcclComm* comm, void* stream) {
  if (!group.open) return Enqueue(comm, stream, [pass](NcclComm& self) { PassAll(self, {pass}); });
  group.comm = comm;
  group.stream = stream;
  group.passes.push_back(pass);
  return NcclResult::kSuccess;
}

size_t BytesOf(size_t count, NcclType type) { return type == NcclType::kFloat32 ? count * sizeof(float) : count; }

NcclResult Close(NcclComm* comm) {
  while (comm->queued > 0) usleep(kPollUs);
  shm_unlink(comm->name);  // where not all ranks have come
  munmap(comm->shared, sizeof(Shared));
  delete comm;
  return NcclResult::kSuccess;
}

}  // namespace

#define EXPORTED __attribute__((visibility("default")))
// The product's declaration of a function is the one here.
#define FITS(name, member) static_assert(std::is_same_v<decltype(&name), decltype(NcclApi::member)>);

extern "C" {

EXPORTED NcclResult ncclGetVersion(int* version) {
  *version = static_cast<int>(NumberOf("FAKE_NCCL_VERSION", 21403));
  return NcclResult::kSuccess;
}

EXPORTED NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  *id = {};
  std::snprintf(id->bytes, sizeof(id->bytes), "/causeway-fake-nccl-%016llx", static_cast<unsigned long long>(number));
  Shared* const shared = Map(id->bytes, /*make=*/true);
  if (shared == nullptr) return NcclResult::kSystemError;
  munmap(shared, sizeof(Shared));
  return NcclResult::kSuccess;
}

EXPORTED NcclResult ncclCommInitRankConfig(NcclComm** comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config) {
  if (config->magic != 0xcafebeef || config->size < sizeof(NcclConfig) || config->version < 21400 ||
      config->blocking != 0 || ranks > kMostRanks || rank < 0 || rank >= ranks) {
    return NcclResult::kInvalidArgument;
  }
  if (NumberOf("FAKE_NCCL_REFUSE_INIT", 0) != 0) {
    shm_unlink(id.bytes);
    return NcclResult::kUnhandledCudaError;
  }
  Shared* const shared = Map(id.bytes, /*make=*/false);
  if (shared == nullptr) return NcclResult::kSystemError;
  *comm = new NcclComm{.shared = shared, .rank = rank, .world = ranks, .in_progress = 1};
  std::memcpy((*comm)->name, id.bytes, sizeof(id.bytes));
  if (++shared->joined == static_cast<uint32_t>(ranks)) shm_unlink(id.bytes);
  return NcclResult::kInProgress;
}

EXPORTED NcclResult ncclCommGetAsyncError(NcclComm* comm, NcclResult* error) {
  const bool joined = comm->shared->joined >= static_cast<uint32_t>(comm->world);
  if (comm->in_progress > 0 && joined) --comm->in_progress;
  *error = comm->in_progress > 0 ? NcclResult::kInProgress
           : comm->failed        ? NcclResult::kRemoteError
                                 : NcclResult::kSuccess;
  return NcclResult::kSuccess;
}

EXPORTED NcclResult ncclCommAbort(NcclComm* comm) {
  comm->aborted = true;
  return Close(comm);
}

EXPORTED NcclResult ncclCommFinalize(NcclComm* comm) {
  if (comm->in_progress > 0) return NcclResult::kInvalidUsage;
  comm->in_progress = static_cast<int>(NumberOf("FAKE_NCCL_FINALIZE_POLLS", 3));
  return NcclResult::kInProgress;
}

EXPORTED NcclResult ncclCommDestroy(NcclComm* comm) { return Close(comm); }

EXPORTED NcclResult ncclAllReduce(const void* send, void* receive, size_t count, NcclType type, NcclReduction,
                                  NcclComm* comm, void* stream) {
  if (type != NcclType::kFloat32) return NcclResult::kInvalidArgument;
  const auto* const from = static_cast<const std::byte*>(send);
  auto* const to = static_cast<std::byte*>(receive);
  return Enqueue(comm, stream, [=, bytes = BytesOf(count, type)](NcclComm& self) {
    self.Exchange(
        bytes, [&](size_t offset, size_t n) { std::memcpy(self.shared->pieces[self.rank].bytes, from + offset, n); },
        [&](size_t offset, size_t n) { self.Sum(n, to + offset); });
  });
}

EXPORTED NcclResult ncclReduceScatter(const void* send, void* receive, size_t receive_count, NcclType type,
                                      NcclReduction, NcclComm* comm, void* stream) {
  if (type != NcclType::kFloat32) return NcclResult::kInvalidArgument;
  const auto* const from = static_cast<const std::byte*>(send);
  auto* const to = static_cast<std::byte*>(receive);
  return Enqueue(comm, stream, [=, bytes = BytesOf(receive_count, type)](NcclComm& self) {
    for (int part = 0; part < self.world; ++part) {
      const bool done = self.Exchange(
          bytes,
          [&](size_t offset, size_t n) {
            std::memcpy(self.shared->pieces[self.rank].bytes, from + bytes * part + offset, n);
          },
          [&](size_t offset, size_t n) {
            if (part == self.rank) self.Sum(n, to + offset);
          });
      if (!done) return;
    }
  });
}

EXPORTED NcclResult ncclAllGather(const void* send, void* receive, size_t send_count, NcclType type, NcclComm* comm,
                                  void* stream) {
  const auto* const from = static_cast<const std::byte*>(send);
  auto* const to = static_cast<std::byte*>(receive);
  return Enqueue(comm, stream, [=, bytes = BytesOf(send_count, type)](NcclComm& self) {
    self.Exchange(
        bytes, [&](size_t offset, size_t n) { std::memcpy(self.shared->pieces[self.rank].bytes, from + offset, n); },
        [&](size_t offset, size_t n) {
          for (int other = 0; other < self.world; ++other) {
            std::memcpy(to + bytes * other + offset, self.shared->pieces[other].bytes, n);
          }
        });
  });
}

EXPORTED NcclResult ncclBroadcast(const void* send, void* receive, size_t count, NcclType type, int root,
                                  NcclComm* comm, void* stream) {
  const auto* const from = static_cast<const std::byte*>(send);
  auto* const to = static_cast<std::byte*>(receive);
  return Enqueue(comm, stream, [=, bytes = BytesOf(count, type)](NcclComm& self) {
    self.Exchange(
        bytes,
        [&](size_t offset, size_t n) {
          if (self.rank == root) std::memcpy(self.shared->pieces[root].bytes, from + offset, n);
        },
        [&](size_t offset, size_t n) { std::memcpy(to + offset, self.shared->pieces[root].bytes, n); });
  });
}

#ifndef FAKE_NCCL_WITHOUT_SEND
EXPORTED NcclResult ncclSend(const void* bytes, size_t count, NcclType type, int peer, NcclComm* comm, void* stream) {
  return Pass({.from = static_cast<const std::byte*>(bytes), .size = BytesOf(count, type), .peer = peer}, comm, stream);
}
FITS(ncclSend, send)
#endif

EXPORTED NcclResult ncclRecv(void* bytes, size_t count, NcclType type, int peer, NcclComm* comm, void* stream) {
  return Pass({.to = static_cast<std::byte*>(bytes), .size = BytesOf(count, type), .peer = peer}, comm, stream);
}

EXPORTED NcclResult ncclGroupStart() { return group = Group{.open = true}, NcclResult::kSuccess; }

EXPORTED NcclResult ncclGroupEnd() {
  const Group ended = std::exchange(group, {});
  return Enqueue(ended.comm, ended.stream, [passes = ended.passes](NcclComm& self) { PassAll(self, passes); });
}

EXPORTED const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess: return "no error";
    case NcclResult::kRemoteError: return "remote process exited or there was a network error";
    case NcclResult::kUnhandledCudaError: return "unhandled cuda error";
    default: return "another error";
  }
}

EXPORTED const char* ncclGetLastError(NcclComm*) { return "from the fake NCCL"; }

}  // extern "C"

EACH_NCCL_FUNCTION(FITS)
