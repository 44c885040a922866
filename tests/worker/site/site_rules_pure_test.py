"""Shows that the rules of a site are pure: they wait for nothing, share nothing, and know no time but what they are given.

    site_rules_pure_test.py     checks the rules of this tree, and first that the checker sees planted violations
"""

import pathlib
import re
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "worker" / "site"
RULES = ("site_rules", "join_rules", "fragment_rules", "site_state", "site_events")

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
HEADER = re.compile(
    r"^(mutex|shared_mutex|thread|condition_variable|chrono|atomic|future|core/mutex\.h|core/clock\.h)$"
    r"|^absl/(time|synchronization)/|(^|/)(spdlog|fmt|grpc|grpcpp)/|\.pb\.h$")
WORD = re.compile(r"\b(mutex|Mutex|MutexLock|condition_variable|steady_clock|system_clock|chrono|Clock|SystemClock|atomic|"
                  r"sleep|sleep_for|sleep_until|spdlog|grpc|std::thread|std::jthread|TaskThread)\b")


def faults_of(path):
    """Things that a file of the rules must not have, each as "file:line: what"."""
    faults = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        include = INCLUDE.match(line)
        if include and HEADER.search(include.group(1)):
            faults.append(f"{path.name}:{number}: includes {include.group(1)}")
        elif not include and (word := WORD.search(line)):
            faults.append(f"{path.name}:{number}: {word.group(1)}")
    return faults


def check(folder):
    """The faults of all files of the rules in `folder`, and their names."""
    files = [path for name in RULES for path in (folder / f"{name}.h", folder / f"{name}.cc") if path.exists()]
    return [fault for path in files for fault in faults_of(path)], [path.name for path in files]


class PlantedViolations(unittest.TestCase):
    def faults_of(self, *lines, name="site_rules.cc"):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / name).write_text("".join(line + "\n" for line in lines))
            return check(pathlib.Path(folder))[0]

    def test_pure_code_passes(self):
        self.assertEqual([], self.faults_of(
            "// No network, no lock, no thread, no time of its own; the task thread has the arrays.",
            "#include <string>", '#include "core/schedule.h"', '#include "absl/status/status.h"',
            '#include "transport/coordinator_link.h"', "int64_t now_us = 0;", "Clocked clock_rate(int thread);"))

    def test_each_include_is_named_with_file_and_line(self):
        for header in ("<mutex>", "<thread>", "<condition_variable>", "<chrono>", "<atomic>", "<future>",
                       '"core/mutex.h"', '"core/clock.h"', "<spdlog/spdlog.h>", '"grpcpp/grpcpp.h"', "<grpc/grpc.h>",
                       '"absl/time/time.h"', '"absl/synchronization/mutex.h"', '"causeway/v1/coordinator.grpc.pb.h"'):
            self.assertEqual([f"site_rules.cc:2: includes {header[1:-1]}"],
                             self.faults_of("#include <string>", f"#include {header}"))

    def test_each_word_is_named_with_file_and_line(self):
        for line, word in (("std::mutex m;", "mutex"), ("core::Mutex m;", "Mutex"), ("std::thread t;", "std::thread"),
                           ("auto t = std::chrono::steady_clock::now();", "chrono"), ("steady_clock::now()", "steady_clock"),
                           ("const core::Clock& clock_;", "Clock"), ("std::atomic<int> n;", "atomic"),
                           ("sleep(1);", "sleep"), ("this_thread::sleep_for(s)", "sleep_for"),
                           ('spdlog::info("x");', "spdlog"), ("grpc::Status s;", "grpc")):
            self.assertEqual([f"fragment_rules.h:1: {word}"], self.faults_of(line, name="fragment_rules.h"))

    def test_every_file_of_the_rules_is_looked_at_and_no_other(self):
        for name in RULES:
            for suffix in ("h", "cc"):
                self.assertEqual(1, len(self.faults_of("#include <mutex>", name=f"{name}.{suffix}")))
        self.assertEqual([], self.faults_of("#include <mutex>", name="site.h"))


class ThisTree(unittest.TestCase):
    def test_the_rules_are_pure(self):
        faults, files = check(FOLDER)
        for name in RULES:
            self.assertIn(f"{name}.h", files, "worker/site lost a file of the rules: name the new one here")
        self.assertEqual("", "\n".join(faults))


if __name__ == "__main__":
    sys.exit(unittest.main())
