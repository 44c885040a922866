// messages [--seconds=N] [--cases=N] [--seed=N]
// Calls a coordinator, over gRPC, with messages of which some fields hold what no honest peer puts there, chosen by the
// seed. Each field of each request is tried with each of its hostile values (tests/transport/hostile_values.h), alone
// and with others, in a run that has begun and in one that has not. The coordinator must not crash or give up, its
// memory stays, and the next one starts from what it has stored.
//
// Prints the cases of each call, and how they ended. Begins another run every 400 cases, so that a case that fails is
// soon found again: --seed=N --cases=K.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "tests/server/calls/coordinator_for_test.h"
#include "tests/transport/byte_buffer.h"
#include "tests/transport/hostile_values.h"
#include "transport/channel.h"

ABSL_FLAG(int, seconds, 0, "how long; 0: as many cases as --cases says");
ABSL_FLAG(int, cases, 2000, "how many, without --seconds");
ABSL_FLAG(uint64_t, seed, 1, "of the choice");

namespace causeway::server {
namespace {

using google::protobuf::Message;
using transport::FieldPath;
using transport::HostileValue;

constexpr int kCasesOfARun = 400;
constexpr auto kPatience = std::chrono::milliseconds(100);  // for a stream that waits for something
constexpr int64_t kMostGrowthMb = 400;                      // AddressSanitizer keeps what was freed, for a while

int64_t ResidentMb() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kb = 0;
    if (word == "VmRSS:" && status >> kb) return kb / 1024;
  }
  return 0;
}

// A call whose messages are bytes; one operation at a time.
class RawCall {
 public:
  RawCall(grpc::GenericStub& stub, const std::string& method) {
    call_ = stub.PrepareCall(&context_, "/causeway.v1.Coordinator/" + method, &queue_);
    call_->StartCall(this);
    open_ = Wait();
  }
  ~RawCall() {
    queue_.Shutdown();
    void* tag = nullptr;
    for (bool ok = false; queue_.Next(&tag, &ok);) continue;
  }

  void Write(const std::string& bytes) {
    if (!open_) return;
    call_->Write(BufferOf(bytes), this);
    open_ = Wait();
  }
  // All that it answers, until it ends or has been silent for kPatience.
  grpc::Status End() {
    if (open_) {
      call_->WritesDone(this);
      Wait();
    }
    grpc::ByteBuffer answer;
    for (bool answers = open_; answers;) {
      call_->Read(&answer, this);
      answers = Wait();
    }
    grpc::Status status;
    call_->Finish(&status, this);
    Wait();
    return status;
  }

 private:
  // Whether the operation succeeded, in time: else the call is given up.
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kPatience) == grpc::CompletionQueue::GOT_EVENT) {
      return ok;
    }
    context_.TryCancel();
    CHECK(queue_.Next(&tag, &ok));
    return false;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool open_ = false;
};

using Messages = std::vector<std::unique_ptr<Message>>;

