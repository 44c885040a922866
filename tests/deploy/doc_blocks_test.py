"""Every block of code in README.md, CONTRIBUTING.md, docs/ and examples/ is tried: YAML by causewayctl config-check, Python
by its compiler, and run where it is a whole script, and of each command the program, its subcommand, flags and paths."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from doc_blocks import OWN_PROGRAMS, UNTRIED, Block, blocks_of, calls_of, paths_of
from harness import eventually, merged

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = os.environ.get("CAUSEWAY_BIN_DIR", "")
MOST_UNTRIED = 10  # blocks; it may only fall
FOLDERS = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in ("build", ".git", ".ci", "certs")]


def documents():
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted((ROOT / "examples").rglob("*.md"))


class Programs:
    """The flags of our own programs and scripts, and causewayctl's commands."""

    def __init__(self):
        self._flags = {}
        usage = self._output("causewayctl", "--helpfull")
        self.commands = set(re.findall(r"^\s*causewayctl ([a-z-]+)", usage, re.MULTILINE))
        self.commands |= set(re.findall(r"^\s*causewayctl [a-z-]+ \| ([a-z-]+)", usage, re.MULTILINE))

    @staticmethod
    def _output(program, flag):
        return subprocess.run([f"{BINARIES}/{program}", flag], capture_output=True, text=True, check=False).stdout

    def is_script(self, name):
        return "/" in name and not name.startswith("build/") and (ROOT / name).is_file() and os.access(ROOT / name, os.X_OK)

    @staticmethod
    def module(program, words):
        paths = [(ROOT / program).parent / folder / f"{words[0]}.py" for folder in ("benchmarks", "scenarios")] if words else []
        return next((path for path in paths if path.is_file()), None)

    def flags(self, program, words=()):
        """Also of a runner's modules: tests/bench/run NAME."""
        module = self.module(program, words)
        if module is not None:
            text = module.read_text() + "".join(path.read_text() for path in (ROOT / "tests/bench/bench_lib").glob("*.py"))
            return set(re.findall(r"--([a-z][\w-]*)", text)) | set(re.findall(r'"(\w+)": \(', text))
        if program not in self._flags:
            if program in OWN_PROGRAMS:
                text = self._output(program, "--helpfull")
            else:
                path = ROOT / program
                parts = [path, path.with_suffix(".py"), *path.parent.glob(f"{path.name}_lib/*.py")]
                text = "\n".join(part.read_text(errors="replace") for part in parts if part.is_file())
            self._flags[program] = set(re.findall(r"--([a-z][\w-]*)", text))
        return self._flags[program]


def faults_of_commands(block, programs):
    faults = []
    for line in block.commands():
        for program, words in calls_of(line, programs.is_script):
            for word in words:
                flag = re.match(r"^\[?--([\w-]+)", word)
                if flag and flag[1] not in programs.flags(program, words):
                    faults.append(f"{block.place}: {program} has no flag --{flag[1]}")
            subcommand = next((word for word in words if not word.startswith("-")), "")
            if program == "causewayctl" and re.fullmatch(r"[a-z-]+", subcommand) and subcommand not in programs.commands:
                faults.append(f"{block.place}: causewayctl has no command {subcommand}")
        for path in paths_of(line, FOLDERS):
            written = any(re.search(rf"(--out[= ]|>>?){re.escape(path)}", each) for each in block.commands())
            if not written and not list(ROOT.glob(path)):
                faults.append(f"{block.place}: there is no {path}")
    return faults


