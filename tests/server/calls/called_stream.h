// The server's end of a call, as gRPC shows it to a reactor, with the test as client and network: it says when each
// read and write completes, so that any order of them can be had.
//
//   test ── Deliver, CompleteWrite, Break ──► CalledStream ──► OnReadDone, OnWriteDone, OnCancel, OnDone of the reactor
//   test ◄── written(), finished() ────────── CalledStream ◄── StartRead, StartWrite, Finish
//
// Each reactor has to keep to gRPC's rules: one read and one write at a time, and nothing after its Finish. The reactor
// may call from any thread; the test calls from one.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "server/calls/reactors.h"
#include "transport/bulk_message.h"

namespace causeway::server {

template <typename Request, typename Response>
class CalledStream final : public grpc::ServerCallbackReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ~CalledStream() override {
    if (reactor_ != nullptr) Break();
  }

  void Bind(CallReactor* reactor) {
    reactor_ = reactor;
    this->BindReactor(reactor);
  }

  // The client's next message; the reactor has to be reading.
  void Deliver(const Request& message) {
    grpc::ByteBuffer* const into = TakeRead();
    ASSERT_NE(into, nullptr) << "the reactor does not read";
    *into = BytesOf(message);
    reactor_->OnReadDone(true);
  }
  // The client has said all that it has to say.
  void HalfClose() { FailRead(); }
  bool reading() const {
    core::MutexLock lock(mutex_);
    return into_ != nullptr;
  }

  // The write in progress has left.
  void CompleteWrite() {
    {
      core::MutexLock lock(mutex_);
      ASSERT_TRUE(writing_);
      writing_ = false;
    }
    reactor_->OnWriteDone(true);
  }
  // The same, of all writes until the reactor has none.
  void CompleteWrites() {
    while (writing()) CompleteWrite();
  }

  // The connection is lost, or the client gives up: what is in progress fails, and the reactor has to finish.
  void Break() {
    if (!finished()) reactor_->OnCancel();
    FailRead();
    bool writes = false;
    {
      core::MutexLock lock(mutex_);
      writes = std::exchange(writing_, false);
    }
    if (writes) reactor_->OnWriteDone(false);
    EXPECT_TRUE(finished()) << "a reactor that does not finish keeps its call for ever";
    std::exchange(reactor_, nullptr)->OnDone();
  }

  bool writing() const {
    core::MutexLock lock(mutex_);
    return writing_;
  }
  std::vector<Response> written() const {
    core::MutexLock lock(mutex_);
    return written_;
  }
  std::optional<grpc::Status> finished() const {
    core::MutexLock lock(mutex_);
    return finished_;
  }

 private:
  template <typename Message>
  static grpc::ByteBuffer BytesOf(const Message& message) {
    if constexpr (std::is_same_v<Message, grpc::ByteBuffer>) {
      return message;
    } else {
      return transport::ToBytes(message);
    }
  }
  static Response MessageOf(grpc::ByteBuffer bytes) {
    if constexpr (std::is_same_v<Response, grpc::ByteBuffer>) {
      return bytes;
    } else {
      Response message;
      EXPECT_TRUE(transport::FromBytes(bytes, &message));
      return message;
    }
  }

  void SendInitialMetadata() override {}
  void Read(grpc::ByteBuffer* into) override {
    core::MutexLock lock(mutex_);
    EXPECT_EQ(into_, nullptr) << "a second read while one is in progress";
    into_ = into;
  }
  void Write(const grpc::ByteBuffer* response, grpc::WriteOptions) override {
    core::MutexLock lock(mutex_);
    EXPECT_FALSE(writing_) << "a second write while one is in progress";
    EXPECT_FALSE(finished_) << "a write after Finish";
    writing_ = true;
    written_.push_back(MessageOf(*response));
  }
  void WriteAndFinish(const grpc::ByteBuffer* response, grpc::WriteOptions options, grpc::Status status) override {
    Write(response, options);
    Finish(std::move(status));
    core::MutexLock lock(mutex_);
    writing_ = false;  // gRPC tells of no such write
  }
  void Finish(grpc::Status status) override {
    core::MutexLock lock(mutex_);
    EXPECT_FALSE(finished_) << "finished twice";
    finished_ = std::move(status);
  }
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}
  void FailRead() {
    if (TakeRead() != nullptr) reactor_->OnReadDone(false);
  }
  grpc::ByteBuffer* TakeRead() {
    core::MutexLock lock(mutex_);
    return std::exchange(into_, nullptr);
  }

  CallReactor* reactor_ = nullptr;
  mutable core::Mutex mutex_;
  grpc::ByteBuffer* into_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Response> written_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> finished_ ABSL_GUARDED_BY(mutex_);
};

using CalledDownload = CalledStream<grpc::ByteBuffer, grpc::ByteBuffer>;

// The messages that a bulk stream has carried so far.
template <typename Message, typename Stream>
std::vector<Message> MessagesOf(const Stream& stream) {
  std::vector<Message> messages;
  for (grpc::ByteBuffer& bytes : stream.written()) EXPECT_TRUE(transport::FromBytes(bytes, &messages.emplace_back()));
  return messages;
}

}  // namespace causeway::server
