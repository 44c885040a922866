#include "worker/library/log_queue.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

#include "transport/grpc_log.h"

namespace causeway::worker {
namespace {

// LogQueue has its own lock.
class QueueSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit QueueSink(LogQueue* queue) : queue_(queue) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(message.time.time_since_epoch());
    queue_->Add({.level = message.level,
                 .unix_ms = since.count(),
                 .text = std::string(message.payload.data(), message.payload.size())});
  }
  void flush_() override {}

  LogQueue* const queue_;
};

}  // namespace

LogQueue& LogQueue::Get() {
  static LogQueue* const queue = [] {
    auto* made = new LogQueue;  // gRPC's threads may outlive static objects
    auto logger = std::make_shared<spdlog::logger>("causeway", std::make_shared<QueueSink>(made));
    logger->set_level(spdlog::level::debug);
    spdlog::set_default_logger(std::move(logger));
    transport::RouteGrpcLog();
    return made;
  }();
  return *queue;
}

void LogQueue::Add(LogLine line) {
  core::MutexLock lock(mutex_);
  lines_.push_back(std::move(line));
  if (lines_.size() <= kMaxLines) return;
  const int64_t lost = lines_.front().dropped + 1;
  lines_.pop_front();
  lines_.front().dropped += lost;
}

std::optional<LogLine> LogQueue::Take() {
  core::MutexLock lock(mutex_);
  if (lines_.empty()) return std::nullopt;
  LogLine line = std::move(lines_.front());
  lines_.pop_front();
  return line;
}

}  // namespace causeway::worker
