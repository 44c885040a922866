#include "tests/bench/wanemu/namespaces.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::bench {
namespace {

absl::Status SystemError(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// ip(8), for what would be a page of netlink otherwise.
absl::Status Ip(const std::string& arguments) {
  const std::string command = absl::StrCat("ip ", arguments);
  if (std::system(command.c_str()) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("failed: ", command));
}

void Remove(const std::string& name) {
  if (access(absl::StrCat("/run/netns/", name).c_str(), F_OK) == 0) Ip(absl::StrCat("netns del ", name)).IgnoreError();
}

absl::StatusOr<int> OpenTun(bool gso) {
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tun < 0) return SystemError("/dev/net/tun");
  ifreq request{};
  std::strcpy(request.ifr_name, "wan0");
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(tun, TUNSETIFF, &request) != 0) return SystemError("TUNSETIFF");
  if (gso && ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) != 0) return SystemError("TUNSETOFFLOAD");
  return tun;
}

}  // namespace

absl::StatusOr<Namespaces> Namespaces::Create(const Options& options) {
  Namespaces namespaces;
  namespaces.prefix_ = options.prefix;
  RETURN_IF_ERROR(namespaces.Lock());
  for (int number = 1; number <= options.count; ++number) RETURN_IF_ERROR(namespaces.Add(number, options.gso));
  return namespaces;
}

Namespaces::Namespaces(Namespaces&& other) noexcept
    : prefix_(std::move(other.prefix_)), lock_(std::exchange(other.lock_, -1)), tuns_(std::move(other.tuns_)) {
  other.tuns_.clear();
}

Namespaces::~Namespaces() {
  for (size_t i = 0; i < tuns_.size(); ++i) {
    close(tuns_[i]);
    Remove(absl::StrCat(prefix_, i + 1));
  }
  if (lock_ >= 0) close(lock_);
}

absl::Status Namespaces::Lock() {
  const std::string path = absl::StrCat("/run/wanemu-", prefix_, ".lock");
  lock_ = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (lock_ < 0) return SystemError(path);
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("another wanemu has namespaces ", prefix_, "1, …; choose another --prefix"));
}

absl::Status Namespaces::Add(int number, bool gso) {
  const std::string name = absl::StrCat(prefix_, number);
  Remove(name);
  RETURN_IF_ERROR(Ip(absl::StrCat("netns add ", name)));
  const int ours = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int theirs = open(absl::StrCat("/run/netns/", name).c_str(), O_RDONLY | O_CLOEXEC);
  const absl::Cleanup close_both = [&] {
    close(ours);
    close(theirs);
  };
  if (ours < 0 || theirs < 0 || setns(theirs, CLONE_NEWNET) != 0) return SystemError(name);
  const absl::StatusOr<int> tun = OpenTun(gso);
  if (setns(ours, CLONE_NEWNET) != 0) return SystemError("setns back");
  RETURN_IF_ERROR(tun.status());
  tuns_.push_back(*tun);
  RETURN_IF_ERROR(Ip(absl::StrCat("-n ", name, " link set lo up")));
  RETURN_IF_ERROR(Ip(absl::StrCat("-n ", name, " addr add 10.77.", number, ".1/16 dev wan0")));
  return Ip(absl::StrCat("-n ", name, " link set wan0 up txqueuelen 10000 mtu 1500"));
}

}  // namespace causeway::bench
