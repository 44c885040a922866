#include "formats/sha256_sums.h"

#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/atomic_file.h"
#include "formats/sha256.h"

namespace causeway::formats {
namespace {

constexpr char kName[] = "/SHA256SUMS";
constexpr size_t kDigits = 64, kGap = 2;  // "digest  name"; a '*' before the name means the same

absl::StatusOr<std::string> Sha256OfFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return FileError("read", path);
  RunningSha256 sum;
  std::vector<char> bytes(1 << 20);
  while (file) {
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    sum.Add(std::as_bytes(std::span(bytes).first(static_cast<size_t>(file.gcount()))));
  }
  if (file.bad()) return FileError("read", path);
  const Sha256Hash digest = sum.value();
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

}  // namespace

absl::Status WriteSha256Sums(const std::string& dir, const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const std::string digest, Sha256OfFile(dir + "/" + name));
    absl::StrAppend(&text, digest, "  ", name, "\n");
  }
  return WriteFileAtomically(dir + kName, text);
}

absl::Status RemoveSha256Sums(const std::string& dir) {
  std::error_code error;
  std::filesystem::remove(dir + kName, error);
  return error ? absl::UnavailableError(absl::StrCat("cannot remove ", dir, kName, ": ", error.message()))
               : absl::OkStatus();
}

absl::Status CheckSha256Sum(const std::string& dir, const std::string& name) {
  std::ifstream sums(dir + kName);
  for (std::string line; std::getline(sums, line);) {
    if (line.size() <= kDigits + kGap || line.substr(kDigits + kGap) != name) continue;
    const std::string expected = absl::AsciiStrToLower(line.substr(0, kDigits));
    ASSIGN_OR_RETURN(const std::string digest, Sha256OfFile(dir + "/" + name));
    if (digest == expected) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(dir, "/", name, " is damaged: SHA256SUMS beside it says ", expected, ", its bytes have ", digest));
  }
  return absl::OkStatus();
}

}  // namespace causeway::formats
