"""tests/gpu/pack: the programs that parts run; tests/gpu/thin_cuda_library on a library made here."""

import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "bench")]

from gpu_lib.parts import Parts  # noqa: E402

PTX, CODE = 1, 2


def says(program, *flags):
    done = subprocess.run([HERE / program, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def entry(kind, architecture, payload, header=64):
    begin = struct.pack("<HHIQIIII", kind, 0x101, header, len(payload), 0, 0, 0, architecture)
    return begin.ljust(header, b"\x01") + payload


def fatbinary(*entries):
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, sum(map(len, entries))) + b"".join(entries)


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


class ThinTest(FolderTest):
    def thin(self, content, architecture=90):
        library, out = self.file("library", content), self.folder / "out"
        status, text = says("thin_cuda_library", library, out, f"--architecture={architecture}")
        return status, text, out.read_bytes() if out.exists() else None

    def test_code_of_other_architectures_is_zero_and_all_else_stays(self):
        parts = [(CODE, 80, b"eighty" * 4), (CODE, 90, b"ninety" * 8), (PTX, 90, b"text")]
        library = b"ELF \x50\xed\x55\xba of a constant " + fatbinary(*(entry(*part) for part in parts)) + b"between"
        library += fatbinary(entry(CODE, 100, b"hundred", header=80), entry(CODE, 90, b"more")) + b"\x50\xed\x55\xba\x01\x00"
        status, text, thin = self.thin(library)
        self.assertEqual(status, 0, text)
        self.assertEqual(json.loads(text), {"architecture": 90, "kept_bytes": 52, "zeroed_bytes": 35})
        expected = library
        for payload in (b"eighty" * 4, b"text", b"hundred"):
            expected = expected.replace(payload, bytes(len(payload)))
        self.assertEqual(thin, expected)

    def test_entries_beyond_their_fatbinary_are_left_alone(self):
        whole = fatbinary(entry(CODE, 90, b"good"))
        longer = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 68) + entry(CODE, 80, b"long" * 9)[:68]
        beyond = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40) + entry(CODE, 80, b"cut")
        status, text, thin = self.thin(whole + longer + beyond)
        self.assertEqual((status, thin), (0, whole + longer + beyond), text)

    def test_a_library_without_that_architecture_is_refused_and_nothing_written(self):
        for content in (fatbinary(entry(CODE, 80, b"code"), entry(PTX, 90, b"text")), b"no library"):
            status, text, thin = self.thin(content)
            self.assertEqual((status, thin), (2, None))
            self.assertRegex(text, r"--architecture: expected one whose code \S+ has, got 90")
        self.assertIn("expected a library, got", self.thin(b"")[1])
        self.assertIn("expected a library, got /no/library", says("thin_cuda_library", "/no/library", "x", "--architecture=90")[1])
        for wrong in ("sm_90", "9", "-90", ""):
            self.assertIn(f"expected a number such as 90, got '{wrong}'", self.thin(b"x", wrong)[1])


class PackedParts(Parts):
    """Notes which programs the parts run, on a card with everything."""

    def __init__(self):
        folder = pathlib.Path("/")
        super().__init__(types.SimpleNamespace(device="cuda", cuda=folder, build=folder, python=folder, wheels=folder, nccl=folder, cores=16, rows=folder, card="card"))
        self.seen = set()

    def program(self, *below):
        self.seen.add("/".join(below))
        return pathlib.Path("/", *below)


class ProgramsTest(unittest.TestCase):
    def test_the_pack_has_each_program_that_a_part_runs(self):
        everything, of_ranks, of_learn = (set(found.split()) for found in re.findall(r"programs=\(([^)]*)\)", (HERE / "pack").read_text()))
        for part in (parts := PackedParts()).all():
            parts.seen.clear()
            part.commands(pathlib.Path("/out"))
            self.assertLessEqual(parts.seen, everything, part.name)
            if part.name == "ranks":
                self.assertTrue(parts.seen)
                self.assertLessEqual(parts.seen, of_ranks)
        self.assertLessEqual({"causeway-worker", "libcauseway.so"}, everything & of_ranks)
        self.assertEqual(of_learn, {"causeway-worker"})


if __name__ == "__main__":
    unittest.main()
