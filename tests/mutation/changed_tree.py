"""A copy of the tree in which the product is changed on purpose, to see whether the tests notice."""

import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


class NotPlanted(Exception):
    """The text to change is not there once."""


class DoesNotBuild(Exception):
    """The compiler refuses the change."""


class ChangedTree:
    """One copy, at build/`name`; its objects lie beside it, and the compiler's cache may know them."""

    def __init__(self, name):
        self.root = ROOT / "build" / name
        self.build_dir = self.root / "build/release"

    def restore(self):
        """Makes the copy what the tree is, touching only what differs."""
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"],
                                capture_output=True, text=True, check=True).stdout.split("\n")
        for name in filter(None, listed):
            old, new = ROOT / name, self.root / name
            if not old.is_file() or (new.exists() and new.read_bytes() == old.read_bytes()):
                continue
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(old, new)
            os.utime(new)
        if not (self.build_dir / "CMakeCache.txt").exists():
            subprocess.run(["cmake", "--preset", "release", "-DCAUSEWAY_BATCHES=OFF"], cwd=self.root, check=True, stdout=subprocess.DEVNULL)

    def plant(self, edits, *targets):
        """Makes the edits alone, and builds. Each: (file, what is there once, what stands there instead)."""
        self.restore()
        for file, old, new in edits:
            text = (self.root / file).read_text()
            if text.count(old) != 1:
                raise NotPlanted(f"{file}: expected its text once, found it {text.count(old)} times:\n{old}")
            self.write(file, text.replace(old, new))
        self.build(*targets)

    def write(self, file, text):
        (self.root / file).write_text(text)

    def build(self, *targets, jobs=os.cpu_count()):
        done = subprocess.run(["cmake", "--build", "--preset", "release", f"-j{jobs}", "--target", *targets],
                              cwd=self.root, capture_output=True, text=True)
        if done.returncode != 0:
            raise DoesNotBuild(done.stdout[-2000:] + done.stderr[-2000:])

    def binary(self, path):
        return self.build_dir / path
