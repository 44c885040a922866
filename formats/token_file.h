// A site's training data as tokens: a file, or a folder of files back to back.
//
//   corpus.txt            every byte is a token (vocab_size 256 or more), as for any extension not listed below
//   corpus.jsonl          the bytes of the texts
//   train.bin             tokens of 2 or 4 bytes (token_shard.h)
//   train.npy             tokens of a NumPy array
//   shards/, texts/       a folder: its *.bin files in bytewise order of their names, back to back; where it has none,
//                         its *.npy files, else its *.txt files or its *.jsonl files
//
// Everything else in a folder is skipped, and named by skipped() (TokenFolder). Immutable, thread-safe, move-only.
// Mapped files stay on disk, and all sites on one machine share their pages; JSON lines are decoded into memory.
// A file that is truncated or written anew while it is open ends the program (mapped_file.h): replace token files, do
// not rewrite them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data_fingerprint.h"
#include "formats/token_shard.h"

namespace causeway::formats {

// Which files of a folder are data, and which are not.
//
//   a.txt b.txt                ─► files, joined in bytewise order
//   val.txt                    ─► held_out: the same file as --held_out, by whatever name, or a copy of it
//   ._a.txt .ipynb_checkpoints ─► hidden: names that begin with "."
//   latest.txt, b (1).txt      ─► twins: links to another one that is read, and its copies
//   c.txt.incomplete notes.md  ─► other endings; folders, too
//
// One kind of files is read: .bin, else .npy, else .txt or .jsonl.
struct TokenFolder {
  std::vector<std::string> files;     // paths, in bytewise order of their names; one or more
  std::vector<std::string> held_out;  // names, like all members below
  std::vector<std::string> hidden;
  std::vector<std::string> twins;           // "latest.txt (b.txt again)"
  std::vector<std::string> for_validation;  // of `files`, those named like validation data, if nothing is held out
  std::map<std::string, std::vector<std::string>> other;  // other files by ending (empty or ".…"); "/": folders

  // "skips val.bin, which --held_out holds out; 2 names that begin with "." (._a.txt, .b.txt); 3 of .npy (…)", or
  // empty.
  std::string Skipped() const;
};

// INVALID_ARGUMENT: the folder has no data, data of two kinds, or a README alone beside files that are skipped.
// `held_out_path` is a file or folder, or empty.
absl::StatusOr<TokenFolder> FindTokenFiles(const std::string& path, const std::string& held_out_path);

// Whether both are one file, also by a link, or have the same bytes; either may be a folder with such a file.
bool HasSameFile(const std::string& path, const std::string& held_out_path);

class TokenFile {
 public:
  // `held_out_path` is a file or folder that is no part of the data, also where it lies in the folder; or empty.
  static absl::StatusOr<TokenFile> Open(const std::string& path, const TokenFormat& format,
                                        const std::string& held_out_path = "");

  int64_t size() const { return size_; }        // tokens, at least 1
  uint32_t operator[](int64_t position) const;  // 0 ≤ position < size()

  core::DataFingerprint Fingerprint() const;  // reads every token

  const std::vector<std::string>& names() const { return names_; }  // paths of the files, in order
  const std::string& skipped() const { return skipped_; }           // "skips 3 of .npy (…)", or empty
  const std::vector<std::string>& notes() const { return notes_; }  // what a person may have meant otherwise

 private:
  struct Part {
    TokenShard shard;
    int64_t first;  // index of its first token in the whole
  };

  TokenFile() = default;

  std::vector<Part> parts_;
  int64_t size_ = 0;
  std::vector<std::string> names_;
  std::string skipped_;
  std::vector<std::string> notes_;
};

}  // namespace causeway::formats
