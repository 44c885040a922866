// session_tape record HOST:PORT FILE: stands between sites and a coordinator, prints the address to give to the sites,
//   and writes what passes to FILE, until its standard input ends.
// session_tape replay HOST:PORT FILE: says to a coordinator what the sites said, in the order of the tape, and checks
//   that it answers with the bytes of then. Ends with 1 and the line of the tape where it does not.
//
// A tape has a JSON object a line, in the order in which things passed:
//
//   {"call": 3, "open": "/causeway.v1.Coordinator/Upload"}     {"call": 3, "sent": "<hexadecimal>"}
//   {"call": 3, "ended": 0}                                    {"call": 3, "received": "<hexadecimal>"}
//
// ("ended" with the status code, "half_closed" when the site has said all). Downloads are compared byte by byte. The
// verdict on an upload comes on the stripe that the coordinator heard last, or on several that end together: what is
// compared is which verdicts each upload has. All else that the coordinator says depends on the clock, its epochs and
// its words: there only the kinds of messages are compared, and on Control notices, holds and pongs not at all; nor are
// beats anywhere.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "causeway/v1/coordinator.pb.h"
#include "tests/e2e/relay.h"
#include "tests/transport/byte_buffer.h"

namespace {

using causeway::TextOf;
using Message = grpc::ByteBuffer;

// ---- Recording ----

class Tape : public causeway::RelayWatcher {
 public:
  explicit Tape(const std::string& path) : file_(path) {}

  void Opened(int call, const std::string& method) override {
    {
      std::lock_guard lock(mutex_);
      if (method.ends_with("/Control")) control_.insert(call);
    }
    Write({{"call", call}, {"open", method}});
  }
  void Sent(int call, Message& message) override {
    Write({{"call", call}, {"sent", absl::BytesToHexString(TextOf(message))}});
  }
  void Received(int call, Message& message) override {
    WithoutLife(call, message);
    Write({{"call", call}, {"received", absl::BytesToHexString(TextOf(message))}});
  }
  void HalfClosed(int call) override { Write({{"call", call}, {"half_closed", true}}); }
  void Ended(int call, const grpc::Status& status) override {
    Write({{"call", call}, {"ended", static_cast<int>(status.error_code())}});
  }

 private:
  // Sites say to which life of the coordinator they have spoken, and one that replays the tape is another life.
  void WithoutLife(int call, Message& message) {
    std::lock_guard lock(mutex_);
    causeway::v1::CoordinatorMessage said;
    if (!control_.contains(call) || !said.ParseFromString(TextOf(message)) || !said.has_welcome()) return;
    said.mutable_welcome()->clear_life();
    message = causeway::BufferOf(said.SerializeAsString());
  }

  void Write(const nlohmann::json& line) {
    std::lock_guard lock(mutex_);
    file_ << line.dump() << std::endl;
  }

  std::mutex mutex_;
  std::set<int> control_;  // calls
  std::ofstream file_;
};

// ---- Replaying ----

// The replies to each upload, whichever of its stripes they came on.
struct Replies {
  using OfUploads = std::map<std::string, std::set<std::string>>;  // by the header, less its stripe
  OfUploads on_tape, now;
};

class ReplayedCall {
 public:
  ReplayedCall(grpc::GenericStub& stub, const std::string& method)
      : is_control_(method.ends_with("/Control")),
        is_upload_(method.ends_with("/Upload")),
        is_download_(method.ends_with("/Download")) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = stub.PrepareCall(&context_, method, &queue_);
    stream_->StartCall(nullptr);
    Wait();
  }

  bool Send(const std::string& text) {
    if (is_upload_ && upload_.empty()) upload_ = UploadOf(text);
    stream_->Write(causeway::BufferOf(text), nullptr);
    return Wait();
  }
  bool HalfClose() {
    stream_->WritesDone(nullptr);
    return Wait();
  }
  // Empty: as on the tape.
  std::string Receive(const std::string& expected, Replies& replies) {
    if ((is_control_ && MayCome(expected)) || IsBeat(expected)) return "";
    if (is_upload_) {
      replies.on_tape[upload_].insert(expected);
      return "";
    }
    std::string got;
    do {
      Message message;
      stream_->Read(&message, nullptr);
      if (!Wait()) return "expected a message, got the call's end: " + End(replies).error_message();
      got = TextOf(message);
    } while ((is_control_ && MayCome(got)) || IsBeat(got));
    const bool same = is_download_ ? got == expected : got[0] == expected[0];
    return same ? "" : "expected " + absl::BytesToHexString(expected) + ", got " + absl::BytesToHexString(got);
  }
  grpc::Status End(Replies& replies) {
    for (Message rest; stream_->Read(&rest, nullptr), Wait();) {  // what came when it came
      if (is_upload_ && !IsBeat(TextOf(rest))) replies.now[upload_].insert(TextOf(rest));
    }
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    Wait();
    return status;
  }
  void Cancel() { context_.TryCancel(); }

