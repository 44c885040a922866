#include "ctl/status_text.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/json_text.h"
#include "ctl/figures_text.h"

namespace causeway::ctl {
namespace {

using nlohmann::json;

// The run's loss, or those of the sites and why the run has none.
std::string EvalLines(const json& status) {
  const json& loss = status.at("eval_loss");
  std::string lines = loss.is_null() ? absl::StrCat("eval loss - (", status.value("eval_loss_reason", ""), ")\n")
                                     : absl::StrCat("eval loss ", NumberText(loss.at("start")), " → ",
                                                    NumberText(loss.at("latest")), "\n");
  const json by_site = status.value("eval_loss_by_site", json::object());  // outlives the loop over it
  std::vector<std::string> sites;
  for (const auto& [site, one] : by_site.items()) {
    sites.push_back(absl::StrCat(site, " ", NumberText(one.at("loss"))));
  }
  if (!sites.empty()) absl::StrAppend(&lines, "eval loss of each site's own data: ", absl::StrJoin(sites, ", "), "\n");
  return lines;
}

std::string SiteLine(const json& site) {
  return absl::StrFormat(
      "%-12s %-9s %6d %9d %9s %8s %6s %10s %10s %10s/s %10s/s  %s\n", site.at("name").get<std::string>(),
      site.at("state").get<std::string>(), site.at("ranks").at("ranks").get<int64_t>(), site.at("step").get<int64_t>(),
      NumberText(site.at("tokens_per_s")), NumberText(site.at("loss")), PercentText(site.at("utilization")),
      BytesText(site.at("up_bytes")), BytesText(site.at("down_bytes")), BytesText(site.at("up_bytes_per_s")),
      BytesText(site.at("down_bytes_per_s")), site.at("reason").get<std::string>());
}

std::string FragmentLine(const json& fragment) {
  std::string reason = fragment.at("reason");
  const auto contributors = fragment.at("contributors").get<std::vector<std::string>>();
  if (!contributors.empty()) reason = absl::StrCat("has ", absl::StrJoin(contributors, ", "), "; ", reason);
  return absl::StrFormat("%-8d %12d %8d  %-16s %-8s %s\n", fragment.at("id").get<int>(),
                         fragment.at("parameters").get<int64_t>(), fragment.at("version").get<int64_t>(),
                         fragment.at("digest").get<std::string>(), fragment.at("state").get<std::string>(), reason);
}

}  // namespace

absl::StatusOr<std::string> StatusText(const std::string& text) try {
  ASSIGN_OR_RETURN(const json status, core::ParseJson<json>(text, "not a status of this version"));
  const std::string reason = status.at("reason");
  std::string out = absl::StrFormat(
      "run %s: %s%s, %s parameters, codec %s up, %s down, up for %s\n", status.at("run_id").get<std::string>(),
      status.at("state").get<std::string>(), reason.empty() ? "" : " (" + reason + ")",
      MillionsText(status.at("parameters")), status.at("codec").at("up").get<std::string>(),
      status.at("codec").at("down").get<std::string>(), NumberText(status.at("uptime_s"), " s"));
  absl::StrAppend(&out, EvalLines(status), "\n");
  absl::StrAppend(
      &out, absl::StrFormat("%-12s %-9s %6s %9s %9s %8s %6s %10s %10s %12s %12s\n", "site", "state", "ranks", "step",
                            "tokens/s", "loss", "busy", "up", "down", "up rate", "down rate"));
  for (const json& site : status.at("sites")) out += SiteLine(site);
  absl::StrAppend(&out, "\n",
                  absl::StrFormat("%-8s %12s %8s  %-16s %s\n", "fragment", "parameters", "version", "digest", "state"));
  for (const json& fragment : status.at("fragments")) out += FragmentLine(fragment);
  return out;
} catch (const json::exception& error) {
  return absl::InvalidArgumentError(absl::StrCat("not a status of this version: ", error.what()));
}

}  // namespace causeway::ctl
