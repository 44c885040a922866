"""Shows that core/clock.cc alone reads the machine's clocks, so that a test can move the time of everything else.

    clock_test.py               checks this tree, and first that the checker sees planted violations

Times that libraries read by themselves are not seen: the log's, TLS's when it looks at a certificate, those of waits.
"""

import pathlib
import re
import sys
import tempfile
import unittest

from includes_test import ROOT, SOURCE_SUFFIXES, parse_house

READER = "core/clock.cc"
READS = re.compile(
    r"\b\w*[Cc]lock::now\b"  # those of <chrono>, and aliases of them
    r"|\babsl::(Now|GetCurrentTimeNanos)\b"
    r"|\b(clock_gettime|gettimeofday|timespec_get|ftime|gpr_now|__rdtsc)\s*\("
    r"|(?<![\w.>])time\s*\(\s*(nullptr|NULL|0|&\w+)\s*\)"
    r"|\bstd::clock\s*\(")
COMMENT = re.compile(r"//.*")


def check_tree(root, folders):
    """All reads of the time in C++ below `folders` of `root`, each as "file:line: what"."""
    faults = []
    for folder in sorted(folders):
        for path in sorted((root / folder).rglob("*")):
            source = path.relative_to(root).as_posix()
            if path.suffix not in SOURCE_SUFFIXES or source == READER:
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if read := READS.search(COMMENT.sub("", line)):
                    faults.append(f"{source}:{number}: {read.group()}")
    return faults


class PlantedViolations(unittest.TestCase):
    def faults_of(self, *lines, path="server/calls/a.cc"):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text("".join(line + "\n" for line in lines))
            return check_tree(pathlib.Path(folder), {"core", "server"})

    def test_each_way_to_read_the_time_is_named_with_file_and_line(self):
        for line, read in (("auto t = std::chrono::steady_clock::now();", "steady_clock::now"),
                           ("std::chrono::system_clock::now() + kTimeout", "system_clock::now"),
                           ("high_resolution_clock::now()", "high_resolution_clock::now"),
                           ("const auto t = Clock::now();", "Clock::now"), ("now = SteadyClock::now;", "SteadyClock::now"),
                           ("absl::ToUnixMillis(absl::Now())", "absl::Now"),
                           ("absl::GetCurrentTimeNanos()", "absl::GetCurrentTimeNanos"),
                           ("clock_gettime(CLOCK_MONOTONIC, &now);", "clock_gettime("),
                           ("gettimeofday(&now, nullptr);", "gettimeofday("), ("gpr_now(GPR_CLOCK_REALTIME)", "gpr_now("),
                           ("std::time(nullptr)", "time(nullptr)"), ("time_t t; time(&t);", "time(&t)"),
                           ("std::clock()", "std::clock(")):
            self.assertEqual([f"server/calls/a.cc:2: {read}"], self.faults_of("#include <chrono>", line))

    def test_every_kind_of_file_is_looked_at(self):
        for path in ("core/a.h", "core/b/a.cuh", "server/main.cc", "server/merge/a.cu"):
            self.assertEqual([f"{path}:1: steady_clock::now"], self.faults_of("steady_clock::now()", path=path))

    def test_a_clock_that_was_given_passes(self):
        self.assertEqual([], self.faults_of(
            "core::SystemClock().Now(); clock_.NowMs(); clock->Calendar(); options_.clock->UnixMs();",
            "using TimePoint = std::chrono::steady_clock::time_point;  // of steady_clock::now()",
            "std::this_thread::sleep_until(end);", "const core::Clock& clock() const;", "run.clock(); Runtime(0);"))

    def test_the_one_reader_passes(self):
        self.assertEqual([], self.faults_of("return std::chrono::steady_clock::now();", path=READER))


class ThisTree(unittest.TestCase):
    def test_one_file_reads_the_time(self):
        table = parse_house((ROOT / "docs" / "architecture.md").read_text())
        folders = {folder.split("/")[0] for folder in table} - {"tests"}
        for folder in ("core", "codecs", "server", "transport", "worker"):
            self.assertIn(folder, folders, "docs/architecture.md lost its table of folders")
        self.assertTrue(READS.search((ROOT / READER).read_text()), f"{READER} does not read the time any more")
        self.assertEqual("", "\n".join(check_tree(ROOT, folders)))


if __name__ == "__main__":
    sys.exit(unittest.main())
