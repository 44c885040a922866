#include "ctl/program_log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "core/text.h"

namespace causeway::ctl {
namespace {

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

}  // namespace causeway::ctl