 private:
  // CoordinatorMessage: notice (5), hold (7) and pong (8) come when they come.
  static bool MayCome(const std::string& text) {
    const int field = text[0] >> 3;
    return field == 5 || field == 7 || field == 8;
  }

  // DownloadMessage: beat (4), UploadReply: beat (3): said to streams that wait at a moment of the coordinator's clock.
  bool IsBeat(const std::string& text) const {
    const int field = text[0] >> 3;
    return (is_download_ && field == 4) || (is_upload_ && field == 3);
  }

  // The header of an upload's stripe, less the stripe.
  static std::string UploadOf(const std::string& text) {
    causeway::v1::UploadMessage message;
    message.ParseFromString(text);
    message.mutable_header()->clear_stripe();
    return message.header().ShortDebugString();
  }

  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  const bool is_control_;
  const bool is_upload_;
  const bool is_download_;
  std::string upload_;  // once its header is sent
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

// One line of the tape; what differs, if anything.
std::string ReplayLine(const nlohmann::json& line, grpc::GenericStub& stub,
                       std::map<int, std::unique_ptr<ReplayedCall>>& calls, Replies& replies) {
  const int number = line["call"];
  if (line.contains("open")) calls[number] = std::make_unique<ReplayedCall>(stub, line["open"]);
  ReplayedCall& call = *calls.at(number);
  const auto bytes = [&line](const char* key) { return absl::HexStringToBytes(line[key].get<std::string>()); };
  if (line.contains("sent") && !call.Send(bytes("sent"))) return "the call ended: " + call.End(replies).error_message();
  if (line.contains("half_closed") && !call.HalfClose()) return "the call ended: " + call.End(replies).error_message();
  if (line.contains("received")) return call.Receive(bytes("received"), replies);
  if (line.contains("ended")) {
    const int expected = line["ended"];
    if (expected == grpc::StatusCode::CANCELLED) call.Cancel();
    const grpc::Status status = call.End(replies);
    if (status.error_code() != expected) {
      return "expected the call to end with " + std::to_string(expected) + ", got " +
             std::to_string(status.error_code()) + " " + status.error_message();
    }
  }
  return "";
}

std::string Describe(const std::set<std::string>& replies) {
  return absl::StrCat("[",
                      absl::StrJoin(replies, ", ",
                                    [](std::string* out, const std::string& reply) {
                                      absl::StrAppend(out, absl::BytesToHexString(reply));
                                    }),
                      "]");
}

bool Replay(const std::string& coordinator, const std::string& path) {
  grpc::GenericStub stub(grpc::CreateChannel(coordinator, grpc::InsecureChannelCredentials()));
  std::map<int, std::unique_ptr<ReplayedCall>> calls;
  Replies replies;
  std::ifstream tape(path);
  int number = 0;
  for (std::string line; std::getline(tape, line);) {
    ++number;
    const std::string differs = ReplayLine(nlohmann::json::parse(line), stub, calls, replies);
    if (differs.empty()) continue;
    std::fprintf(stderr, "%s:%d: %s\n", path.c_str(), number, differs.c_str());
    return false;
  }
  for (const auto& [upload, expected] : replies.on_tape) {
    if (replies.now[upload] == expected) continue;
    std::fprintf(stderr, "%s: upload {%s}: expected the replies %s, got %s\n", path.c_str(), upload.c_str(),
                 Describe(expected).c_str(), Describe(replies.now[upload]).c_str());
    return false;
  }
  if (replies.now.size() != replies.on_tape.size()) {
    std::fprintf(stderr, "%s: expected replies to %zu uploads, got them to %zu\n", path.c_str(), replies.on_tape.size(),
                 replies.now.size());
    return false;
  }
  std::printf("%d lines\n", number);
  return number > 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 4 ? argv[1] : "";
  if (what == "record") {
    Tape tape(argv[3]);
    causeway::Relay(argv[2], &tape).Run();
    return 0;
  }
  if (what == "replay") return Replay(argv[2], argv[3]) ? 0 : 1;
  std::fprintf(stderr, "expected: session_tape record|replay HOST:PORT FILE\n");
  return 2;
}
