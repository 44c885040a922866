#include "ctl/report_command.h"

#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "ctl/report.h"
#include "formats/atomic_file.h"
#include "formats/mapped_file.h"

ABSL_FLAG(std::string, model, "", "report: the folder of an export, which the report says how to load");
ABSL_FLAG(std::string, sample, "", "report: a text file that the model wrote");

namespace causeway::ctl {
namespace {

absl::StatusOr<ReportEvents> AllEvents(Client& client) {
  ReportEvents events;
  int64_t after_id = 0;
  while (true) {
    ASSIGN_OR_RETURN(const v1::HistoryResponse page, client.History(after_id, ""));
    if (page.events().empty()) return events;
    after_id = page.events().rbegin()->id();
    for (const v1::HistoryEvent& event : page.events()) events.Add(event);
  }
}

}  // namespace

absl::Status RunReportCommand(Client& client, const std::string& out, const std::string& coordinator) {
  if (out.empty()) return absl::InvalidArgumentError("report: expected --out=FILE.html");
  ReportInput input{.coordinator = coordinator, .model_dir = absl::GetFlag(FLAGS_model)};
  if (const std::string path = absl::GetFlag(FLAGS_sample); !path.empty()) {
    ASSIGN_OR_RETURN(const formats::MappedFile file, formats::MappedFile::Map(path));
    input.sample.assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  }
  ASSIGN_OR_RETURN(input.status_json, client.StatusJson());
  ASSIGN_OR_RETURN(input.events, AllEvents(client));
  ASSIGN_OR_RETURN(const std::string html, ReportHtml(input));
  if (absl::Status status = formats::WriteFileAtomically(out, html); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--out: ", status.message()));
  }
  std::printf("%s\n", out.c_str());
  return absl::OkStatus();
}

}  // namespace causeway::ctl
