#include "ctl/program_log.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/text.h"

namespace causeway::ctl {
namespace {

constexpr int kPollMs = 100;
constexpr auto kAgain = std::chrono::milliseconds(2);  // for a reader that takes little at a time

int64_t NowMs() { return core::SystemClock().NowMs(); }

bool HasRoom(int fd, int timeout_ms) {
  pollfd poll{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&poll, 1, timeout_ms) > 0;
}

void Append(const std::string& text, spdlog::memory_buf_t& out) { out.append(text.data(), text.data() + text.size()); }

// The message without characters that move a terminal's cursor: names and paths in it come from people and peers.
class TextMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    Append(core::Printable({message.payload.data(), message.payload.size()}), out);
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override { return std::make_unique<TextMessage>(); }
};

// The message as a JSON string, quotes included.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text(message.payload.data(), message.payload.size());
    Append(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), out);
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override { return std::make_unique<JsonMessage>(); }
};

constexpr int64_t kLastLinesMs = 500;  // at the end, for a reader that is slow

// Never destroyed: other threads may log while the program ends.
LogWriter* writer = nullptr;

const char* ColorOf(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug: return "\033[36m";
    case spdlog::level::info: return "\033[32m";
    case spdlog::level::warn: return "\033[33m\033[1m";
    case spdlog::level::err: return "\033[31m\033[1m";
    case spdlog::level::critical: return "\033[1m\033[41m";
    default: return "\033[37m";
  }
}

class WriterSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit WriterSink(bool colors) : colors_(colors) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string text(line.data(), line.size());
    if (colors_ && message.color_range_end > message.color_range_start) {
      text.insert(message.color_range_end, "\033[m");
      text.insert(message.color_range_start, ColorOf(message.level));
    }
    writer->Add(std::move(text));
  }
  void flush_() override {}

  const bool colors_;
};

}  // namespace

core::LogFigures ProgramLogFigures() { return writer == nullptr ? core::LogFigures{} : writer->figures(); }

void SetUpLog(LogFormat format) {
  if (writer == nullptr) {
    writer = new LogWriter(STDERR_FILENO);
    std::atexit([] { writer->Flush(kLastLinesMs); });
  }
  auto logger = std::make_shared<spdlog::logger>("causeway", std::make_shared<WriterSink>(isatty(STDERR_FILENO) != 0));
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  if (format == LogFormat::kJson) {
    formatter->add_flag<JsonMessage>('*').set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":%*})");
  } else {
    formatter->add_flag<TextMessage>('*').set_pattern("%Y-%m-%d %H:%M:%S.%eZ %^%l%$ %*");
  }
  logger->set_formatter(std::move(formatter));
  logger->flush_on(spdlog::level::info);
  if (const char* level = std::getenv("CAUSEWAY_LOG"); level != nullptr)
    logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

// A description of its own, where there can be one, because O_NONBLOCK would change that of everybody who shares it.
LogWriter::LogWriter(int fd) : fd_(fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) return;
  is_socket_ = S_ISSOCK(status.st_mode);
  if (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)) return;
  const int own = open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (own >= 0) fd_ = own;
}

size_t LogWriter::Write(const std::string& text) {
  size_t taken = 0;
  while (taken < text.size() && HasRoom(fd_, 0)) {
    const size_t piece = std::min<size_t>(text.size() - taken, PIPE_BUF);  // a pipe with room takes as much
    const ssize_t written = is_socket_ ? send(fd_, text.data() + taken, piece, MSG_DONTWAIT | MSG_NOSIGNAL)
                                       : write(fd_, text.data() + taken, piece);
    if (written >= 0) {
      taken += static_cast<size_t>(written);
    } else if (errno != EINTR && errno != EAGAIN) {
      return text.size();  // a reader that has gone, or a full disk: the line is lost, as ever
    } else if (errno == EAGAIN) {
      break;
    }
  }
  return taken;
}

void LogWriter::Drain() {
  while (!lines_.empty()) {
    const size_t taken = Write(lines_.front());
    bytes_ -= taken;
    lines_.front().erase(0, taken);
    if (taken > 0 && stuck_ms_ != 0) stuck_ms_ = NowMs();
    if (!lines_.front().empty()) return;
    lines_.pop_front();
    if (unsaid_ == 0) continue;
    lines_.push_front(absl::StrCat("... ", std::exchange(unsaid_, 0), " lines were dropped: the log was not read\n"));
    bytes_ += lines_.front().size();
  }
  stuck_ms_ = 0;
  changed_.NotifyAll();
}

void LogWriter::Add(std::string line) {
  core::MutexLock lock(mutex_);
  bytes_ += line.size();
  lines_.push_back(std::move(line));
  Drain();
  while (bytes_ > kMostBytes && lines_.size() > 2) {  // the first is partly written
    bytes_ -= lines_[1].size();
    lines_.erase(lines_.begin() + 1);
    ++dropped_;
    ++unsaid_;
  }
  if (lines_.empty() || running_) return;
  if (stuck_ms_ == 0) stuck_ms_ = NowMs();
  running_ = true;
  std::thread([this] { Run(); }).detach();
}

void LogWriter::Run() {
  while (true) {
    if (HasRoom(fd_, kPollMs)) std::this_thread::sleep_for(kAgain);
    core::MutexLock lock(mutex_);
    Drain();
    running_ = !lines_.empty();
    if (!running_) return;
  }
}

core::LogFigures LogWriter::figures() const {
  core::MutexLock lock(mutex_);
  const int64_t stuck_ms = stuck_ms_ == 0 ? 0 : NowMs() - stuck_ms_;
  return {.stuck_s = static_cast<double>(stuck_ms) * 1e-3, .waiting = std::ssize(lines_), .dropped = dropped_};
}

void LogWriter::Flush(int64_t most_ms) {
  core::MutexLock lock(mutex_);
  lock.WaitFor(changed_, std::chrono::milliseconds(most_ms),
               [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lines_.empty(); });
}

}  // namespace causeway::ctl
