#include "ctl/init_command.h"

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
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
#include "transport/first_address.h"

ABSL_FLAG(std::string, placement, "sites", "init: sites, a shard of the coordinator in each site's datacenter");
ABSL_FLAG(std::vector<std::string>, shards_at, {},
          "init: each site and where its shard listens, NAME=HOST:PORT,…; the first one's shard decides who is in; "
          "NAME=HOST:PORT|HOST:PORT: with a standby of it at the second address");
ABSL_DECLARE_FLAG(std::string, config);  // of plan round
ABSL_DECLARE_FLAG(bool, insecure);

namespace causeway::ctl {
namespace {

struct SiteAddress {
  std::string site;
  std::vector<transport::Address> addresses;  // its shard's, and that of the shard's standby if it has one

  bool has_standby() const { return addresses.size() > 1; }
  std::string standby() const { return site + "-standby"; }
  std::string Text() const {
    return absl::StrJoin(addresses, "|", [](std::string* out, const auto& one) { absl::StrAppend(out, one.Text()); });
  }
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
    if (parts[0] == "operator" || parts[0] == "ca" || absl::StartsWith(parts[0], "coordinator")) {
      return absl::InvalidArgumentError(absl::StrCat("init: --shards_at: expected names of sites, got '", parts[0],
                                                     "', which is a folder or file of the run's"));
    }
    SiteAddress& site = sites.emplace_back(SiteAddress{parts[0], {}});
    ASSIGN_OR_RETURN(site.addresses, transport::ParseAddresses("init: --shards_at", parts[1]));
    const bool names_hosts = absl::c_all_of(site.addresses, [](const transport::Address& one) {
      return absl::c_all_of(one.host, [](char c) { return absl::ascii_isalnum(c) || absl::StrContains(".-_:", c); });
    });
    if (site.addresses.size() > 2 || !names_hosts ||
        (site.has_standby() && (!core::IsValidName(site.standby()) || !names.insert(site.standby()).second))) {
      return absl::InvalidArgumentError(
          absl::StrCat("init: --shards_at: expected a host of letters, digits, '.', '-', '_' and ':' and at most one "
                       "standby, got ",
                       core::Quoted(item)));
    }
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
  if (!absl::StrContains(text, "min_sites")) {
    if (absl::StrContains(absl::StrCat("\n", text), "\nmembership:")) {
      std::fprintf(stderr,
                   "note: %s has no membership.min_sites: the first site begins alone; min_sites: %d waits for all\n",
                   path.c_str(), sites);
    } else {
      absl::StrAppend(&text, "membership: {min_sites: ", sites, "}  # training starts when all sites have joined\n");
    }
  }
  RETURN_IF_ERROR(formats::PlaceShards(sites, &config));
  return text;
}

// A script of sed: the HOST:PORT of each line of `addresses`.
constexpr char kAddressOfLine[] = R"(s/^[^# ][^ ]* \([^ ]*\)$/\1/p)";

// The heads of the scripts, which have the same middle. Names in braces are replaced.
constexpr char kSiteHead[] = R"sh(#!/usr/bin/env bash
# Site {site} of the run in this folder: its shard of the coordinator ({index} of {count}) and its worker.
#
#   ./start-{site} --data=PATH …       flags are the worker's; Ctrl-C or SIGTERM stops both
#
# One that crashes is started again, and the other goes on. State and checkpoints go to $STATE (default: state/ beside
# this script). `addresses` says where each site's shard is; certs/ has the certificates and tokens (deploy/certs).
)sh";

constexpr char kStandbyHead[] = R"sh(#!/usr/bin/env bash
# The standby of shard {index} of {count} of the run in this folder, on a machine of its own: it keeps a copy of the shard's state,
# and leads it once `causewayctl promote` says so.
#
#   ./start-{site}      Ctrl-C or SIGTERM stops it
#
# It is started again when it crashes. Its state goes to $STATE (default: state/ beside this script). `addresses` says
# where each shard and its standby are; certs/ has the certificates and tokens (deploy/certs).
)sh";

