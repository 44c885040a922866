#include "worker/library/external_run.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/text.h"
#include "formats/run_advice.h"
#include "formats/run_yaml.h"
#include "transport/first_address.h"
#include "worker/library/json_object.h"

namespace causeway::worker {
namespace {

constexpr double kBytesPerMbit = 1e6 / 8;

// Reads the options that are the same for all shards.
absl::StatusOr<transport::LinkOptions> ReadLinkOptions(JsonObject& options) {
  transport::LinkOptions link;
  RETURN_IF_ERROR(options.Read("site", link.site));
  if (!core::IsValidName(link.site)) {
    return options.Wrong("site", "1 to 64 letters, digits, '.', '_' or '-'", core::Quoted(link.site));
  }
  RETURN_IF_ERROR(options.Read("connect_timeout_s", link.connect_timeout_s));
  if (link.connect_timeout_s < 0) {
    return options.Wrong("connect_timeout_s", "0 or more seconds", absl::StrCat(link.connect_timeout_s));
  }
  double up_mbit = 0, down_mbit = 0;
  RETURN_IF_ERROR(options.Read("max_up_mbit", up_mbit));
  RETURN_IF_ERROR(options.Read("max_down_mbit", down_mbit));
  link.max_up_bytes_per_s = up_mbit * kBytesPerMbit;
  link.max_down_bytes_per_s = down_mbit * kBytesPerMbit;
  return link;
}

absl::StatusOr<transport::ClientFlags> ReadFlags(JsonObject& options) {
  transport::ClientFlags flags;
  RETURN_IF_ERROR(options.Read("insecure", flags.insecure));
  RETURN_IF_ERROR(options.Read("use_proxy", flags.use_proxy));
  RETURN_IF_ERROR(options.Read("tls_ca", flags.tls_ca));
  RETURN_IF_ERROR(options.Read("tls_cert", flags.tls_cert));
  RETURN_IF_ERROR(options.Read("tls_key", flags.tls_key));
  RETURN_IF_ERROR(options.Read("token_file", flags.token_file));
  return flags;
}

// Its URL, seen from here; empty where it is on the coordinator's machine alone.
std::string PageSeenFrom(const core::Address& coordinator, const std::string& http) {
  absl::StatusOr<core::Address> page = core::ParseAddress("http", http);
  if (!page.ok()) return "";
  if (page->host == "0.0.0.0" || page->host == "::") page->host = coordinator.host;
  return page->IsLoopback() && !coordinator.IsLoopback() ? "" : absl::StrCat("http://", page->Text(), "/");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExternalRun>> ExternalRun::Open(const std::string& text) {
  ASSIGN_OR_RETURN(JsonObject options, JsonObject::Parse(text, "options"));
  std::string coordinator;
  RETURN_IF_ERROR(options.Read("coordinator", coordinator));
  if (coordinator.empty()) return options.Wrong("coordinator", "HOST:PORT", "none");
  ASSIGN_OR_RETURN(const transport::LinkOptions link, ReadLinkOptions(options));
  double rank_timeout_s = 600;
  RETURN_IF_ERROR(options.Read("rank_timeout_s", rank_timeout_s));
  if (rank_timeout_s <= 0) {
    return options.Wrong("rank_timeout_s", "more than 0 seconds", absl::StrCat(rank_timeout_s));
  }
  ASSIGN_OR_RETURN(const transport::ClientFlags flags, ReadFlags(options));
  RETURN_IF_ERROR(options.Finish());
  std::vector<transport::LinkOptions> shards;
  for (const std::string& address : std::vector<std::string>(absl::StrSplit(coordinator, ','))) {
    shards.push_back(link);
    ASSIGN_OR_RETURN(shards.back().all, transport::ParseAddresses("coordinator", address));
    shards.back().coordinator = shards.back().all.front();
    ASSIGN_OR_RETURN(shards.back().channel, transport::ReadClientFlags(flags, shards.back().coordinator));
  }
  std::unique_ptr<ExternalRun> run(new ExternalRun(std::move(shards), rank_timeout_s));
  run->thread_ = core::Thread([raw = run.get()] {
    absl::Status answer = absl::InternalError("internal error");
    core::Guarded([&] { answer = raw->Ask(); });
    core::MutexLock lock(raw->mutex_);
    raw->answer_ = std::move(answer);
    raw->changed_.NotifyAll();
  });
  return run;
}

absl::Status ExternalRun::Ask() {
  const std::unique_ptr<transport::SessionLink> link = NewLink();
  ASSIGN_OR_RETURN(const transport::RunDescription description, link->Describe([this] {
    core::MutexLock lock(mutex_);
    return cancelled_;
  }));
  const absl::StatusOr<core::RunConfig> config = formats::ParseRunConfig(description.run_config);
  if (!config.ok()) return absl::PermissionDeniedError(config.status().message());
  config_ = *config;
  for (transport::LinkOptions& shard : shards_) shard.run = config->run_id;  // in what sites show to a rebuild
  for (const std::string& advice : formats::StepsAdvice(*config)) spdlog::warn("{}", advice);
  json_ = nlohmann::ordered_json{{"run_id", config->run_id},
                                 {"site", site()},
                                 {"page", PageSeenFrom(shards_.front().coordinator, description.http)},
                                 {"config", nlohmann::ordered_json::parse(formats::RunConfigJson(*config))}}
              .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return absl::OkStatus();
}

absl::Status ExternalRun::Await(std::chrono::nanoseconds timeout) {
  core::MutexLock lock(mutex_);
  const bool answered =
      lock.WaitFor(changed_, timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answer_.has_value(); });
  return answered ? *answer_ : absl::DeadlineExceededError("the coordinator has not answered yet; call again");
}

ExternalRun::~ExternalRun() {
  {
    core::MutexLock lock(mutex_);
    cancelled_ = true;
  }
  if (thread_.joinable()) thread_.Join();
}

}  // namespace causeway::worker
