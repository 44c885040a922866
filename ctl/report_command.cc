#include "ctl/report_command.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/check.h"
#include "core/json_text.h"
#include "ctl/figures_text.h"
#include "ctl/loss_chart.h"
#include "ctl/standard_streams.h"
#include "formats/atomic_file.h"
#include "formats/mapped_file.h"

namespace causeway::ctl {
namespace {

using nlohmann::json;

constexpr size_t kSampleBytes = 4000;
// So that a report stays below 1 MB.
constexpr size_t kMostFragments = 256;
constexpr size_t kEventBytes = 600;
constexpr size_t kSettingsBytes = 200'000;

constexpr char kHead[] = R"html(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>%s</title><style>
:root { color-scheme: light dark; --ground: #f5f6f8; --card: #fff; --text: #16202b; --muted: #55606e; --line: #d5dae1;
  --hue-0: #16202b; --hue-1: #1467c8; --hue-2: #a85b00; --hue-3: #0a7d4a; --hue-4: #8b3fc7; --hue-5: #b1005d;
  --hue-6: #00707a; --hue-7: #6b6200; }
@media (prefers-color-scheme: dark) { :root { --ground: #10151b; --card: #19212a; --text: #e8edf3; --muted: #a3b0bf;
  --line: #35414e; --hue-0: #e8edf3; --hue-1: #6cb0ff; --hue-2: #ffb757; --hue-3: #5fd07a; --hue-4: #d2a8ff;
  --hue-5: #ff8ac2; --hue-6: #4fd1dc; --hue-7: #d6d65c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1080px; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 24px; margin: 8px 0 0; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 0 0 8px; }
.muted { color: var(--muted); font-size: 13.5px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px;
  margin-top: 14px; overflow-x: auto; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 14px; margin: 0; }
dt { color: var(--muted); font-size: 13.5px; } dd { margin: 0; font-size: 20px; } dd small { display: block; font-size: 13.5px; color: var(--muted); }
table { border-collapse: collapse; width: 100%%; } th, td { text-align: left; padding: 4px 10px 4px 0; vertical-align: top; }
th { color: var(--muted); font-weight: 500; font-size: 13.5px; border-bottom: 1px solid var(--line); }
.n { text-align: right; } pre { margin: 0 0 8px; white-space: pre-wrap; overflow-wrap: anywhere; }
pre, code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
svg { width: 100%%; height: auto; } @media (max-width: 640px) { svg { min-width: 620px; } } svg text { font-size: 12px; fill: var(--muted); } .tick { stroke: var(--line); }
</style></head><body>
)html";

std::string TimeText(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone());
}

std::string Cut(const std::string& text, size_t bytes) {
  return text.size() <= bytes ? text : text.substr(0, bytes) + "…";
}

std::string Section(absl::string_view title, absl::string_view body) {
  return body.empty() ? "" : absl::StrCat("<section><h2>", title, "</h2>\n", body, "</section>\n");
}

struct Column {
  const char* title;
  bool is_number = false;
};

std::string Row(std::span<const Column> columns, const std::vector<std::string>& cells) {
  std::string html = "<tr>";
  for (size_t i = 0; i < columns.size(); ++i) {
    absl::StrAppend(&html, columns[i].is_number ? "<td class='n'>" : "<td>", HtmlText(cells[i]), "</td>");
  }
  return html + "</tr>\n";
}

std::string Table(std::span<const Column> columns, const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return "";
  std::string html = "<table><tr>";
  for (const Column& column : columns) {
    absl::StrAppend(&html, column.is_number ? "<th class='n'>" : "<th>", column.title, "</th>");
  }
  html += "</tr>\n";
  for (const std::vector<std::string>& row : rows) html += Row(columns, row);
  return html + "</table>\n";
}

template <typename T>
T Sum(const json& rows, const char* field) {
  T sum = 0;
  for (const json& row : rows) {
    if (row.at(field).is_number()) sum += row.at(field).get<T>();
  }
  return sum;
}

std::string Figure(const char* name, const std::string& value, const std::string& detail) {
  return absl::StrCat("<div><dt>", name, "</dt><dd>", HtmlText(value), "<small>", HtmlText(detail),
                      "</small></dd></div>\n");
}

std::string CodecText(const json& status) {
  const json &up = status.at("codec").at("up"), &down = status.at("codec").at("down");
  if (up == down) return up.get<std::string>();
  return absl::StrCat(up.get<std::string>(), " up and ", down.get<std::string>(), " down");
}

// The reduction of traffic compared with averaging float32 gradients at every step, and its factors.
std::string ReductionFigure(const json& status, int64_t crossed) {
  const json& config = status.at("config");
  if (crossed == 0 || !config.is_object()) return "";
  const double times = status.at("float32_every_step_bytes").get<double>() / static_cast<double>(crossed);
  const double every = config.at("sync").at("sync_every").get<double>();
  // Bytes count from the coordinator's start, steps from the run's.
  const bool restarted = status.at("epoch").get<int64_t>() > 1;
  return Figure("Less than float32 at every step", absl::StrFormat("%s%.0f times", restarted ? "at most " : "", times),
                absl::StrFormat("%g times by syncing every %g steps, %.1f times by %s", every, every, times / every,
                                CodecText(status)));
}

std::string Figures(const json& status) {
  const json& sites = status.at("sites");
  const int64_t up = Sum<int64_t>(sites, "up_bytes"), down = Sum<int64_t>(sites, "down_bytes");
  std::string html = "<section><dl>\n";
  if (const json& loss = status.at("eval_loss"); loss.is_object()) {
    html += Figure("Held-out loss", NumberText(loss.at("latest")),
                   absl::StrCat("from ", NumberText(loss.at("start")), " nats per token"));
  }
  const std::string bytes = absl::StrCat(BytesText(up), " up, ", BytesText(down), " down");
  html += Figure("Crossed the links", BytesText(up + down), bytes);
  html += ReductionFigure(status, up + down);
  const double wall_s = Sum<double>(sites, "wall_s");
  if (wall_s > 0) {
    html += Figure("Waited for updates", PercentText(Sum<double>(sites, "stall_s") / wall_s), "of the sites' time");
  }
  if (const int64_t tokens = Sum<int64_t>(sites, "tokens"); tokens > 0) {
    html += Figure("Tokens", absl::StrCat(tokens),
                   absl::StrCat("in ", sites.size(), sites.size() == 1 ? " site" : " sites"));
  }
  return html + "</dl></section>\n";
}

std::string LossCurves(const json& status) {
  std::vector<LossSeries> series;
  for (const json& site : status.at("sites")) {
    LossSeries one{.name = site.at("name")};
    for (const json& point : site.at("loss_history")) one.points.push_back({point.at(0), point.at(1)});
    series.push_back(std::move(one));
  }
  if (const json& loss = status.at("eval_loss"); loss.is_object()) {
    LossSeries held_out{.name = "held out", .emphasized = true};
    for (const json& point : loss.at("history")) held_out.points.push_back({point.at("unix_ms"), point.at("loss")});
    series.push_back(std::move(held_out));
  }
  return LossChartSvg(series);
}

std::string Integer(const json& value) { return value.is_number() ? GroupedText(value.get<int64_t>()) : "-"; }

std::string Sites(const json& status) {
  static constexpr Column kColumns[] = {{"site"},       {"state"},        {"step", true},     {"tokens/s", true},
                                        {"loss", true}, {"busy", true},   {"waited", true},   {"up", true},
                                        {"down", true}, {"merged", true}, {"same bits", true}};
  std::vector<std::vector<std::string>> rows;
  for (const json& site : status.at("sites")) {
    const std::string reason = site.at("reason");
    rows.push_back(
        {site.at("name"), absl::StrCat(StateText(site), reason.empty() ? "" : ": ", reason), Integer(site.at("step")),
         NumberText(site.at("tokens_per_s")), NumberText(site.at("loss")), PercentText(site.at("utilization")),
         NumberText(site.at("stall_s"), " s"), BytesText(site.at("up_bytes")), BytesText(site.at("down_bytes")),
         absl::StrCat(Integer(site.at("contributions_merged")), " of ", Integer(site.at("contributions_sent"))),
         absl::StrCat(Integer(site.at("digests_matching")), " fragments")});
  }
  return Table(kColumns, rows);
}

std::string Fragments(const json& status) {
  static constexpr Column kColumns[] = {
      {"fragment", true}, {"parameters", true}, {"rounds", true}, {"digest"}, {"state"}};
  std::vector<std::vector<std::string>> rows;
  for (const json& fragment : status.at("fragments")) {
    if (rows.size() == kMostFragments) break;
    rows.push_back({Integer(fragment.at("id")), Integer(fragment.at("parameters")), Integer(fragment.at("version")),
                    fragment.at("digest"), fragment.at("state")});
  }
  return Table(kColumns, rows);
}

std::string Events(const json& status, const ReportInput& input) {
  static constexpr Column kColumns[] = {{"time, UTC"}, {"kind"}, {"site or fragment"}, {"what happened"}};
  std::vector<std::vector<std::string>> rows;
  const ReportEvents& events = input.events;
  for (const auto& [unix_ms, event] : events.newest()) {
    rows.push_back({TimeText(unix_ms), event.kind(), SubjectText(event), Cut(event.text(), kEventBytes)});
  }
  std::string note = absl::StrCat("<p class='muted'>", events.rounds(), " rounds were merged");
  if (events.omitted() > 0)
    absl::StrAppend(&note, "; ", events.omitted(), " earlier events are in causewayctl history");
  if (const int shards = status.at("num_shards"); input.shards < shards) {
    absl::StrAppend(&note, "; these are the events of ", input.shards, " of ", shards,
                    " coordinators: name all in --coordinator");
  }
  return absl::StrCat(note, ".</p>\n", Table(kColumns, rows));
}

std::string Sample(const std::string& sample) {
  if (sample.empty()) return "";
  // Young models write control characters, too.
  std::string text;
  for (const char c : sample.substr(0, kSampleBytes)) text += c == '\n' || c == '\t' || c < 0 || c >= ' ' ? c : ' ';
  return absl::StrCat("<p class='muted'>Sampled; it continues held-out text.</p><pre>", HtmlText(text), "</pre>");
}

// How to load and prompt the model.
std::string Talk(const json& status, const ReportInput& input) {
  const std::string dir = input.model_dir.empty() ? "DIR" : input.model_dir;
  const json& config = status.at("config");
  const bool is_external = config.is_object() && config.at("model").at("kind") == "external";
  std::string html;
  if (input.model_dir.empty()) {
    absl::StrAppend(&html, "<p>Write the global parameters into a folder:</p><pre>causewayctl export --coordinator=",
                    HtmlText(input.coordinator), " --out=DIR</pre>");
  }
  if (is_external) {
    return absl::StrCat(html, "<p>Your own model takes the folder's tensors by their names, tied ones, too:</p><pre>",
                        HtmlText(absl::StrCat("from safetensors.torch import load_model\nload_model(model, \"", dir,
                                              "/model.safetensors\")")),
                        "</pre><p>If the folder has a config.json, transformers load it:</p><pre>",
                        HtmlText(absl::StrCat("from transformers import AutoModelForCausalLM\n"
                                              "model = AutoModelForCausalLM.from_pretrained(\"",
                                              dir, "\")")),
                        "</pre>");
  }
  return absl::StrCat(html, "<p>Hugging Face's transformers load the folder:</p><pre>",
                      HtmlText(absl::StrCat("from transformers import pipeline\nwrite = pipeline(\"text-generation\", "
                                            "model=\"",
                                            dir,
                                            "\")\nprint(write(\"The \", max_new_tokens=200)[0]"
                                            "[\"generated_text\"])")),
                      "</pre><p>Without Python: the held-out loss and another sample, of the file that it was trained "
                      "on:</p><pre>causeway-worker --evaluate=",
                      HtmlText(dir), " --data=FILE</pre>");
}

std::string Title(const json& status) { return absl::StrCat("Causeway run ", status.at("run_id").get<std::string>()); }

std::string Heading(const json& status) {
  const json& sites = status.at("sites");
  int64_t step = 0;
  for (const json& site : sites) {
    if (site.at("step").is_number()) step = std::max(step, site.at("step").get<int64_t>());
  }
  const std::string reason = status.at("reason");
  return absl::StrCat("<h1>", HtmlText(Title(status)), "</h1>\n<p>", HtmlText(status.at("state").get<std::string>()),
                      reason.empty() ? "" : ": ", HtmlText(reason), ", at step ", step, " in ", sites.size(),
                      sites.size() == 1 ? " site; " : " sites; ", MillionsText(status.at("parameters")),
                      " parameters in ", status.at("fragments").size(), " fragments.</p><p class='muted'>Causeway ",
                      HtmlText(status.at("version").get<std::string>()), ", ",
                      TimeText(status.at("unix_ms").get<int64_t>()), " UTC.</p>\n");
}

}  // namespace

void ReportEvents::Add(v1::HistoryEvent event, int shard) {
  if (event.kind() == "round") {
    ++rounds_;
    return;
  }
  if (shard > 0) event.set_text(absl::StrCat("shard ", shard, ": ", event.text()));
  const int64_t unix_ms = event.unix_ms();
  newest_.emplace(unix_ms, std::move(event));
  if (newest_.size() <= kMost) return;
  newest_.erase(newest_.begin());
  ++omitted_;
}

absl::StatusOr<std::string> ReportHtml(const ReportInput& input) try {
  ASSIGN_OR_RETURN(const json status, core::ParseJson<json>(input.status_json, "not a status of this version"));
  return absl::StrCat(
      absl::StrFormat(kHead, HtmlText(Title(status))), Heading(status), Figures(status),
      Section("Loss, nats per token", LossCurves(status)), Section("A sample of the model", Sample(input.sample)),
      Section("Talk to the model", Talk(status, input)), Section("Sites", Sites(status)),
      Section("Fragments", Fragments(status)), Section("Events", Events(status, input)),
      Section("Settings", absl::StrCat("<pre>", HtmlText(Cut(status.at("config").dump(2), kSettingsBytes)), "</pre>")),
      "</body></html>\n");
} catch (const json::exception& error) {
  return absl::InvalidArgumentError(absl::StrCat("not a status of this version: ", error.what()));
}

}  // namespace causeway::ctl

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
