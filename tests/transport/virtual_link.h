// A real link to a scripted coordinator, on the simulated machine and network of tests/sim: in virtual time, with the
// order of its threads and the delays of its messages from a seed.
//
//   VirtualLink world(seed);  world.Run([&] { … link calls, Await … });  ──►  what the listener, owners and coordinator
//   saw
//
// The body runs on a thread of the site's process; a test looks at the rest between and after its calls.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/transport/scripted_coordinator.h"
#include "transport/grpc_link.h"

namespace causeway::transport {

// Names of its two ends in the network.
inline constexpr char kHub[] = "hub", kSite[] = "site";

// All that a link told its site.
class RecordingListener final : public LinkListener {
 public:
  Standing GetStanding() override { return standing; }
  void OnWelcome(const Welcome& welcome) override {
    welcomes.push_back(welcome);
    said.push_back("welcome");
    if (on_welcome) on_welcome();
  }
  void OnSeedRequest() override { said.push_back("seed"); }
  void OnEntry(const core::Entry& entry) override { said.push_back("entry " + std::to_string(entry.step)); }
  void OnNotice(const std::string& reason) override { said.push_back("notice " + reason); }
  void OnDrain(const std::string& reason) override { said.push_back("drain " + reason); }
  void OnHold(bool held) override { said.push_back(held ? "hold" : "goes on"); }
  void OnFailure(const absl::Status& status) override { failures.push_back(status); }

  Standing standing{.joining = true};
  std::function<void()> on_welcome;
  std::vector<Welcome> welcomes;
  std::vector<std::string> said;
  std::vector<absl::Status> failures;
};

// All that the owner of a transfer saw of it.
struct Seen {
  Payload chunks;  // by index; "" has not come
  int headers = 0;
  int doubles = 0;  // chunks that came again without a header between
  std::vector<absl::Status> ends;
  uint64_t digest = 0;
  core::Clock::TimePoint ended_at;
  bool done() const { return !ends.empty(); }
};
using SeenPtr = std::shared_ptr<Seen>;

class VirtualLink {
 public:
  explicit VirtualLink(uint64_t seed, LinkOptions options = {}, sim::NetworkOptions network = {});
  ~VirtualLink();

  // Runs the body until it ends, which has to be within some hours of virtual time.
  void Run(std::function<void()> body);
  // The same with a link that has been welcomed, and that has left and ended when it returns.
  void RunWelcomed(const std::function<void()>& body);

  // ---- On the body's thread ----
  void Start();  // makes the link and starts it
  bool Await(const std::function<bool()>& holds, core::Clock::Duration time = std::chrono::minutes(30));
  void AwaitWelcome() {
    EXPECT_TRUE(Await([&] { return !listener.welcomes.empty(); }));
  }
  void Sleep(core::Clock::Duration time);
  int64_t NowMs() const { return core::SystemClock().NowMs(); }
  SeenPtr Upload(core::FragmentId fragment, core::Version base, Payload payload, bool initial = false);
  SeenPtr Download(core::FragmentId fragment, bool anchor, size_t most_chunks);
  SeenPtr Fetch(core::FragmentId fragment, core::Version version, bool anchor, int chunks, size_t bytes = 40);

  // ---- Faults ----
  // The message that the network carries as number `count` from here on, whichever way, is the last of its call, or of
  // all calls.
  void CutAfter(int count, bool whole_link);
  int carried() const { return carried_; }  // messages of bulk calls
  void Listen(bool listens);                // refuses connections

  sim::Machine machine;
  sim::Network network;
  std::shared_ptr<ScriptedCoordinator> coordinator = std::make_shared<ScriptedCoordinator>();
  RecordingListener listener;
  std::unique_ptr<GrpcLink> link;
  // Sees each message that a reactor of the link or the coordinator is handed.
  std::function<void(const sim::Call& call, bool to_client, const std::string& message)> observe;

 private:
  const uint64_t seed_;
  LinkOptions options_;
  std::shared_ptr<sim::Process> hub_, site_;
  std::vector<std::weak_ptr<const std::vector<core::Bytes>>> sent_;
  int carried_ = 0;
  int cut_after_ = -1;
  bool cuts_link_ = false;
};

// The chunks that came are the payload, each once; told once that it is well; by this digest.
void ExpectFetched(const Seen& seen, const Payload& payload, uint64_t digest);

}  // namespace causeway::transport