template <typename Type>
void Add(Messages& messages, const Type& message) {
  messages.push_back(std::make_unique<Type>(message));
}

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed) {
    for (const google::protobuf::Descriptor* request : transport::Requests()) {
      for (const FieldPath& path : transport::PathsIn(*request)) {
        for (HostileValue& value : transport::HostileValues(path)) values_[request].push_back(std::move(value));
      }
    }
    for (int i = 0; i < transport::Service().method_count(); ++i) methods_.push_back(transport::Service().method(i));
  }

  // One run of a coordinator, or a few cases less.
  void Run(int cases) {
    const std::unique_ptr<Gate> gate =
        *Gate::Create({.limits = {.control_messages_burst = 1e9, .questions_burst = 1e9, .bulk_streams_burst = 1e9}});
    const bool of_two = Draw(3) == 0;
    CoordinatorForTest run(gate.get(), of_two ? kLead : core::Shard{});
    if (Draw(2) == 0 && !of_two) run.Start();
    grpc::GenericStub stub(transport::MakeChannel({"127.0.0.1", run.port}, {}, transport::Traffic::kBulk));
    for (int i = 0; i < cases; ++i) Case(stub);
    Ask(*run.stub);
    CHECK(run.coordinator->status().ok());
    run.Restart();
  }

  void Print() const {
    for (const auto& [call, count] : counts_) std::printf("%8d  %s\n", count, call.c_str());
  }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }

  // An honest question is still answered.
  static void Ask(v1::Coordinator::Stub& stub) {
    grpc::ClientContext call;
    call.set_deadline(std::chrono::system_clock::now() + CoordinatorForTest::kHang);
    v1::DescribeRequest request;
    *request.mutable_context() = ContextForTest("honest");
    v1::RunDescription description;
    CHECK(stub.Describe(&call, request, &description).ok());
  }

  void Case(grpc::GenericStub& stub) {
    const google::protobuf::MethodDescriptor& method = *methods_[Draw(methods_.size())];
    Messages messages = HonestMessages(method.name());
    Message& changed = *messages[Draw(messages.size())];
    std::vector<HostileValue>& values = values_.at(changed.GetDescriptor());
    for (uint64_t changes = 1 + Draw(3); changes > 0;) {
      const HostileValue& value = values[Draw(values.size())];
      if (!value.within && Draw(4) != 0) continue;  // what passes goes further
      value.put(changed);
      --changes;
    }
    RawCall call(stub, method.name());
    for (const auto& message : messages) call.Write(Changed(message->SerializeAsString()));
    const grpc::Status status = call.End();
    ++counts_[absl::StrCat(method.name(), ": ",
                           status.error_code() == 0
                               ? "OK"
                               : absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code())))];
  }

  // Now and then bits of it, too.
  std::string Changed(std::string bytes) {
    if (bytes.empty() || Draw(10) != 0) return bytes;
    for (uint64_t changes = 1 + Draw(3); changes > 0; --changes)
      bytes[Draw(bytes.size())] ^= static_cast<char>(1 << Draw(8));
    return bytes;
  }

  // Messages that a site, a shard or an operator would say.
  Messages HonestMessages(const std::string& method) {
    const std::string site = Draw(2) == 0 ? "a" : "c";
    const int fragment = static_cast<int>(Draw(2));
    const v1::Context context = ContextForTest(site);
    Messages messages;
    if (method == "Control") {
      v1::SiteMessage join, ready, progress, ping, leave;
      *join.mutable_join() = JoinOf(site);
      ready.mutable_ready();
      progress.mutable_progress()->set_step(7);
      ping.mutable_ping()->set_sent_us(7);
      leave.mutable_leave()->set_reason("bye");
      for (const v1::SiteMessage& message : {join, ready, progress, ping, leave}) Add(messages, message);
    } else if (method == "Upload") {
      v1::UploadMessage header, chunk;
      *header.mutable_header() = HeaderOf(site, fragment);
      header.mutable_header()->set_initial(Draw(2) == 0);
      header.mutable_header()->set_steps(4);
      Add(messages, header);
      const auto codec = header.header().initial() ? core::CodecId::kFloat32 : core::CodecId::kInt4;
      for (const std::string& bytes : ChunksOf(map_.fragment(fragment), codec, 1)) {
        chunk.set_chunk(bytes);
        Add(messages, chunk);
      }
    } else if (method == "Follow") {
      v1::FollowMessage first, report;
      *first.mutable_context() = context;
      first.mutable_context()->set_shard(1);
      first.mutable_context()->set_num_shards(2);
      report.mutable_report()->add_versions(1);
      for (const v1::FollowMessage& message : {first, report}) Add(messages, message);
    } else {
      const auto* type = transport::Service().FindMethodByName(method)->input_type();
      messages.emplace_back(google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
      if (const auto* field = type->FindFieldByName("context")) {
        Message& owner = *messages.back();
        owner.GetReflection()->MutableMessage(&owner, field)->CopyFrom(context);
      }
    }
    return messages;
  }

  std::mt19937_64 random_;
  std::vector<const google::protobuf::MethodDescriptor*> methods_;
  std::map<const google::protobuf::Descriptor*, std::vector<HostileValue>> values_;
  std::map<std::string, int> counts_;
  const core::FragmentMap map_ = *core::BuildFragmentMap(ManifestForTest(), ConfigForTest().sync);
};

int Main() {
  spdlog::set_level(spdlog::level::off);
  const core::Clock& clock = core::SystemClock();
  const core::Clock::TimePoint begin = clock.Now();
  const int seconds = absl::GetFlag(FLAGS_seconds), most = absl::GetFlag(FLAGS_cases);
  Fuzzer fuzzer(absl::GetFlag(FLAGS_seed));
  int64_t idle_mb = 0, most_mb = 0;
  int cases = 0;
  for (int run = 0; seconds > 0 ? clock.SecondsSince(begin) < seconds : cases < most; ++run) {
    const int here = seconds > 0 ? kCasesOfARun : std::min(kCasesOfARun, most - cases);
    fuzzer.Run(here);
    cases += here;
    most_mb = std::max(most_mb, ResidentMb());
    if (run == 1) idle_mb = ResidentMb();  // what the allocators keep of one run, they keep of all
    if (run > 0 && most_mb - idle_mb > kMostGrowthMb) {
      std::printf("memory: %ld MB after the first runs, %ld MB now\n", static_cast<long>(idle_mb),
                  static_cast<long>(most_mb));
      return 1;
    }
    if (seconds > 0 && run % 20 == 19)
      std::fprintf(stderr, "%d cases, %.0f s, %ld MB\n", cases, clock.SecondsSince(begin), static_cast<long>(most_mb));
  }
  fuzzer.Print();
  std::printf("%d cases, at most %ld MB\n", cases, static_cast<long>(most_mb));
  return 0;
}

}  // namespace
}  // namespace causeway::server

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return causeway::server::Main();
}
