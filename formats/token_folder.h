// Which files of a folder are data, and which are not.
//
//   a.txt b.txt                ─► files, joined in bytewise order
//   val.txt                    ─► held_out: the same file as --held_out, by whatever name, or a copy of it
//   ._a.txt .ipynb_checkpoints ─► hidden: names that begin with "."
//   latest.txt, b (1).txt      ─► twins: links to another one that is read, and its copies
//   c.txt.incomplete notes.md  ─► other endings; folders, too
//
// One kind of files is read: .bin, else .npy, else .txt or .jsonl.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace causeway::formats {

struct TokenFolder {
  std::vector<std::string> files;     // paths, in bytewise order of their names; one or more
  std::vector<std::string> held_out;  // names, as all below
  std::vector<std::string> hidden;
  std::vector<std::string> twins;  // "latest.txt (b.txt again)"
  std::vector<std::string>
      for_validation;  // of those that are read, by their names, where --held_out holds out nothing
  std::map<std::string, std::vector<std::string>> other;  // by ending, which is empty or begins with "."; "/": folders

  // "skips val.bin, which --held_out holds out; 2 names that begin with "." (._a.txt, .b.txt); 3 of .npy (…)", or
  // empty.
  std::string Skipped() const;
};

// INVALID_ARGUMENT: the folder has no data, data of two kinds, or a README alone beside files that are skipped.
// `held_out_path` is a file or folder, or empty.
absl::StatusOr<TokenFolder> FindTokenFiles(const std::string& path, const std::string& held_out_path);

// Whether both are one file, also by a link, or have the same bytes; either may be a folder with such a file.
bool HasSameFile(const std::string& path, const std::string& held_out_path);

}  // namespace causeway::formats
