// Proofs that their maker knows a secret, which they do not tell. Pure; thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace causeway::core {

// HMAC-SHA256 (RFC 2104): 32 bytes.
std::string KeyedProof(std::string_view secret, std::string_view text);

// In a time that tells nothing of where they differ.
bool SameSecret(std::string_view a, std::string_view b);

}  // namespace causeway::core
