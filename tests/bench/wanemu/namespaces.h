// Network namespaces that play datacenters, each with one TUN device "wan0", whose packets come to us.
//
//   namespace PREFIXi, 10.77.i.1/16 on wan0  ◄─ TCP of whatever runs there ─►  descriptor: read and write packets
//
// Needs root, ip(8) and /dev/net/tun. A lock file keeps a second emulator from taking names that are in use; what an
// earlier one left when it was killed is replaced. One owner thread, whose namespace is the same again after each call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace causeway::bench {

// In front of every packet on a TUN device with IFF_VNET_HDR: <linux/virtio_net.h> does not compile as C++ everywhere.
struct VirtioNetHeader {
  uint8_t flags, gso_type;
  uint16_t hdr_len, gso_size, csum_start, csum_offset;
};

class Namespaces {
 public:
  struct Options {
    std::string prefix;
    int count = 0;
    bool gso = true;  // super-packets of up to 64 KiB, which keep the packet rate low
  };

  // FAILED_PRECONDITION with what is missing, UNAVAILABLE if another emulator has the prefix.
  static absl::StatusOr<Namespaces> Create(const Options& options);
  Namespaces(Namespaces&& other) noexcept;
  Namespaces& operator=(Namespaces&&) = delete;
  ~Namespaces();  // removes them

  const std::vector<int>& tuns() const { return tuns_; }  // one each, non-blocking

 private:
  Namespaces() = default;
  absl::Status Lock();
  absl::Status Add(int number, bool gso);

  std::string prefix_;
  int lock_ = -1;
  std::vector<int> tuns_;
};

}  // namespace causeway::bench