constexpr char kScript[] = R"sh(set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=${STATE:-$here/state}
certs=$here/certs
insecure=${INSECURE:-{insecure}}
mapfile -t addresses < <(sed -n '{address}' "$here/addresses")
[[ ${#addresses[@]} -eq {count} ]] || {
  echo "start-{site}: $here/addresses: expected {count} lines of NAME HOST:PORT, got ${#addresses[@]}" >&2
  exit 2
}
leader=${addresses[{index}]%%|*}
own={own}
all=$(IFS=, && echo "${addresses[*]}")
if [[ $insecure == true ]]; then
  shard_flags=(--insecure) worker_flags=(--insecure) member_flags=()
elif [[ -e $certs/ca.pem ]]; then
  shard_flags=(--tls_ca="$certs/ca.pem" --tls_cert="$certs/coordinator.pem" --tls_key="$certs/coordinator.key"
    --tls_revoked="$certs/revoked" --site_tokens="$certs/site_tokens")
  worker_flags=(--tls_ca="$certs/ca.pem" --tls_cert="$certs/{site}.pem" --tls_key="$certs/{site}.key"
    --token_file="$certs/{site}.token")
  member_flags=(--membership_tls_cert="$certs/{role}-{site}.pem" --membership_tls_key="$certs/{role}-{site}.key"
    --membership_token_file="$certs/{role}-{site}.token")
else
  echo "start-{site}: expected $certs/ca.pem and the files beside it, which the keeper of the run's CA makes (deploy/certs);" \
    "INSECURE=true starts without, and anyone who reaches this port is believed" >&2
  exit 2
fi
[[ {index} -eq 0 ]] || shard_flags+=(--membership="${addresses[0]}")
shard_flags+=("${member_flags[@]}" --config="$here/run.yaml" --shard={index}/{count} --exit_when_done --advertise="$own"
  --listen="${LISTEN:-0.0.0.0:${own##*:}}" --http="${HTTP:-127.0.0.1:7078}")
mkdir -p "$state/shard" "$state/worker"

# await PID: sets `code`
await() {
  code=0
  wait "$1" || code=$?
  while kill -0 "$1" 2>/dev/null; do code=0 && wait "$1" || code=$?; done  # a signal ends the first wait
}

# keep WHAT COMMAND…: again, unless it has ended well, says that a retry changes nothing, or was told to stop
keep() (
  what=$1 stops='' child=''
  shift
  trap 'stops=yes; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM
  while :; do
    "$@" &
    child=$!
    await "$child"
    case $stops$code in yes* | 0 | 2 | 3 | 4) exit "$code" ;; esac
    echo "start-{site}: the $what has ended with $code, and is started again in 2 s" >&2
    sleep 2 &
    child=$!
    wait "$child" || true
    [[ -z $stops ]] || exit "$code"
  done
)

)sh";

constexpr char kStandbyTail[] = R"sh(
keep standby causeway-coordinator --state_dir="$state/shard" --standby_of="$leader" "${shard_flags[@]}" &
standby=$!
trap 'kill -TERM $standby 2>/dev/null || true' TERM INT
await $standby
exit $code
)sh";

constexpr char kSiteTail[] = R"sh(
keep shard causeway-coordinator --state_dir="$state/shard" "${shard_flags[@]}" &
shard=$!
keep worker causeway-worker --coordinator="$all" --site={site} --checkpoint_dir="$state/worker" "${worker_flags[@]}" "$@" &
worker=$!
trap 'kill -TERM $worker $shard 2>/dev/null || true' TERM INT
await $worker
worker_code=$code
if [[ $worker_code -ne 0 ]] && kill -0 $shard 2>/dev/null; then
  echo "start-{site}: the worker has ended with $worker_code; the shard goes on for the other sites until Ctrl-C" >&2
fi
await $shard
exit $((worker_code != 0 ? worker_code : code))
)sh";

// For the operator, who is no site's owner.
constexpr char kOperatorScript[] = R"sh(#!/usr/bin/env bash
# causewayctl as the operator of this run:   ./ctl status    ./ctl pause    ./ctl --help
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lead=$(sed -n '{address}' "$here/addresses" | head -n 1)
if [[ ${INSECURE:-{insecure}} == true ]]; then
  exec causewayctl "$@" --coordinator="$lead" --insecure
fi
exec causewayctl "$@" --coordinator="$lead" --tls_ca="$here/ca.pem" --tls_cert="$here/operator.pem" \
  --tls_key="$here/operator.key" --token_file="$here/operator.token"
)sh";

constexpr char kEnvironment[] =
    "# Site {site}: for docker compose --env-file with deploy/worker.compose.yaml and deploy/shard.compose.yaml, and "
    "for\n"
    "# systemd, where it becomes /etc/causeway/coordinator.env and /etc/causeway/worker-{site}.env.\n"
    "SITE={site}\nSHARD={index}/{count}\nMEMBERSHIP={membership}\nLISTEN={listen}\nCOORDINATOR={all}\n"
    "ADVERTISE={advertise}\nROLE={role}\nSTANDBY_OF={standby_of}\n";

enum class Role { kShard, kStandby };

