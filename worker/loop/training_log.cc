#include "worker/loop/training_log.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace causeway::worker {
namespace {

using Line = nlohmann::ordered_json;

Line Number(double value) { return std::isfinite(value) ? Line(value) : Line(nullptr); }

Line Begin(const char* kind, int64_t unix_ms, const core::SiteId& site) {
  return {{"kind", kind}, {"unix_ms", unix_ms}, {"site", site}};
}

// Numbers of a report; texts and flags are the status's.
struct FigureWriter {
  Line& line;

  void operator()(const char* name, core::Figure, double value) { line[name] = Number(value); }
  void operator()(const char* name, core::Figure, int64_t value) { line[name] = value; }
  void operator()(const char* name, core::Figure, const std::optional<double>& value) {
    if (value && std::string_view(name) != "eval_loss") line[name] = Number(*value);  // which has a line of its own
  }
  void operator()(const char*, core::Figure, bool) {}
  void operator()(const char*, core::Figure, const std::string&) {}
  void List(auto&&...) {}
  void Part(auto&&...) {}
  void Each(auto&&...) {}
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingLog>> TrainingLog::Open(const std::string& path, core::SiteId site,
                                                               double step_period_s) {
  if (path.empty()) return nullptr;
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot open ", path, " for appending: ", std::strerror(errno)));
  }
  return std::unique_ptr<TrainingLog>(new TrainingLog(file, path, std::move(site), step_period_s));
}

TrainingLog::TrainingLog(std::FILE* file, std::string path, core::SiteId site, double step_period_s)
    : path_(std::move(path)),
      site_(std::move(site)),
      step_period_ms_(std::llround(1000 * step_period_s)),
      file_(file) {}

TrainingLog::~TrainingLog() { std::fclose(file_); }

// logrotate and its like put another file there, or take it away.
void TrainingLog::OpenAgainIfMoved() {
  struct stat opened = {}, named = {};
  if (::fstat(::fileno(file_), &opened) != 0 || !S_ISREG(opened.st_mode)) return;
  const bool there = ::stat(path_.c_str(), &named) == 0;
  if (there && named.st_dev == opened.st_dev && named.st_ino == opened.st_ino) return;
  if (std::FILE* const file = std::fopen(path_.c_str(), "ae")) std::fclose(std::exchange(file_, file));
}

void TrainingLog::Append(const std::string& line) {
  core::MutexLock lock(mutex_);
  OpenAgainIfMoved();
  const bool written = std::fputs(line.c_str(), file_) >= 0 && std::fputc('\n', file_) >= 0 && std::fflush(file_) == 0;
  if (written) return;
  std::clearerr(file_);
  if (!std::exchange(failed_, true)) {
    spdlog::error("cannot write to {}: {}; training goes on, lines are lost", path_, std::strerror(errno));
  }
}

void TrainingLog::Step(int64_t unix_ms, const core::Progress& progress, core::Version rounds) {
  {
    core::MutexLock lock(mutex_);
    if (unix_ms - stepped_ms_ < step_period_ms_) return;
    stepped_ms_ = unix_ms;
  }
  Line line = Begin("step", unix_ms, site_);
  FigureWriter writer{line};
  Figures(progress, writer);
  line["utilization"] = progress.wall_s > 0 ? Number(progress.compute_s / progress.wall_s) : Line(nullptr);
  line["rounds"] = rounds;
  line["up_bytes_per_s"] = Number(progress.link.up_bytes_per_s);
  line["down_bytes_per_s"] = Number(progress.link.down_bytes_per_s);
  Append(line.dump());
}

void TrainingLog::Eval(int64_t unix_ms, double loss, const std::vector<core::Version>& versions) {
  Line line = Begin("eval", unix_ms, site_);
  line["loss"] = Number(loss);
  line["versions"] = versions;
  Append(line.dump());
}

void TrainingLog::Checkpoint(int64_t unix_ms, core::Step step, double seconds) {
  Line line = Begin("checkpoint", unix_ms, site_);
  line["step"] = step;
  line["seconds"] = seconds;
  Append(line.dump());
}

void TrainingLog::Export(int64_t unix_ms, const std::string& path, double seconds) {
  Line line = Begin("export", unix_ms, site_);
  line["path"] = path;
  line["seconds"] = seconds;
  Append(line.dump(-1, ' ', false, Line::error_handler_t::replace));
}

}  // namespace causeway::worker
