#include "server/calls/model_files.h"

#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/atomic_file.h"
#include "formats/model_directory.h"
#include "formats/posix_file.h"

namespace causeway::server {
namespace {

constexpr char kList[] = "/files.json", kContents[] = "/files/";

absl::Status CheckList(const v1::KeepFileRequest& request) {
  int64_t bytes = 0;
  std::set<std::string> names;
  for (const v1::ModelFile& file : request.files()) {
    RETURN_IF_ERROR(formats::CheckModelFileName(file.name()));
    names.insert(file.name());
    bytes += file.bytes();
  }
  if (std::ssize(names) == request.files_size() && names.size() <= formats::kMaxModelFiles &&
      bytes <= formats::kMaxModelFilesBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("files of the model: expected up to ", formats::kMaxModelFiles, " of ",
                                                 formats::kMaxModelFilesBytes, " bytes in all, got ",
                                                 request.files_size(), " of ", bytes));
}

}  // namespace

ModelFiles::ModelFiles(const std::string& state_dir) : state_dir_(state_dir) {
  core::MutexLock lock(mutex_);
  const absl::StatusOr<std::string> text = formats::ReadFile(state_dir_ + kList, 1 << 20);
  if (!text.ok()) return;
  if (!google::protobuf::util::JsonStringToMessage(*text, &kept_).ok()) {
    spdlog::warn("{}{} is damaged: the sites are to say again which files belong to the model", state_dir_, kList);
    kept_.Clear();
  }
  LookForMissing();
}

std::string ModelFiles::PathOf(const std::string& name) const {
  return absl::StrCat(state_dir_, kContents, name, ".zst");
}

void ModelFiles::LookForMissing() {
  kept_.clear_missing();
  for (const v1::ModelFile& file : kept_.files()) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(PathOf(file.name()), error)) kept_.add_missing(file.name());
  }
}

absl::Status ModelFiles::Begin(const v1::KeepFileRequest& request) {
  RETURN_IF_ERROR(CheckList(request));
  v1::KeptFiles list;
  *list.mutable_files() = request.files();
  list.set_site(request.context().site());
  std::string text;
  CHECK(google::protobuf::util::MessageToJsonString(list, &text).ok());
  RETURN_IF_ERROR(formats::MakePrivateFolder(state_dir_ + kContents));
  RETURN_IF_ERROR(formats::WriteFileAtomically(state_dir_ + kList, text));
  kept_ = std::move(list);
  LookForMissing();
  return absl::OkStatus();
}

absl::Status ModelFiles::Write(const v1::KeepFileRequest& request) {
  const auto listed = std::ranges::find(kept_.files(), request.name(), &v1::ModelFile::name);
  if (listed == kept_.files().end()) {
    return absl::InvalidArgumentError(absl::StrCat("expected a file of the run's model, got ", request.name()));
  }
  RETURN_IF_ERROR(formats::ExpandModelFile({.name = listed->name(),
                                            .bytes = listed->bytes(),
                                            .digest = listed->digest(),
                                            .compressed = request.contents()})
                      .status());
  RETURN_IF_ERROR(formats::WriteFileAtomically(PathOf(listed->name()), request.contents()));
  LookForMissing();
  if (kept_.missing().empty()) {
    spdlog::info("the model's files are here, from site {}: {}", request.context().site(), kept_.files_size());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::KeptFiles> ModelFiles::Keep(const v1::KeepFileRequest& request) {
  core::MutexLock lock(mutex_);
  if (kept_.files().empty() && !request.files().empty()) RETURN_IF_ERROR(Begin(request));
  if (!request.name().empty()) RETURN_IF_ERROR(Write(request));
  return kept_;
}

v1::KeptFiles ModelFiles::List() const {
  core::MutexLock lock(mutex_);
  return kept_;
}

absl::StatusOr<std::string> ModelFiles::Read(const std::string& name) const {
  core::MutexLock lock(mutex_);
  const auto listed = std::ranges::find(kept_.files(), name, &v1::ModelFile::name);
  if (listed == kept_.files().end()) return absl::NotFoundError(absl::StrCat("the run's model has no file ", name));
  return formats::ReadFile(PathOf(name), formats::kMaxCompressedFileBytes);
}

}  // namespace causeway::server
