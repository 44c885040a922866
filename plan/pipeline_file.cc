#include "plan/pipeline_file.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/text.h"

namespace causeway::plan {
namespace {

constexpr char kHeading[] = "causeway-schedule";
constexpr int kMostCounted = 100'000;        // of anything that is counted
constexpr int64_t kMostPlaces = 10'000'000;  // stages of all copies, and steps

std::string LayersText(const StageLayers& layers) {
  std::vector<std::string> parts;
  if (layers.embedding) parts.push_back("embed");
  if (layers.last == layers.first) parts.push_back(absl::StrCat(layers.first));
  if (layers.last > layers.first) parts.push_back(absl::StrCat(layers.first, "-", layers.last));
  if (layers.head) parts.push_back("head");
  return parts.empty() ? "none" : absl::StrJoin(parts, "+");
}

// The words of a file, with where they stand.
struct Word {
  std::string_view text;
  int line = 0, column = 0;
};

std::vector<std::vector<Word>> LinesOf(std::string_view text) {
  std::vector<std::vector<Word>> lines;
  int number = 1;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    std::vector<Word> words;
    for (size_t at = 0; at < line.size();) {
      const size_t begin = line.find_first_not_of(" \t\r", at);
      if (begin == std::string_view::npos) break;
      const size_t stop = std::min(line.find_first_of(" \t\r", begin), line.size());
      words.push_back({line.substr(begin, stop - begin), number, static_cast<int>(begin) + 1});
      at = stop;
    }
    if (!words.empty()) lines.push_back(std::move(words));
    ++number;
  }
  return lines;
}

class Parser {
 public:
  Parser(std::string_view text, std::string name) : name_(std::move(name)), lines_(LinesOf(text)) {}

  absl::StatusOr<PipelineFile> Parse();

 private:
  absl::Status Error(const Word& at, const std::string& expected) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ":", at.line, ":", at.column, ": expected ", expected,
                                                   ", got ",
                                                   at.text.empty() ? "the end of the line" : core::Shown(at.text)));
  }
  // The word at `i`, or the end of the line.
  static Word At(const std::vector<Word>& line, size_t i) {
    if (i < line.size()) return line[i];
    const Word& last = line.back();
    return {"", last.line, last.column + static_cast<int>(last.text.size())};
  }
  absl::StatusOr<int> Number(const Word& word, std::string_view text, int least, const std::string& expected) const;
  absl::Status ParseHead(const std::vector<Word>& line);
  absl::Status ParseWidth(const std::vector<Word>& line);
  absl::Status ParsePlace(const std::vector<Word>& line);
  absl::Status ParseSplit(const std::vector<Word>& line);
  absl::Status ParseDevice(const std::vector<Word>& line);
  absl::StatusOr<Operation> ParseOperation(const Word& word, std::string_view text) const;
  absl::StatusOr<StageLayers> ParseLayers(const Word& word, std::string_view text) const;

  const std::string name_;
  const std::vector<std::vector<Word>> lines_;
  PipelineFile file_;
  std::vector<bool> has_list_;
};

absl::StatusOr<int> Parser::Number(const Word& word, std::string_view text, int least,
                                   const std::string& expected) const {
  int value = 0;
  const bool plain = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  const bool reads = plain && std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
  if (reads && value >= least && value <= kMostCounted) return value;
  return Error(word, expected);
}

absl::Status Parser::ParseHead(const std::vector<Word>& line) {
  int* const values[] = {&file_.schedule.devices, &file_.schedule.micro_batches, &file_.schedule.stages,
                         &file_.schedule.copies};
  constexpr const char* kNames[] = {"devices", "micro_batches", "stages", "replicas"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    const Word key = At(line, 2 * i), value = At(line, 2 * i + 1);
    if (key.text != kNames[i]) return Error(key, kNames[i]);
    ASSIGN_OR_RETURN(*values[i], Number(value, value.text, 1, "a number from 1 on"));
  }
  if (line.size() > 8) return Error(line[8], "the end of the line");
  const PipelineSchedule& s = file_.schedule;
  if (int64_t{s.stages} * s.copies > kMostPlaces) return Error(line[5], "fewer stages");
  file_.schedule.place.assign(static_cast<size_t>(s.copies), std::vector<int>(static_cast<size_t>(s.stages), -1));
  file_.schedule.lists.resize(static_cast<size_t>(s.devices));
  has_list_.resize(static_cast<size_t>(s.devices));
  return absl::OkStatus();
}

absl::Status Parser::ParseWidth(const std::vector<Word>& line) {
  const Word number = At(line, 1), kind = At(line, 2);
  ASSIGN_OR_RETURN(file_.width, Number(number, number.text, 1, "a number from 1 on"));
  if (kind.text != "copies" && kind.text != "shards") return Error(kind, "copies or shards");
  file_.shards = kind.text == "shards";
  return line.size() > 3 ? Error(line[3], "the end of the line") : absl::OkStatus();
}

