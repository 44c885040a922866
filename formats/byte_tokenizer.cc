#include "formats/byte_tokenizer.h"

#include <nlohmann/json.hpp>

namespace causeway::formats {
namespace {

using Json = nlohmann::ordered_json;

// The bytes that are printable characters of Latin-1 stand for themselves.
bool IsPrintable(int64_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// UTF-8 of a code point below 0x800.
std::string Utf8(int64_t code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// Character → id. The other bytes are named by the characters from U+0100 on, in their order.
Json Vocabulary() {
  Json vocabulary = Json::object();
  int64_t next = kByteVocabulary;
  for (int64_t byte = 0; byte < kByteVocabulary; ++byte) vocabulary[Utf8(IsPrintable(byte) ? byte : next++)] = byte;
  return vocabulary;
}

}  // namespace

std::string ByteTokenizerJson() {
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Json::array()},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"vocab", Vocabulary()},
                       {"merges", Json::array()}}}};
  return json.dump(2) + "\n";
}

std::string ByteTokenizerConfigJson(int64_t model_max_length) {
  const Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"model_max_length", model_max_length},
                     {"clean_up_tokenization_spaces", false}};  // it would change the text
  return json.dump(2) + "\n";
}

}  // namespace causeway::formats
