#include "formats/sha256.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include "core/check.h"

namespace causeway::formats {

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

}  // namespace causeway::formats