absl::Status Parser::ParsePlace(const std::vector<Word>& line) {
  for (size_t i = 1; i < line.size(); ++i) {
    constexpr char kExpected[] = "STAGE:DEVICE or rCOPY.STAGE:DEVICE";
    std::string_view text = line[i].text;
    int copy = 0;
    if (text.starts_with("r")) {
      const size_t dot = text.find('.');
      if (dot == std::string_view::npos) return Error(line[i], kExpected);
      ASSIGN_OR_RETURN(copy, Number(line[i], text.substr(1, dot - 1), 0, kExpected));
      text.remove_prefix(dot + 1);
    }
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos) return Error(line[i], kExpected);
    ASSIGN_OR_RETURN(const int stage, Number(line[i], text.substr(0, colon), 0, kExpected));
    ASSIGN_OR_RETURN(const int device, Number(line[i], text.substr(colon + 1), 0, kExpected));
    const PipelineSchedule& s = file_.schedule;
    if (copy >= s.copies || stage >= s.stages || device >= s.devices) {
      return Error(line[i],
                   absl::StrCat("one of ", s.copies, " copies, ", s.stages, " stages and ", s.devices, " devices"));
    }
    int& place = file_.schedule.place[static_cast<size_t>(copy)][static_cast<size_t>(stage)];
    if (place >= 0) return Error(line[i], "each stage once");
    place = device;
  }
  return absl::OkStatus();
}

absl::StatusOr<StageLayers> Parser::ParseLayers(const Word& word, std::string_view text) const {
  constexpr char kExpected[] = "STAGE:LAYERS, with layers such as embed+0-2, 3-4, 5, 14-15+head or none";
  StageLayers layers;
  if (text == "none") return layers;
  bool ranged = false;
  while (true) {
    const size_t plus = text.find('+');
    const std::string_view part = text.substr(0, plus);
    if (part == "embed" && !layers.embedding && !ranged && !layers.head) {
      layers.embedding = true;
    } else if (part == "head" && !layers.head) {
      layers.head = true;
    } else {
      if (ranged || layers.head) return Error(word, kExpected);
      const size_t dash = part.find('-');
      ASSIGN_OR_RETURN(layers.first, Number(word, part.substr(0, dash), 0, kExpected));
      layers.last = layers.first;
      if (dash != std::string_view::npos) {
        ASSIGN_OR_RETURN(layers.last, Number(word, part.substr(dash + 1), layers.first + 1, kExpected));
      }
      ranged = true;
    }
    if (plus == std::string_view::npos) return layers;
    text.remove_prefix(plus + 1);
  }
}

absl::Status Parser::ParseSplit(const std::vector<Word>& line) {
  if (!file_.split.empty()) return Error(line[0], "one line of split");
  for (size_t i = 1; i < line.size(); ++i) {
    const size_t colon = line[i].text.find(':');
    const std::string expected = absl::StrCat("stage ", i - 1, " and its layers, as in ", i - 1, ":3-4");
    if (colon == std::string_view::npos || line[i].text.substr(0, colon) != absl::StrCat(i - 1)) {
      return Error(line[i], expected);
    }
    ASSIGN_OR_RETURN(const StageLayers layers, ParseLayers(line[i], line[i].text.substr(colon + 1)));
    file_.split.push_back(layers);
  }
  if (std::ssize(file_.split) == file_.schedule.stages) return absl::OkStatus();
  return Error(At(line, line.size()), absl::StrCat("the layers of ", file_.schedule.stages, " stages"));
}

absl::StatusOr<Operation> Parser::ParseOperation(const Word& word, std::string_view text) const {
  constexpr char kExpected[] = "an operation such as 0F1, 7I0, 3A, r1.7W0 or (0F5;7B1)";
  Operation operation;
  if (text.starts_with("r")) {
    const size_t dot = text.find('.');
    if (dot == std::string_view::npos) return Error(word, kExpected);
    ASSIGN_OR_RETURN(operation.copy, Number(word, text.substr(1, dot - 1), 0, kExpected));
    text.remove_prefix(dot + 1);
  }
  const size_t letter = text.find_first_not_of("0123456789");
  if (letter == std::string_view::npos) return Error(word, kExpected);
  const size_t kind = std::string_view(kOperationLetters).find(text[letter]);
  if (kind == std::string_view::npos) return Error(word, kExpected);
  operation.kind = static_cast<OperationKind>(kind);
  ASSIGN_OR_RETURN(operation.stage, Number(word, text.substr(0, letter), 0, kExpected));
  const std::string_view rest = text.substr(letter + 1);
  if (!IsCompute(operation.kind)) return rest.empty() ? absl::StatusOr<Operation>(operation) : Error(word, kExpected);
  ASSIGN_OR_RETURN(operation.micro_batch, Number(word, rest, 0, kExpected));
  return operation;
}