std::string Filled(const std::string& text, const std::vector<SiteAddress>& sites, size_t index,
                   Role role = Role::kShard) {
  const bool stands_by = role == Role::kStandby;
  const SiteAddress& site = sites[index];
  const transport::Address& own = stands_by ? site.addresses.back() : site.addresses.front();
  const std::string all =
      absl::StrJoin(sites, ",", [](std::string* out, const SiteAddress& one) { absl::StrAppend(out, one.Text()); });
  return absl::StrReplaceAll(text, {{"{site}", stands_by ? site.standby() : site.site},
                                    {"{address}", kAddressOfLine},
                                    {"{index}", absl::StrCat(index)},
                                    {"{count}", absl::StrCat(sites.size())},
                                    {"{insecure}", absl::GetFlag(FLAGS_insecure) ? "true" : "false"},
                                    {"{membership}", index == 0 ? "" : sites.front().Text()},
                                    {"{listen}", absl::StrCat("0.0.0.0:", own.port)},
                                    {"{advertise}", own.Text()},
                                    {"{role}", stands_by ? "standby" : "shard"},
                                    {"{own}", stands_by ? absl::StrCat("${addresses[", index, "]##*|}") : "$leader"},
                                    {"{standby_of}", stands_by ? site.addresses.front().Text() : ""},
                                    {"{all}", all}});
}

// The steps that remain, to be followed to the letter.
void Print(const std::string& out, const std::vector<SiteAddress>& sites) {
  const auto of_each = [&](const std::function<std::string(const SiteAddress&)>& words) {
    return absl::StrJoin(sites, "",
                         [&](std::string* text, const SiteAddress& one) { absl::StrAppend(text, words(one)); });
  };
  std::printf("%s: a folder for each site's owner, and one for the operator.\n", out.c_str());
  if (absl::GetFlag(FLAGS_insecure)) {
    std::printf("Nothing is encrypted, and anyone who reaches a port is believed (--insecure).\n");
  } else {
    std::printf(
        "1. Certificates and tokens; %s/ca is yours alone, its ca.key makes anyone's:\n  deploy/certs --out %s/ca "
        "--folders %s%s\n",
        out.c_str(), out.c_str(), out.c_str(),
        absl::StrCat(of_each([](const SiteAddress& one) {
                       const std::string standby =
                           !one.has_standby() ? ""
                                              : absl::StrCat(" --standby ", one.standby(), "=", one.addresses[1].host,
                                                             " --token standby:", one.standby());
                       return absl::StrCat(" \\\n    --site ", one.site, " --token ", one.site, " --shard ", one.site,
                                           "=", one.addresses[0].host, " --token shard:", one.site, standby);
                     }),
                     " \\\n    --operator --token operator")
            .c_str());
  }
  std::printf("2. Give each owner the folder of that name, and no other. There:\n%s",
              of_each([](const SiteAddress& one) {
                const std::string standby = one.has_standby() ? absl::StrCat("  ./start-", one.standby(), "\n") : "";
                return absl::StrCat("  ./start-", one.site, " --data=PATH\n", standby);
              }).c_str());
  std::printf(
      "3. Watch, pause and stop the run:\n  %s/operator/ctl status\nThe page of all shards is that of %s's: "
      "http://127.0.0.1:7078/ there.\n",
      out.c_str(), sites.front().site.c_str());
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
  ASSIGN_OR_RETURN(const std::string run_yaml, RunYamlFor(static_cast<int>(sites.size())));
  std::string addresses =
      "# each site, and where its shard is: the same in all folders; the first one's decides who is in\n";
  for (const SiteAddress& one : sites) absl::StrAppend(&addresses, one.site, " ", one.Text(), "\n");
  std::map<std::string, std::string> files = {{"operator/addresses", addresses},
                                              {"operator/ctl", Filled(kOperatorScript, sites, 0)}};
  const std::string of_site = absl::StrCat(kSiteHead, kScript, kSiteTail);
  const std::string of_standby = absl::StrCat(kStandbyHead, kScript, kStandbyTail);
  for (size_t i = 0; i < sites.size(); ++i) {
    for (const Role role : {Role::kShard, Role::kStandby}) {
      if (role == Role::kStandby && !sites[i].has_standby()) continue;
      const std::string name = role == Role::kStandby ? sites[i].standby() : sites[i].site, folder = name + "/";
      files[folder + "run.yaml"] = run_yaml;
      files[folder + "addresses"] = addresses;
      files[absl::StrCat(folder, "start-", name)] =
          Filled(role == Role::kStandby ? of_standby : of_site, sites, i, role);
      files[folder + "site.env"] = Filled(kEnvironment, sites, i, role);
    }
  }
  for (const auto& [name, text] : files) {
    if (fs::exists(fs::path(out) / name)) {
      return absl::AlreadyExistsError(absl::StrCat(out, "/", name, " exists; init writes into a folder without it"));
    }
  }
  for (const auto& [name, text] : files) {
    const std::string path = absl::StrCat(out, "/", name);
    const std::string folder = fs::path(path).parent_path().string();
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return absl::UnavailableError(absl::StrCat("cannot create folder ", folder, ": ", error.message()));
    RETURN_IF_ERROR(formats::WriteFileAtomically(path, text));
    if (absl::StartsWith(text, "#!")) fs::permissions(path, fs::perms(0755), error);
  }
  Print(out, sites);
  return absl::OkStatus();
}

}  // namespace causeway::ctl
