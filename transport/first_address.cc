#include "transport/first_address.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "formats/posix_file.h"
#include "transport/messages.h"

namespace causeway::transport {
namespace {

constexpr int64_t kApartMs = 250;
constexpr int64_t kTimeoutMs = 5'000;

struct Candidate {
  sockaddr_storage at = {};
  socklen_t bytes = 0;
  std::string host;  // numeric
};

std::vector<Candidate> CandidatesOf(const core::Address& address, const std::string& preferred) {
  addrinfo* found = nullptr;
  const addrinfo hints{.ai_flags = AI_ADDRCONFIG, .ai_socktype = SOCK_STREAM};
  if (::getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  std::vector<Candidate> of_first, of_other;  // families
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    Candidate one{.bytes = entry->ai_addrlen};
    std::memcpy(&one.at, entry->ai_addr, entry->ai_addrlen);
    char host[NI_MAXHOST] = "";
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    one.host = host;
    (entry->ai_family == found->ai_family ? of_first : of_other).push_back(one);
  }
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < std::max(of_first.size(), of_other.size()); ++i) {
    if (i < of_first.size()) candidates.push_back(of_first[i]);
    if (i < of_other.size()) candidates.push_back(of_other[i]);
  }
  std::stable_partition(candidates.begin(), candidates.end(),
                        [&](const Candidate& one) { return one.host == preferred; });
  return candidates;
}

// Index of the first that answers, −1: none.
int Race(const std::vector<Candidate>& candidates) {
  const core::Clock& clock = core::SystemClock();
  std::vector<formats::FileDescriptor> sockets;
  std::vector<pollfd> polled;
  size_t failed = 0;
  int64_t next_ms = clock.NowMs(), end_ms = next_ms + kTimeoutMs;
  while (failed < candidates.size() && clock.NowMs() < end_ms) {
    const size_t begun = sockets.size();
    if (begun < candidates.size() && (clock.NowMs() >= next_ms || failed == begun)) {
      const Candidate& one = candidates[begun];
      sockets.emplace_back(::socket(one.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      const int socket = sockets.back().get();
      const int result = ::connect(socket, reinterpret_cast<const sockaddr*>(&one.at), one.bytes);
      if (result == 0) return static_cast<int>(begun);
      const bool waits = errno == EINPROGRESS;
      failed += waits ? 0 : 1;
      polled.push_back({.fd = waits ? socket : -1, .events = POLLOUT, .revents = 0});
      next_ms = clock.NowMs() + kApartMs;
      end_ms = next_ms + kTimeoutMs;
      continue;
    }
    const int64_t until_ms = begun < candidates.size() ? next_ms : end_ms;
    const auto wait_ms = static_cast<int>(std::max<int64_t>(1, until_ms - clock.NowMs()));
    if (::poll(polled.data(), polled.size(), wait_ms) < 0 && errno != EINTR) return -1;
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      int error = 0;
      socklen_t bytes = sizeof(error);
      ::getsockopt(polled[i].fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
      if (error == 0) return static_cast<int>(i);
      polled[i].fd = -1;
      ++failed;
    }
  }
  return -1;
}

}  // namespace

std::optional<core::Address> FirstThatAnswers(const core::Address& address, const std::string& preferred) {
  if (core::IsNumericAddress(address.host)) return std::nullopt;
  const std::vector<Candidate> candidates = CandidatesOf(address, preferred);
  if (candidates.size() < 2) return std::nullopt;
  const int first = Race(candidates);
  return first < 0 ? std::nullopt : std::optional(core::Address{candidates[first].host, address.port});
}

namespace {

constexpr auto kTimeout = std::chrono::milliseconds(kTimeoutMs);
constexpr auto kOthersMayTake = std::chrono::seconds(1);

struct Answered {
  core::Mutex mutex;
  core::Condition changed;
  size_t answers ABSL_GUARDED_BY(mutex) = 0;
  Asked asked ABSL_GUARDED_BY(mutex);
};

// Owned by its callback.
struct Question {
  std::unique_ptr<v1::Coordinator::Stub> stub;
  grpc::ClientContext context;
  v1::DescribeRequest request;
  v1::RunDescription description;
};

// `answer`: with null if there was none, or it was of another run.
void Ask(const Address& address, const ChannelOptions& options, const core::RunId& run, bool starts,
         std::function<void(const v1::RunDescription* description, grpc::StatusCode code)> answer) {
  auto question = std::make_shared<Question>();
  question->stub = v1::Coordinator::NewStub(MakeChannel(address, options, Traffic::kControl));
  question->context.set_deadline(core::SystemClock().Calendar() + kTimeout);
  question->request.mutable_context()->set_protocol(kProtocol);
  question->request.set_starts(starts);
  question->request.set_who_leads(true);
  Question& asks = *question;
  asks.stub->async()->Describe(
      &asks.context, &asks.request, &asks.description, [question, run, answer](const grpc::Status& status) {
        const bool is_it = status.ok() && (run.empty() || run == question->description.run_id());
        answer(is_it ? &question->description : nullptr, status.error_code());
      });
}

}  // namespace

void Note(const Address& address, const v1::RunDescription& run, Asked& asked) {
  if (run.mirrored() > asked.mark) {
    asked.furthest = address;
    asked.mark = run.mirrored();
  }
  if (!run.standby_of().empty()) asked.marks[address.Text()] = run.mirrored();
  if (!run.standby_of().empty() && run.epoch() > asked.seen) {
    asked.latest = address;
    asked.seen = run.epoch();
  }
  if (!run.standby_of().empty() || run.epoch() <= asked.epoch) return;
  asked.leader = address;
  asked.epoch = run.epoch();
  asked.lineage = run.lineage();
}

absl::StatusOr<std::vector<Address>> ParseAddresses(const std::string& name, const std::string& text) {
  std::vector<Address> addresses;
  for (const std::string& one : std::vector<std::string>(absl::StrSplit(text, '|'))) {
    ASSIGN_OR_RETURN(Address address, core::ParseAddress(name, one));
    addresses.push_back(std::move(address));
  }
  return addresses;
}

Asked FindLeader(const std::vector<Address>& addresses, const ChannelOptions& options, const core::RunId& run,
                 bool starts) {
  const auto answered = std::make_shared<Answered>();
  for (const Address& address : addresses) {
    Ask(address, options, run, starts,
        [address, answered](const v1::RunDescription* description, grpc::StatusCode code) {
          const core::MutexLock lock(answered->mutex);
          ++answered->answers;
          if (code != grpc::OK) answered->asked.silent.push_back(address);
          if (code == grpc::UNAVAILABLE || code == grpc::DEADLINE_EXCEEDED)
            answered->asked.unreached.push_back(address);
          if (description != nullptr) Note(address, *description, answered->asked);
          answered->changed.NotifyAll();
        });
  }
  core::MutexLock lock(answered->mutex);
  const auto all = [&]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(answered->mutex) { return answered->answers == addresses.size(); };
  const auto one = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(answered->mutex) { return answered->asked.leader || all(); };
  lock.WaitFor(answered->changed, 2 * kTimeout, one);  // each has its deadline
  lock.WaitFor(answered->changed, starts ? 2 * kTimeout : kOthersMayTake, all);
  return answered->asked;
}

void AskWhoLeads(const std::vector<Address>& addresses, const ChannelOptions& options, const core::RunId& run,
                 const std::function<void(uint64_t epoch)>& leads) {
  for (const Address& address : addresses) {
    Ask(address, options, run, /*starts=*/false, [leads](const v1::RunDescription* description, grpc::StatusCode) {
      if (description != nullptr && description->standby_of().empty()) leads(description->epoch());
    });
  }
}

}  // namespace causeway::transport
