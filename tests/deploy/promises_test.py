"""README, CHANGELOG, CONTRIBUTING and docs against what is there: what they promise, and with what they prove it."""

import json
import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = os.environ.get("CAUSEWAY_BIN_DIR")


def text(name):
    return (ROOT / name).read_text()


def section(name, title):
    return re.search(rf"^#+ {title}$(.*?)(?=^#|\Z)", text(name), re.MULTILINE | re.DOTALL)[1]


def is_command(text):
    """A script's name and what follows it; a runner's first word is one of its modules: tests/bench/run NAME."""
    name, *words = text.split()
    modules = [(ROOT / name).with_name(folder) / f"{word}.py" for folder in ("benchmarks", "scenarios") for word in words[:1]]
    runs = name.endswith("/run") and words and not words[0].startswith("-")
    return os.access(ROOT / name, os.X_OK) and (not runs or any(path.is_file() for path in modules))


class Promises(unittest.TestCase):
    @unittest.skipUnless(BINARIES, "CAUSEWAY_BIN_DIR names no build")
    def test_the_help_of_each_command_has_its_flags_alone_and_fits_a_terminal(self):
        def said(*words):
            return subprocess.run([f"{BINARIES}/causewayctl", *words], capture_output=True, text=True, check=False).stdout

        full = said("--helpfull")
        names = re.findall(r"^causewayctl ((?:plan )?[a-z-]+)", full, re.MULTILINE)
        self.assertIn("plan pipeline", names)
        for name in [[], *(name.split() for name in names)]:
            lines = said(*name, "--help").splitlines()
            self.assertLessEqual(max(map(len, lines)), 80, name)
            self.assertLessEqual(len(lines), 50, name)
        flags = set(re.findall(r"^  --(\w+)", full, re.MULTILINE))
        in_help = {flag for name in names for flag in re.findall(r"--(\w+)", said(*name.split(), "--help"))}
        self.assertEqual(set(), flags - in_help, "each flag is in a command's help")
        self.assertNotIn("--link_mbit", said("drain", "--help"))

    @unittest.skipUnless(BINARIES, "CAUSEWAY_BIN_DIR names no build")
    def test_the_reference_of_settings_is_what_causewayctl_prints(self):
        printed = subprocess.run([f"{BINARIES}/causewayctl", "settings", "--markdown"], capture_output=True, text=True,
                                 check=True).stdout
        self.assertEqual(printed, text("docs/reference.md"), "causewayctl settings --markdown >docs/reference.md")

    def test_the_format_of_state_directories_is_said_as_the_store_writes_it(self):
        said = re.findall(r"State directories are of format (\d+)", text("CHANGELOG.md"))
        self.assertEqual(re.findall(r"constexpr int64_t kFormat = (\d+);", text("server/store/schema.cc")), said)

    def test_each_promise_of_durability_names_what_keeps_it_and_tests_that_there_are(self):
        tests = subprocess.run(["git", "grep", "-hoE", r"^TEST(_F)?\(\w+, \w+\)", "--", "tests"], cwd=ROOT,
                               capture_output=True, text=True, check=True).stdout
        there = {".".join(name) for name in re.findall(r"\((\w+), (\w+)\)", tests)}
        there |= {f"{path.parts[-3]}.{path.stem}" for path in (ROOT / "tests").rglob("testdata/*.txt")}  # scripts
        rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", text("docs/durability.md"), re.MULTILINE)[1:]
        self.assertGreater(len(rows), 15)
        for promise, keeper, holders in rows:
            for path in re.findall(r"`([\w/]+/[\w./]*)`", keeper):
                self.assertTrue((ROOT / path).exists(), f"{path}: {promise}")
            names = re.findall(r"`([^`]+)`", holders)
            self.assertTrue(names, promise)
            for name in names:
                e2e = name.startswith("e2e.") and (ROOT / f"tests/e2e/test_{name[4:]}.py").exists()
                self.assertTrue(e2e or name in there or is_command(name), f"{name}: {promise}")

    def test_each_claim_of_performance_names_a_command_that_there_is_and_a_figure(self):
        rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \| (.*) \|$", text("docs/performance.md"), re.MULTILINE)
        claims = [row for row in rows if row[0] not in ("claim", "---")]
        self.assertGreater(len(claims), 20)
        for claim, figure, commands, _ in claims:
            self.assertRegex(figure, r"\d", claim)
            names = re.findall(r"`([^`]+)`( \([0-9a-f]{8}\))?", commands)
            self.assertTrue(names, claim)
            for name, before in names:  # `before`: a commit that has it
                e2e = name.startswith("e2e.") and (ROOT / f"tests/e2e/test_{name[4:]}.py").exists()
                self.assertTrue(e2e or before or is_command(name), f"{name}: {claim}")

    def test_presets_are_those_that_there_are_and_none_is_reserved(self):
        presets = [preset["name"] for preset in json.loads(text("CMakePresets.json"))["configurePresets"]
                   if not preset.get("hidden")]
        rows = re.findall(r"^\| (`.*?) \| (.*) \|$", section("CONTRIBUTING.md", "Build and test"), re.MULTILINE)
        self.assertEqual(sorted(presets), sorted(name for names, _ in rows for name in re.findall(r"`(\w+)`", names)))
        for names, what in rows:
            self.assertNotIn("reserved", what, names)

    @unittest.skipUnless(BINARIES, "CAUSEWAY_BIN_DIR names no build")
    def test_flags_in_the_readme_are_flags_of_a_program_or_a_script(self):
        known = {"profile", "build", *re.findall(r"\(.(?:--)?(\w+).,", text("python/causeway/fit.py"))}  # docker compose's, fit's
        programs = [pathlib.Path(BINARIES) / name for name in ("causeway-coordinator", "causeway-worker", "causewayctl")]
        for program in [*programs, ROOT / "deploy/quickstart"]:
            said = subprocess.run([program, "--help" if program.name == "quickstart" else "--helpfull"], capture_output=True, text=True, check=True)
            known |= set(re.findall(r"--(\w+)", said.stdout))
        self.assertLessEqual(set(re.findall(r"--([a-z_]+)", text("README.md"))), known)


if __name__ == "__main__":
    unittest.main()
