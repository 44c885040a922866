// causewayctl codec-bench: the speed of the codecs on this machine, beside that of its memory (codecs/speed_bench.h).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace causeway::ctl {

// As on the command line; an empty list stands for all that there is.
struct CodecBenchFlags {
  std::vector<std::string> sizes;  // MB of float32
  std::vector<std::string> threads;
  std::vector<std::string> codecs;   // by name
  std::vector<std::string> targets;  // "scalar", "avx2", "avx512"; those that this processor lacks are refused
  bool json = false;                 // one object a line instead of a table
};

// Prints row after row to stdout, each as soon as it is measured. INVALID_ARGUMENT names the flag.
absl::Status RunCodecBench(const CodecBenchFlags& flags);

}  // namespace causeway::ctl