absl::Status Parser::ParseDevice(const std::vector<Word>& line) {
  const Word number = At(line, 1);
  const std::string_view digits = number.text.substr(0, number.text.find(':'));
  ASSIGN_OR_RETURN(const int device, Number(number, digits, 0, "the number of a device and a colon"));
  if (device >= file_.schedule.devices || digits.size() + 1 != number.text.size()) {
    return Error(number, absl::StrCat("the number of one of ", file_.schedule.devices, " devices and a colon"));
  }
  if (has_list_[static_cast<size_t>(device)]) return Error(number, "one list for each device");
  has_list_[static_cast<size_t>(device)] = true;
  auto& list = file_.schedule.lists[static_cast<size_t>(device)];
  for (size_t i = 2; i < line.size(); ++i) {
    std::string_view text = line[i].text;
    ScheduleStep step;
    if (text.starts_with("(")) {
      const size_t middle = text.find(';');
      if (middle == std::string_view::npos || !text.ends_with(")")) {
        return Error(line[i], "a pair such as (0F5;7B1)");
      }
      ASSIGN_OR_RETURN(step.first, ParseOperation(line[i], text.substr(1, middle - 1)));
      ASSIGN_OR_RETURN(step.second, ParseOperation(line[i], text.substr(middle + 1, text.size() - middle - 2)));
      const bool computes = IsCompute(step.first.kind) && IsCompute(step.second->kind);
      if (!computes) return Error(line[i], "a pair of F, B, I or W");
    } else {
      ASSIGN_OR_RETURN(step.first, ParseOperation(line[i], text));
    }
    list.push_back(step);
  }
  return absl::OkStatus();
}

absl::StatusOr<PipelineFile> Parser::Parse() {
  const auto ends = [&](const char* expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ":", lines_.size() + 1, ":1: expected ", expected, ", got the end of the file"));
  };
  if (lines_.empty()) return ends("causeway-schedule 1");
  const auto& heading = lines_[0];
  if (heading[0].text != kHeading) return Error(heading[0], kHeading);
  if (At(heading, 1).text != "1" || heading.size() > 2) return Error(At(heading, 1), "version 1");
  if (lines_.size() < 2) return ends("devices N micro_batches N stages N replicas N");
  RETURN_IF_ERROR(ParseHead(lines_[1]));
  for (size_t i = 2; i < lines_.size(); ++i) {
    const auto& line = lines_[i];
    if (line[0].text == "width") {
      RETURN_IF_ERROR(ParseWidth(line));
    } else if (line[0].text == "place") {
      RETURN_IF_ERROR(ParsePlace(line));
    } else if (line[0].text == "split") {
      RETURN_IF_ERROR(ParseSplit(line));
    } else if (line[0].text == "device") {
      RETURN_IF_ERROR(ParseDevice(line));
    } else {
      return Error(line[0], "width, place, split or device");
    }
  }
  const Word end = At(lines_.back(), lines_.back().size());
  for (const auto& place : file_.schedule.place) {
    const auto missing = std::ranges::find(place, -1);
    if (missing != place.end()) return Error(end, absl::StrCat("a place for stage ", missing - place.begin()));
  }
  const auto missing = std::ranges::find(has_list_, false);
  if (missing != has_list_.end()) return Error(end, absl::StrCat("a list for device ", missing - has_list_.begin()));
  return file_;
}

}  // namespace

std::string WritePipelineFile(const PipelineFile& file) {
  const PipelineSchedule& s = file.schedule;
  std::string text = absl::StrCat(kHeading, " 1\ndevices ", s.devices, " micro_batches ", s.micro_batches, " stages ",
                                  s.stages, " replicas ", s.copies, "\n");
  if (file.width != 1) absl::StrAppend(&text, "width ", file.width, file.shards ? " shards\n" : " copies\n");
  for (int copy = 0; copy < s.copies; ++copy) {
    absl::StrAppend(&text, "place");
    for (int stage = 0; stage < s.stages; ++stage) {
      absl::StrAppend(&text, copy == 0 ? " " : absl::StrCat(" r", copy, "."), stage, ":",
                      s.place[static_cast<size_t>(copy)][static_cast<size_t>(stage)]);
    }
    absl::StrAppend(&text, "\n");
  }
  if (!file.split.empty()) {
    absl::StrAppend(&text, "split");
    for (size_t i = 0; i < file.split.size(); ++i) absl::StrAppend(&text, " ", i, ":", LayersText(file.split[i]));
    absl::StrAppend(&text, "\n");
  }
  for (size_t d = 0; d < s.lists.size(); ++d) {
    absl::StrAppend(&text, "device ", d, ":");
    for (const ScheduleStep& step : s.lists[d]) absl::StrAppend(&text, " ", StepText(step));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

absl::StatusOr<PipelineFile> ParsePipelineFile(std::string_view text, const std::string& name) {
  return Parser(text, name).Parse();
}

absl::StatusOr<std::string> TorchCsv(const PipelineSchedule& schedule) {
  if (schedule.copies != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("V9: expected one copy of the weights, since a stage of PyTorch is on "
                     "one rank, got ",
                     schedule.copies));
  }
  std::string text;
  for (const auto& list : schedule.lists) {
    std::vector<std::string> cells;
    for (const ScheduleStep& step : list) {
      if (!IsCompute(step.first.kind)) continue;
      cells.push_back(step.second ? absl::StrCat(StepText(step), "OVERLAP_F_B") : StepText(step));
    }
    absl::StrAppend(&text, absl::StrJoin(cells, ","), "\n");
  }
  return text;
}

}  // namespace causeway::plan