def fault_of_yaml(block, base):
    found = block.settings()
    if found is None:
        return f"{block.place}: no YAML of run.yaml's sections"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "run.yaml"
        file.write_text(block.text if "run_id" in found else json.dumps(merged(base, found)))
        done = subprocess.run([f"{BINARIES}/causewayctl", "config-check", file], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{block.place}: {done.stderr}"


def fault_of_python(block):
    try:
        compile(block.text, block.place, "exec")
    except SyntaxError as error:
        return f"{block.place}: {error}"
    return ""


class Planted(unittest.TestCase):
    def test_blocks_and_their_kinds(self):
        document = ("# A\n\n```python\nx = 1\n```\n\n    run: {steps: 3}\n\ntext\n\n    causewayctl status --json  # see\n\n"
                    "text\n\n    a ─► b\n\n<!-- untried: it is output -->\n\n    10 rounds\n\ntext\n\n"
                    "    $ causewayctl plan --x=1 \\\n        --y=2\n    1 round\n")
        blocks = list(blocks_of("a.md", document))
        self.assertEqual(["python", "yaml", "commands", "picture", "text", "commands"], [block.kind for block in blocks])
        self.assertEqual([4, 7, 11, 15, 19, 23], [block.line for block in blocks])
        self.assertEqual([False] * 4 + [True, False], [block.untried for block in blocks])
        self.assertEqual(["causewayctl plan --x=1      --y=2"], blocks[-1].commands())

    def test_own_programs_are_found_behind_foreign_ones_and_variables(self):
        own = lambda name: name == "deploy/certs"
        self.assertEqual([("deploy/certs", ["--out", "c"]), ("causewayctl", ["status", "--watch"])],
                         calls_of("A=b deploy/certs --out c && causewayctl status --watch  # --none", own))
        self.assertEqual([("causewayctl", ["export", "--out=/o"])],
                         calls_of("docker compose -f deploy/compose.yaml run --rm ctl export --out=/o", own))

    def test_a_whole_script_uses_no_name_that_it_does_not_define(self):
        undefined = lambda text: Block("a.md", 1, "python", text, False).undefined()
        self.assertEqual(set(), undefined("import os\nfor x in [1]:\n    print(os.sep, x)"))
        self.assertEqual({"model"}, undefined("import os\nprint(model)"))


@unittest.skipUnless(BINARIES, "CAUSEWAY_BIN_DIR names no build")
class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.blocks = [block for path in documents() for block in blocks_of(str(path.relative_to(ROOT)), path.read_text())]
        cls.tried = [block for block in cls.blocks if not block.untried]
        cls.programs = Programs()

    def of_kind(self, kind):
        return [block for block in self.tried if block.kind == kind]

    def test_every_block_is_of_a_kind_that_is_tried(self):
        self.assertGreater(len(self.blocks), 80)
        self.assertEqual([], [block.place for block in self.of_kind("text")], f"mark them with {UNTRIED} … -->")
        untried = [block.place for block in self.blocks if block.untried]
        self.assertLessEqual(len(untried), MOST_UNTRIED, untried)

    def test_every_yaml_is_taken_by_config_check(self):
        base = yaml.safe_load((ROOT / "deploy" / "run.yaml").read_text())
        self.assertGreater(len(self.of_kind("yaml")), 5)
        self.assertEqual("", "\n".join(filter(None, (fault_of_yaml(block, base) for block in self.of_kind("yaml")))))

    def test_every_python_compiles(self):
        self.assertGreater(len(self.of_kind("python")), 7)
        self.assertEqual("", "\n".join(filter(None, map(fault_of_python, self.of_kind("python")))))

    def test_every_python_that_is_a_whole_script_runs(self):  # those with PyTorch: tests/python/test_torch_docs.py
        whole = [block for block in self.of_kind("python") if not block.undefined()
                 and not re.search(r"^(import|from) (torch|transformers)", block.text, re.MULTILINE)]
        self.assertGreater(len(whole), 0)
        for block in whole:
            with tempfile.TemporaryDirectory() as folder:
                self.run_script(block, pathlib.Path(folder))

    def run_script(self, block, folder):
        """With a coordinator in the place of hub:7077."""
        (folder / "run.yaml").write_text("run_id: docs\nrun: {steps: 40}\nmodel: {kind: external}\n"
                                         "sync: {sync_every: 10, num_fragments: 1}\nmembership: {min_sites: 1}\n")
        addresses = folder / "state" / "addresses.json"
        with open(folder / "coordinator.log", "w") as log:
            coordinator = subprocess.Popen(
                [f"{BINARIES}/causeway-coordinator", f"--config={folder / 'run.yaml'}", f"--state_dir={folder / 'state'}",
                 "--listen=127.0.0.1:0", "--http=127.0.0.1:0"], stdout=log, stderr=log)
        try:
            eventually(lambda: addresses.exists() or coordinator.poll() is not None, "the coordinator listens")
            hub = json.loads(addresses.read_text())["grpc"]
            done = subprocess.run([sys.executable, "-c", block.text.replace("hub:7077", hub)], capture_output=True, text=True,
                                  timeout=120, cwd=folder, check=False, env={
                                      **os.environ, "PYTHONPATH": str(ROOT / "python"),
                                      "CAUSEWAY_LIBRARY": f"{BINARIES}/libcauseway.so"})
            self.assertEqual(0, done.returncode, f"{block.place}: {done.stderr}")
        finally:
            coordinator.terminate()
            coordinator.wait(60)

    def test_every_command_names_programs_flags_and_files_that_are_there(self):
        self.assertGreater(len(self.of_kind("commands")), 50)
        faults = [fault for block in self.of_kind("commands") for fault in faults_of_commands(block, self.programs)]
        self.assertEqual("", "\n".join(faults))


if __name__ == "__main__":
    sys.exit(unittest.main())
