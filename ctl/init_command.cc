#include "ctl/init_command.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/ids.h"
#include "core/text.h"
#include "formats/atomic_file.h"
#include "formats/run_yaml.h"
#include "transport/channel.h"

ABSL_FLAG(std::string, placement, "sites", "init: sites, a shard of the coordinator in each site's datacenter");
ABSL_FLAG(std::vector<std::string>, shards_at, {},
          "init: each site and where its shard listens, NAME=HOST:PORT,…; the first one's shard decides who is in");
ABSL_DECLARE_FLAG(std::string, config);  // of plan round

namespace causeway::ctl {
namespace {

struct SiteAddress {
  std::string site;
  transport::Address address;
};

absl::StatusOr<std::vector<SiteAddress>> ReadSites() {
  std::vector<SiteAddress> sites;
  std::set<std::string> names;
  for (const std::string& item : absl::GetFlag(FLAGS_shards_at)) {
    const std::vector<std::string> parts = absl::StrSplit(item, absl::MaxSplits('=', 1));
    if (parts.size() != 2 || !core::IsValidName(parts[0]) || !names.insert(parts[0]).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "init: --shards_at: expected NAME=HOST:PORT with each site's name once, got ", core::Quoted(item)));
    }
    ASSIGN_OR_RETURN(transport::Address address, core::ParseAddress("init: --shards_at", parts[1]));
    sites.push_back({parts[0], std::move(address)});
  }
  if (sites.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "init: --shards_at: expected at least 2 sites as NAME=HOST:PORT,NAME=HOST:PORT, got ", sites.size()));
  }
  return sites;
}

// The given text with placement: sites, if it lacks that.
absl::StatusOr<std::string> RunYamlFor(int sites) {
  const std::string path = absl::GetFlag(FLAGS_config);
  std::string text;
  if (path.empty()) {
    text = absl::StrCat(
        "# Settings that are not here have their defaults; deploy/run.yaml explains all of them.\n"
        "run_id: run\nplacement: sites  # a shard of the coordinator in each site's datacenter\n"
        "membership:\n  min_sites: ",
        sites, "  # training starts when all sites have joined\n");
  } else {
    ASSIGN_OR_RETURN(text, formats::ReadRunYamlText(path));
  }
  const std::string name = path.empty() ? "run.yaml" : path;
  ASSIGN_OR_RETURN(core::RunConfig config, formats::ParseRunYaml(text, name));
  if (config.placement != core::Placement::kSites) {
    if (absl::StrContains(absl::StrCat("\n", text), "\nplacement:")) {
      return absl::InvalidArgumentError(absl::StrCat("init: ", path, ": expected placement: sites, got hub"));
    }
    absl::StrAppend(&text, absl::EndsWith(text, "\n") ? "" : "\n", "placement: sites\n");
    const absl::StatusOr<core::RunConfig> placed = formats::ParseRunYaml(text, name);
    if (!placed.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": expected placement: sites, got none"));
    config = *placed;
  }
  RETURN_IF_ERROR(formats::PlaceShards(sites, &config));
  return text;
}

// Both programs of one site. Names in braces are replaced.
constexpr char kScript[] = R"sh(#!/usr/bin/env bash
# Site {site} of the run in this folder: its shard of the coordinator ({index} of {count}) and its worker.
#
#   ./start-{site} --data=PATH …       flags are the worker's; Ctrl-C or SIGTERM stops both
#
# State and checkpoints go to $STATE (default: state/{site} beside this script). certs/ beside it (deploy/certs) brings
# TLS and tokens; without that folder nothing is encrypted.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=${STATE:-$here/state/{site}}
certs=$here/certs
mkdir -p "$state/shard" "$state/worker"
if [[ -e $certs/ca.pem ]]; then
  shard_flags=(--tls_ca="$certs/ca.pem" --tls_cert="$certs/coordinator.pem" --tls_key="$certs/coordinator.key"
    --tls_revoked="$certs/revoked" --site_tokens="$certs/site_tokens")
  worker_flags=(--tls_ca="$certs/ca.pem" --tls_cert="$certs/{site}.pem" --tls_key="$certs/{site}.key"
    --token_file="$certs/{site}.token")
  member_flags=(--membership_tls_cert="$certs/shard-{site}.pem" --membership_tls_key="$certs/shard-{site}.key"
    --membership_token_file="$certs/shard-{site}.token")
else
  shard_flags=(--insecure) worker_flags=(--insecure) member_flags=()
fi
[[ {index} -eq 0 ]] || shard_flags+=(--membership={lead} "${member_flags[@]}")
causeway-coordinator --config="$here/run.yaml" --state_dir="$state/shard" --listen="${LISTEN:-{listen}}" \
  --http="${HTTP:-127.0.0.1:7078}" --shard={index}/{count} --exit_when_done "${shard_flags[@]}" &
