"""Runs one of a folder's modules, case by case, and keeps their rows: tests/bench/run and tests/chaos/run say how."""

import argparse
import importlib
import inspect
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from bench_lib import processes
from bench_lib.figures import say

ROOT = processes.ROOT
DOCS = sorted((ROOT / "docs").rglob("*.md")) + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


class Modules:
    """The modules of a folder below `tests`, by the command that runs them."""

    def __init__(self, folder, command):
        self.command, self.package = command, folder.name
        self.names = sorted(path.stem for path in folder.glob("[!_]*.py"))

    def load(self, name):
        return importlib.import_module(f"{self.package}.{name}")

    def listed(self):
        pages = {path: path.read_text() for path in DOCS}
        for name in self.names:
            module, pattern = self.load(name), re.compile(rf"{self.command}\s+{name}\b")
            cites = [str(path.relative_to(ROOT)) for path, text in pages.items() if pattern.search(text)]
            yield f"{name:20} {module.MINUTES:4} min  {inspect.getdoc(module).splitlines()[0]} {', '.join(cites) or 'no page'}"


def type_of(default):
    """A function that makes a value of an option's text, as its default is; a list's are separated by commas."""
    if isinstance(default, list):
        one = type_of(default[0]) if default else str
        return lambda text: [one(part) for part in text.split(",")]
    if isinstance(default, bool):
        return lambda text: {"true": True, "false": False}[text.lower()]
    return str if default is None else type(default)


def parse_arguments(module, name, arguments):
    """`name`: tests/bench/run NAME."""
    parser = argparse.ArgumentParser(prog=name, description=inspect.getdoc(module),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / name.split("/")[1], metavar="DIR")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / getattr(module, "PRESET", "release"),
                        metavar="DIR", help="folder of the programs")
    parser.add_argument("--scratch", type=pathlib.Path, metavar="DIR", help="where state directories go; default: the system's")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there, and do what is missing")
    parser.add_argument("--quick", action="store_true", help=f"shows that it works here; sets {module.QUICK}")
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="N", help="begins nothing new after that")
    for option, (default, text) in module.OPTIONS.items():
        parser.add_argument(f"--{option}", default=default, type=type_of(default), metavar="VALUE",
                            help=f"{text}; default: {','.join(map(str, default)) if isinstance(default, list) else default}")
    if "--quick" in arguments:
        parser.set_defaults(**module.QUICK)
    options = parser.parse_args(arguments)
    options.build = options.build.resolve()
    return options


class Bench:
    """The rows of a run of one module, and what it needs to measure the next one."""

    def __init__(self, module, name, options):
        self.options, self.build, self.name = options, options.build, name
        self.path = options.out / f"{module.FILE}.jsonl"
        options.out.mkdir(parents=True, exist_ok=True)
        kept = options.resume and self.path.exists()
        self.rows = [json.loads(line) for line in self.path.read_text().splitlines()] if kept else []
        self.write()
        self.log = open(options.out / f"{name}.log", "ab")
        self.folder = None  # an empty one for each case, which goes with it
        self.kept = {}  # what a benchmark's cases share

    def has(self, case):
        return any(case.items() <= row.items() for row in self.rows if "error" not in row)

    def add(self, case, rows):
        """Those of a case, which are all in the file or none."""
        own = []
        for row in rows:
            own.append(case | row | processes.machine())
            print(json.dumps(own[-1]), flush=True)
        self.rows += own
        self.write()

    def write(self):
        self.path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def rows_of(self, case, environment=None, **parameters):
        """The rows of figures that bench_run prints for one of its cases."""
        return processes.bench_rows(self.build, case, parameters, self.log, **environment or {})

    def in_test(self, body, kind=None):
        """body(test) within a test of tests/e2e, of that class: its programs end with it. Its result; AssertionError if it fails."""
        import harness

        class Test(kind or harness.EndToEndTest):
            def runTest(self):
                self.returned = body(self)

        test = Test()
        result = test.run()
        if not result.wasSuccessful():
            raise AssertionError("\n".join(text for _, text in result.failures + result.errors))
        return test.returned

    def own_folder(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"causeway-{self.name}-", dir=self.options.scratch))
        return self.folder


def measure(module, bench):
    """False if one failed, or the time ended before the cases did."""
    begin, complete = time.monotonic(), True
    for case in module.cases(bench.options):
        if bench.has(case):
            continue
        if time.monotonic() - begin > 60 * bench.options.minutes:
            print(f"{bench.options.minutes:g} minutes are over; --resume goes on with {case}", flush=True)
            return False
        say(f"{time.strftime('%H:%M:%S')} {' '.join(f'{key}={value}' for key, value in case.items())}")
        folder = bench.own_folder()
        try:
            result = module.measure(case, bench)
            bench.add(case, [result] if isinstance(result, dict) else result)
        except (AssertionError, RuntimeError, ValueError, OSError, subprocess.SubprocessError) as error:
            say(f"FAILED: {error}\n  its logs: {folder}, {bench.log.name}")
            complete = False
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return complete


def main(modules, description, arguments):
    """Exit status. A module is imported with CAUSEWAY_BIN_DIR set to its programs, for what is driven by the tests' harness."""
    if arguments[:1] == ["--list"]:
        print("\n".join(modules.listed()))
        return 0
    if not arguments or arguments[0] not in modules.names:
        print(f"{inspect.cleandoc(description)}\n\n{'expected one, got ' + arguments[0] if arguments else 'There are'}: "
              f"{', '.join(modules.names)}", file=sys.stderr)
        return 2
    name, *arguments = arguments
    builds = [argument.partition("=")[2] for argument in arguments if argument.startswith("--build=")]
    os.environ["CAUSEWAY_BIN_DIR"] = str(pathlib.Path(builds[-1] if builds else ROOT / "build" / "release").resolve())
    module = modules.load(name)
    options = parse_arguments(module, f"{modules.command} {name}", arguments)
    if reason := getattr(module, "why_not", lambda _: None)(options):
        print(f"skipped: {reason}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is open closes
    bench = Bench(module, name, options)
    options.rows = bench.rows  # grows meanwhile
    complete = measure(module, bench)
    failed = module.report(bench.rows, bench) if bench.rows else True
    if options.quick:
        print("--quick: it works here; the figures above are none")
    return bool(failed) or not complete


def run(file, folder, description):
    """The main program `file`, whose modules are in `folder`. Other names of it are links, from before there was one."""
    command = pathlib.Path(file)
    modules = Modules(command.resolve().parent / folder, str(command.resolve().relative_to(ROOT)))
    arguments = sys.argv[1:]
    if command.name != "run":
        say(f"{modules.command[:-3]}{command.name} is now: {modules.command} {command.name}")
        arguments = [command.name, *arguments]
    try:
        return main(modules, description, arguments)
    except KeyboardInterrupt:
        return 130
