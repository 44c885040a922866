#include "ctl/program_log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
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

}  // namespace

void SetUpLog(LogFormat format) {
  auto logger = std::make_shared<spdlog::logger>("causeway", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
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