shard=$!
causeway-worker --coordinator={all} --site={site} --checkpoint_dir="$state/worker" "${worker_flags[@]}" "$@" &
worker=$!
trap 'kill -TERM $worker $shard 2>/dev/null || true' TERM INT
# The other sites may need the shard for longer than this worker.
code=0
wait $worker || code=$?
wait $worker 2>/dev/null || true
[[ $code -eq 0 ]] || kill -TERM $shard 2>/dev/null || true
wait $shard || { shard_code=$?; [[ $code -ne 0 ]] || code=$shard_code; }
exit $code
)sh";

constexpr char kEnvironment[] =
    "# Site {site}: for docker compose --env-file with deploy/site.compose.yaml, and for systemd, where it becomes\n"
    "# /etc/causeway/coordinator.env and /etc/causeway/worker-{site}.env.\n"
    "SITE={site}\nSHARD={index}/{count}\nMEMBERSHIP={membership}\nLISTEN={listen}\nCOORDINATOR={all}\n";

std::string Filled(const char* text, const std::vector<SiteAddress>& sites, size_t index) {
  const std::string lead = sites.front().address.Text();
  const std::string all = absl::StrJoin(
      sites, ",", [](std::string* out, const SiteAddress& one) { absl::StrAppend(out, one.address.Text()); });
  return absl::StrReplaceAll(text, {{"{site}", sites[index].site},
                                    {"{index}", absl::StrCat(index)},
                                    {"{count}", absl::StrCat(sites.size())},
                                    {"{lead}", lead},
                                    {"{membership}", index == 0 ? "" : lead},
                                    {"{listen}", absl::StrCat("0.0.0.0:", sites[index].address.port)},
                                    {"{all}", all}});
}

}  // namespace

absl::Status RunInitCommand(const std::string& out) {
  namespace fs = std::filesystem;
  if (out.empty()) return absl::InvalidArgumentError("init: expected --out=DIR");
  if (const std::string placement = absl::GetFlag(FLAGS_placement); placement != "sites") {
    return absl::InvalidArgumentError(absl::StrCat("init: --placement: expected sites, got '", placement,
                                                   "'; a hub needs no more than run.yaml and its address"));
  }
  ASSIGN_OR_RETURN(const std::vector<SiteAddress> sites, ReadSites());
  std::map<std::string, std::string> files;
  ASSIGN_OR_RETURN(files["run.yaml"], RunYamlFor(static_cast<int>(sites.size())));
  for (size_t i = 0; i < sites.size(); ++i) {
    absl::StrAppend(&files["addresses"], sites[i].site, " ", sites[i].address.Text(), "\n");
    files[absl::StrCat("start-", sites[i].site)] = Filled(kScript, sites, i);
    files[absl::StrCat("site-", sites[i].site, ".env")] = Filled(kEnvironment, sites, i);
  }
  std::error_code error;
  fs::create_directories(out, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot create folder ", out, ": ", error.message()));
  for (const auto& [name, text] : files) {
    if (fs::exists(fs::path(out) / name)) {
      return absl::AlreadyExistsError(absl::StrCat(out, "/", name, " exists; init writes into a folder without it"));
    }
  }
  for (const auto& [name, text] : files) {
    const std::string path = absl::StrCat(out, "/", name);
    RETURN_IF_ERROR(formats::WriteFileAtomically(path, text));
    if (absl::StartsWith(name, "start-")) fs::permissions(path, fs::perms(0755), error);
  }
  std::printf("%s: run.yaml, addresses, and for each site:\n", out.c_str());
  for (const SiteAddress& one : sites) {
    std::printf("  on %s's machine    %s/start-%s --data=PATH\n", one.site.c_str(), out.c_str(), one.site.c_str());
  }
  const auto names = [&](const char* before) {
    return absl::StrJoin(
        sites, "", [before](std::string* text, const SiteAddress& one) { absl::StrAppend(text, before, one.site); });
  };
  const std::string hosts = absl::StrJoin(
      sites, ",", [](std::string* text, const SiteAddress& one) { absl::StrAppend(text, one.address.host); });
  std::printf(
      "Copy the folder to each of them first. For TLS and tokens:\n  deploy/certs --out %s/certs --coordinator %s%s%s "
      "--operator%s%s\n",
      out.c_str(), hosts.c_str(), names(" --site ").c_str(), names(" --shard ").c_str(), names(" --token ").c_str(),
      names(" --token shard:").c_str());
  std::printf("Watch all shards: the page of %s's, http://127.0.0.1:7078/ there.\n", sites.front().site.c_str());
  return absl::OkStatus();
}

}  // namespace causeway::ctl
