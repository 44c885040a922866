"""Holds the table "The house" of docs/architecture.md against the folders and the #include lines of the C++ files.

    includes_test.py            checks this tree, and first that the checker sees planted violations
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
PARTS = ("/cuda", "/simd")  # folders that may go with their parent's row
CUDA_FOLDERS = ("codecs/cuda", "offload/cuda", "worker/ranks/cuda", "worker/device/cuda")

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
PROTO_HEADER = re.compile(r"^causeway/v1/.*\.pb\.h$|^google/protobuf/")
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|curand|nccl|nvml|nvToolsExt)[\w]*\.(h|hpp|cuh)$|^(cub|thrust|cuda|nvtx3)/")


HEAD = re.compile(r"^\| folder \||^\|-")
ROW = re.compile(r"^\| `([\w/]+?)/` \| [^|]+ \| ([^|]*) \|$")


def rows_of(markdown):
    """The lines of the table, without its head."""
    house = re.search(r"^## The house$(.*?)(?=^## |\Z)", markdown, re.MULTILINE | re.DOTALL)
    return [line for line in house[1].splitlines() if line.startswith("|") and not HEAD.match(line)] if house else []


def tracked_files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if not (ROOT / name).is_symlink()]


def parse_house(markdown):
    """The table as {folder: set of folders it may include}; None stands for "anything"."""
    table = {}
    for row in filter(None, map(ROW.match, rows_of(markdown))):
        folder, allowed = row.group(1), re.sub(r"\([^)]*\)", "", row.group(2)).strip()
        if allowed == "anything":
            table[folder] = None
        else:
            table[folder] = {name.strip() for name in allowed.split(",")} - {"–", ""}
    return table


def folder_of(path, table):
    """The longest folder of the table that holds `path`, or None."""
    holding = [folder for folder in table if path.startswith(folder + "/")]
    return max(holding, key=len, default=None)


def matches(folder, pattern):
    """Whether a folder is what a cell names: itself, or with "server/*" any folder of server."""
    return folder == pattern or (pattern.endswith("/*") and folder.startswith(pattern[:-1]))


def fault_of(source, header, table):
    """Why the file `source` must not include `header`, or None."""
    folder = folder_of(source, table)
    if folder is None:
        return "lies in no folder of the table"
    if CUDA_HEADER.match(header) and not source.startswith(tuple(f + "/" for f in CUDA_FOLDERS)):
        return "CUDA headers belong in " + ", ".join(CUDA_FOLDERS)
    if PROTO_HEADER.match(header):
        target = "proto"
    else:
        target = folder_of(header, table)
        if target is None:
            # A header of another project, unless it names one of our top folders.
            ours = header.split("/")[0] in {name.split("/")[0] for name in table} and "/" in header
            return "names no folder of the table" if ours else None
    if table[folder] is None or target == folder or any(matches(target, name) for name in table[folder]):
        return None
    return f"{folder} may include only: {', '.join(sorted(table[folder])) or 'nothing'}"


def faults_of_rows(markdown, files):
    """Faults of the table beside the tracked `files`: unreadable rows, rows and folders without each other."""
    table = parse_house(markdown)
    folders = {str(parent) for file in files for parent in pathlib.PurePath(file).parents}
    with_cpp = {str(file.parent) for file in map(pathlib.PurePath, files)
                if file.suffix in SOURCE_SUFFIXES and file.name != "main.cc"}
    needs_row = {folder for folder in with_cpp if not folder.endswith(PARTS) and not folder.startswith("tests/")}
    needs_row |= {folder for folder in folders if "/" not in folder and not folder.startswith(".") and
                  not any(row.startswith(folder + "/") for row in table)}
    return ([f"cannot be read as `folder/`, what it is, what it may include: {row}" for row in rows_of(markdown)
             if not ROW.match(row)] +
            [f"{folder}/ has a row and is no folder" for folder in table if folder not in folders] +
            [f"{folder}/ is a folder and has no row" for folder in sorted(needs_row - set(table))] +
            [f"{folder}/ may include {name}, which has no row"
             for folder, names in table.items() for name in sorted(names or ())
             if not any(matches(other, name) or other.startswith(name + "/") for other in table)])


def check_tree(root, table):
    """All faults below `root`, each as "file:line: include: why"."""
    faults = []
    for top in sorted({folder.split("/")[0] for folder in table} - {"tests"}):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SOURCE_SUFFIXES or path.name == "main.cc":
                continue
            source = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                include = INCLUDE.match(line)
                fault = include and fault_of(source, include.group(1), table)
                if fault:
                    faults.append(f"{source}:{number}: {include.group(1)}: {fault}")
    return faults


class PlantedViolations(unittest.TestCase):
    TABLE = parse_house(
        "## The house\n| folder | what | may include |\n|---|---|---|\n"
        "| `proto/causeway/v1/` | a | – |\n| `core/` | a | – |\n| `codecs/` | a | core |\n"
        "| `codecs/cuda/` | a | core, codecs |\n| `server/merge/` | a | core, codecs |\n"
        "| `server/calls/` | a | core, server/*, proto |\n| `worker/site/` | a | core, codecs, offload (its copier) |\n"
        "| `offload/` | a | core |\n| `tests/` | a | anything |\n")

    def faults_of(self, path, *includes):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text("#pragma once\n" + "".join(f"#include {name}\n" for name in includes))
            return check_tree(pathlib.Path(folder), self.TABLE)

    def test_allowed_includes_pass(self):
        self.assertEqual([], self.faults_of("codecs/a.h", '"core/b.h"', '"codecs/c.h"', "<vector>", '"absl/status/status.h"'))
        self.assertEqual([], self.faults_of("worker/site/a.cc", '"offload/b.h"', '"worker/site/c.h"'))
        self.assertEqual([], self.faults_of("server/calls/a.cc", '"server/merge/b.h"', '"causeway/v1/c.grpc.pb.h"'))
        self.assertEqual([], self.faults_of("codecs/cuda/a.cu", "<cuda_runtime.h>", '"codecs/b.h"'))

    def test_a_folder_that_is_not_allowed_is_named_with_file_and_line(self):
        (fault,) = self.faults_of("core/a.h", "<vector>", '"codecs/b.h"')
        self.assertEqual("core/a.h:3: codecs/b.h: core may include only: nothing", fault)

    def test_server_and_worker_do_not_meet(self):
        self.assertEqual(1, len(self.faults_of("server/calls/a.cc", '"worker/site/b.h"')))
        self.assertEqual(1, len(self.faults_of("worker/site/a.cc", '"server/merge/b.h"')))

    def test_protobuf_types_stay_outside(self):
        self.assertEqual(1, len(self.faults_of("server/merge/a.cc", '"causeway/v1/coordinator.pb.h"')))
        self.assertEqual(1, len(self.faults_of("worker/site/a.cc", "<google/protobuf/message.h>")))

    def test_cuda_headers_stay_in_their_folders(self):
        self.assertEqual(1, len(self.faults_of("codecs/a.cc", "<cuda_runtime.h>")))
        self.assertEqual(1, len(self.faults_of("core/a.cc", "<nccl.h>")))

    def test_a_subfolder_is_not_its_parent(self):
        self.assertEqual(1, len(self.faults_of("codecs/a.cc", '"codecs/cuda/b.h"')))

    def test_a_folder_outside_the_table_is_a_fault(self):
        self.assertEqual(1, len(self.faults_of("server/new/a.cc", '"core/b.h"')))
        self.assertEqual(1, len(self.faults_of("server/merge/a.cc", '"server/new/b.h"')))

    def test_main_and_tests_may_include_anything(self):
        self.assertEqual([], self.faults_of("server/calls/main.cc", '"worker/site/b.h"'))
        self.assertEqual([], self.faults_of("tests/a.cc", '"worker/site/b.h"', '"server/merge/c.h"'))


class PlantedRows(unittest.TestCase):
    TABLE = "## The house\n\n| folder | what | may include |\n|---|---|---|\n| `a/` | x | – |\n| `b/c/` | y | a |\n"
    FILES = ["a/x.cc", "a/cuda/x.cu", "b/c/x.h", "b/main.cc", "b/CMakeLists.txt", ".ci/run", "README.md"]

    def test_a_table_of_all_folders_passes(self):
        self.assertEqual([], faults_of_rows(self.TABLE, self.FILES))

    def test_a_row_without_a_folder(self):
        faults = faults_of_rows(self.TABLE + "| `d/` | z | a |\n", self.FILES)
        self.assertEqual(["d/ has a row and is no folder"], faults)

    def test_a_folder_without_a_row(self):
        for file, folder in (("d/run", "d"), ("b/d/x.cc", "b/d"), ("a/d/x.cc", "a/d"), ("b/x.cc", "b")):
            self.assertEqual([f"{folder}/ is a folder and has no row"], faults_of_rows(self.TABLE, [*self.FILES, file]))

    def test_a_row_that_cannot_be_read(self):
        for row in ("| `a/`, `d/` | z | a |", "| a/ | z | a |", "| `d` | z | a |", "| `d/` | z |"):
            (fault,) = faults_of_rows(self.TABLE + row, self.FILES)
            self.assertEqual(f"cannot be read as `folder/`, what it is, what it may include: {row}", fault)

    def test_a_name_that_has_no_row(self):
        faults = faults_of_rows(self.TABLE.replace("| a |", "| a, e, f/* |"), self.FILES)
        self.assertEqual(["b/c/ may include e, which has no row", "b/c/ may include f/*, which has no row"], faults)


class ThisTree(unittest.TestCase):
    def test_the_table_has_each_folder_once(self):
        files = tracked_files()
        markdown = (ROOT / "docs" / "architecture.md").read_text()
        self.assertEqual("", "\n".join(faults_of_rows(markdown, files)))
        self.assertEqual(len(rows_of(markdown)), len(parse_house(markdown)), "a folder has two rows")

    def test_the_includes_are_those_of_the_table(self):
        table = parse_house((ROOT / "docs" / "architecture.md").read_text())
        for folder in ("core", "codecs", "server/rounds", "server/calls", "worker/site", "tests"):
            self.assertIn(folder, table, "docs/architecture.md lost its table of folders")
        self.assertEqual("", "\n".join(check_tree(ROOT, table)))


if __name__ == "__main__":
    sys.exit(unittest.main())
