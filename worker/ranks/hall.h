// Rank 0's side of the rendezvous (worker/ranks/rendezvous.h): a service that only the ranks of a site enter.
//
//   nonce ─► ◄─ nonce, rank 0's proof;  request, the rank's proof ─► … all have come? ◄─ all requests, or why not
//
// Those who have not proven the key are strangers: four for each rank at once, each for 5 s and with messages of 1 MB
// at most; where all places are taken, the one who has said nothing for longest goes, of the address that has most
// (ranks behind one address may share it). One that fails is refused alone, with a line in the log. After a meeting the
// next one begins; after one that failed, all fail. Thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "causeway/v1/ranks.grpc.pb.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "worker/ranks/rank_key.h"

namespace causeway::worker {

inline constexpr char kRank0Role[] = "rank 0";  // of proofs
inline constexpr char kRankRole[] = "rank";

class Hall final : public v1::Rendezvous::Service {
 public:
  static constexpr int kStrangersPerRank = 4;
  static constexpr std::chrono::seconds kLongestStranger{5};

  Hall(int world, RankKey key);
  ~Hall() override;

  grpc::Status Meet(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::MeetReply, v1::MeetMessage>* stream) override;

  // As rank 0 itself. Statuses as Rendezvous::Meet.
  absl::Status Meet(const v1::MeetRequest& request, std::chrono::nanoseconds timeout, v1::MeetReply& reply);

 private:
  struct Meeting {
    explicit Meeting(size_t world, int number) : number(number), ranks(world) {}

    const int number;
    std::vector<std::optional<v1::MeetRequest>> ranks;
    size_t here = 0;
    absl::Status failure;  // for all of them

    bool is_over() const { return !failure.ok() || here == ranks.size(); }
  };

  struct Stranger {
    std::string address;  // without the port
    core::Clock::TimePoint until;
    bool silent = true;
  };

  bool IsRank(grpc::ServerContext* context, grpc::ServerReaderWriter<v1::MeetReply, v1::MeetMessage>& stream,
              v1::MeetRequest& request);
  bool Arrive(grpc::ServerContext* context, const std::string& caller);
  bool MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(grpc::ServerContext* context);
  void EndLateStrangers();
  static absl::Status Enter(Meeting& meeting, const v1::MeetRequest& request);
  static absl::Status Missing(const Meeting& meeting, std::chrono::nanoseconds timeout);

  const RankKey key_;
  core::Mutex mutex_;
  core::Condition changed_;
  std::map<grpc::ServerContext*, Stranger> strangers_ ABSL_GUARDED_BY(mutex_);
  bool closes_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Meeting> meeting_ ABSL_GUARDED_BY(mutex_);
  core::Thread watcher_;  // uses everything above
};

}  // namespace causeway::worker
