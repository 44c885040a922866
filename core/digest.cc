#include "core/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/layout.h"
#include "core/random.h"

namespace causeway::core {

uint64_t ThetaSeed(std::string_view tensor) { return Xxh3(tensor.data(), tensor.size()); }

uint64_t ThetaDigest(uint64_t seed, int64_t first, std::span<const float> values) {
  uint64_t sum = 0;
  uint64_t place = seed + (static_cast<uint64_t>(first) << 32);  // wraps around: of 2³² values, still one each
  for (const float value : values) {
    sum += SplitMix64(place + __builtin_bit_cast(uint32_t, value));
    place += uint64_t{1} << 32;
  }
  return sum;
}

uint64_t DigestUnits(std::span<const float> values, int64_t first_unit) {
  CHECK(values.size() % kUnitValues == 0);
  uint64_t sum = 0;
  for (size_t at = 0; at < values.size(); at += kUnitValues) {
    const uint64_t unit = first_unit + at / kUnitValues;
    sum += Xxh3(&values[at], kUnitValues * sizeof(float), unit);
  }
  return sum;
}

std::string DigestText(uint64_t digest) { return absl::StrFormat("%016x", digest); }

std::string KeyedProof(std::string_view secret, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac;
  unsigned int size = 0;
  CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &size) != nullptr);
  return std::string(reinterpret_cast<const char*>(mac.data()), size);
}

bool SameSecret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace causeway::core
