#include "ctl/report_command.h"

#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "ctl/report.h"
#include "ctl/standard_streams.h"
#include "formats/atomic_file.h"
#include "formats/mapped_file.h"

ABSL_FLAG(std::string, model, "", "report: the folder of an export, which the report says how to load");
ABSL_FLAG(std::string, sample, "", "report: a text file that the model wrote");

namespace causeway::ctl {

absl::Status RunReportCommand(std::span<Client> shards, const std::string& out, const std::string& coordinator) {
  if (out.empty()) return absl::InvalidArgumentError("report: expected --out=FILE.html");
  const auto count = static_cast<int>(shards.size());
  ReportInput input{.shards = count, .coordinator = coordinator, .model_dir = absl::GetFlag(FLAGS_model)};
  if (const std::string path = absl::GetFlag(FLAGS_sample); !path.empty()) {
    ASSIGN_OR_RETURN(const formats::MappedFile file, formats::MappedFile::Map(path));
    input.sample.assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  }
  ASSIGN_OR_RETURN(input.status_json, shards.front().StatusJson());
  for (int i = 0; i < count; ++i) {
    int64_t after_id = 0;
    RETURN_IF_ERROR(shards[static_cast<size_t>(i)].ForEachEvent(
        "", &after_id, [&](const v1::HistoryEvent& event) { input.events.Add(event, i); }));
  }
  ASSIGN_OR_RETURN(const std::string html, ReportHtml(input));
  if (absl::Status status = formats::WriteFileAtomically(out, html); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--out: ", status.message()));
  }
  if (!IsStandardOutput(out.c_str())) std::printf("%s\n", out.c_str());
  return absl::OkStatus();
}

}  // namespace causeway::ctl
