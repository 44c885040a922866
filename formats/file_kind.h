// Recognises a file by how it begins, whatever its name: the one table of kinds, for data, models and configs alike.
//
//   1f 8b 08 …              ─►  a gzip file                     unpack it: gunzip
//   93 N U M P Y …          ─►  a NumPy array                   formats/token_shard.cc reads it
//   version https://git-lfs ─►  a Git LFS pointer               git lfs pull brings the file
//   tokens, text, JSON      ─►  none
//
// Token files have no magic of their own and begin with any bytes, so that each kind is recognised by four bytes or
// more, or by fields that fit each other. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace causeway::formats {

struct FileKind {
  std::string_view name;           // "a gzip file"
  std::string_view as_data;        // what a person does to train on it
  std::string_view as_model = {};  // the same where a file of a model is expected; empty: as_data
  bool stands_in = false;          // it stands for the intended file: a pointer, or a web server's answer
  bool is_safetensors = false;
};

// Null: the kind is not known. `bytes` is the file, or its first 512 bytes or more.
const FileKind* RecognizeFile(std::span<const std::byte> bytes);

// For a file that is to be text: knows UTF-16 and UTF-32, too, whose marks are tokens elsewhere.
const FileKind* RecognizeText(std::span<const std::byte> bytes);

bool IsNumpyArray(std::span<const std::byte> bytes);

// The use that a file is read for.
enum class FileUse { kData, kModel };

// INVALID_ARGUMENT: "PATH: expected WHAT, got a gzip file (.gz): unpack it with gunzip". OK for null.
absl::Status RefuseKind(const std::string& path, const FileKind* kind, std::string_view expected, FileUse use);

}  // namespace causeway::formats
