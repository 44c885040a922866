// spoiled_answers HOST:PORT --seed=N --one_in=N
// Stands between sites and a coordinator, prints the address to give to the sites, and changes one in N of the
// coordinator's answers: fields to hostile values, bits, lengths. The sites' words pass as they are. Ends with its
// standard input, and prints how many of each method's answers it changed.
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "tests/e2e/relay.h"
#include "tests/transport/byte_buffer.h"
#include "tests/transport/hostile_values.h"

ABSL_FLAG(uint64_t, seed, 1, "of the choice");
ABSL_FLAG(uint64_t, one_in, 10, "how many answers one is changed of");

namespace causeway {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::Message;

class Spoiler final : public RelayWatcher {
 public:
  explicit Spoiler(uint64_t seed) : random_(seed) {}

  void Opened(int call, const std::string& method) override {
    std::lock_guard lock(mutex_);
    const std::string name = method.substr(method.rfind('/') + 1);
    const auto* described = transport::Service().FindMethodByName(name);
    methods_[call] = {name, described == nullptr ? nullptr : described->output_type()};
  }
  void Sent(int, grpc::ByteBuffer&) override {}
  void Received(int call, grpc::ByteBuffer& message) override {
    std::lock_guard lock(mutex_);
    const auto& [name, type] = methods_.at(call);
    if (type == nullptr || Draw(absl::GetFlag(FLAGS_one_in)) != 0) return;
    ++changed_[name];
    message = BufferOf(Draw(4) == 0 ? WithOtherBytes(TextOf(message)) : WithOtherFields(*type, TextOf(message)));
  }
  void HalfClosed(int) override {}
  void Ended(int call, const grpc::Status&) override {
    std::lock_guard lock(mutex_);
    methods_.erase(call);
  }

  void Print() const {
    for (const auto& [method, count] : changed_) std::printf("%6d  %s\n", count, method.c_str());
  }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }

  std::string WithOtherBytes(std::string bytes) {
    if (bytes.empty() || Draw(4) == 0) return bytes + bytes;
    if (Draw(3) == 0) return bytes.substr(0, Draw(bytes.size()));
    for (uint64_t changes = 1 + Draw(3); changes > 0; --changes) {
      bytes[Draw(bytes.size())] ^= static_cast<char>(1 << Draw(8));
    }
    return bytes;
  }

  std::string WithOtherFields(const Descriptor& type, const std::string& bytes) {
    const std::unique_ptr<Message> message(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
    if (!message->ParseFromString(bytes)) return bytes;
    const std::vector<transport::HostileValue>& values = ValuesOf(type);
    for (uint64_t changes = 1 + Draw(2); changes > 0; --changes) values[Draw(values.size())].put(*message);
    return message->SerializePartialAsString();
  }

  const std::vector<transport::HostileValue>& ValuesOf(const Descriptor& type) {
    std::vector<transport::HostileValue>& values = values_[&type];
    if (!values.empty()) return values;
    for (const transport::FieldPath& path : transport::PathsIn(type)) {
      for (transport::HostileValue& value : transport::HostileValues(path)) values.push_back(std::move(value));
    }
    return values;
  }

  std::mutex mutex_;
  std::mt19937_64 random_;
  std::map<int, std::pair<std::string, const Descriptor*>> methods_;  // of open calls, and what answers them
  std::map<const Descriptor*, std::vector<transport::HostileValue>> values_;
  std::map<std::string, int> changed_;
};

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  causeway::Spoiler spoiler(absl::GetFlag(FLAGS_seed));
  causeway::Relay(arguments.at(1), &spoiler).Run();
  spoiler.Print();
  return 0;
}
