// A tokenizer for models whose tokens are bytes, as files that Hugging Face's libraries load.
//
//   "é\n"  ──UTF-8──►  c3 a9 0a  ──►  ids 195 169 10        and back: invalid UTF-8 decodes to U+FFFD
//
// It is byte-level BPE without merges and without special tokens: token i is byte i, and every text is restored
// exactly. The format is that of the tokenizers library; each byte is named by one printable character, GPT-2's table.
#pragma once

#include <cstdint>
#include <string>

namespace causeway::formats {

inline constexpr int64_t kByteVocabulary = 256;

std::string ByteTokenizerJson();                                // tokenizer.json
std::string ByteTokenizerConfigJson(int64_t model_max_length);  // tokenizer_config.json; in tokens

}  // namespace causeway::formats
