#include "formats/sha256.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/atomic_file.h"

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

Sha256Hash Sha256(std::span<const std::byte> bytes) {
  Sha256Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

void RunningSha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

RunningSha256::RunningSha256() : context_(EVP_MD_CTX_new()) {
  CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void RunningSha256::Add(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

Sha256Hash RunningSha256::value() {
  Sha256Hash hash;
  CHECK(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(hash.data()), nullptr) == 1);
  return hash;
}

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
