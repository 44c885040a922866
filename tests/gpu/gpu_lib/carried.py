"""The size of all that a run on another machine carries there: the checkout, and files beside it.

    carried.py [FILE | FOLDER]…     prints the sum; exit status 1: it is more than 64 MiB
"""

import pathlib
import subprocess
import sys

MOST_MIB = 64
ROOT = pathlib.Path(__file__).resolve().parents[3]


def size(path):
    """Bytes of a file, or of all files of a folder; of a link its own, and none of what is not there."""
    if path.is_dir() and not path.is_symlink():
        return sum(size(each) for each in path.iterdir())
    return path.lstat().st_size if path.is_symlink() or path.exists() else 0


def checkout_bytes(root):
    """Tracked files, and untracked ones that git does not ignore, as they lie in the tree."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-coz", "--exclude-standard"], stdout=subprocess.PIPE, check=True)
    return sum(size(root / name) for name in {*listed.stdout.decode().split("\0")} - {""})


def summary(parts):
    """`parts`: {name: bytes}. (sentence with each and the sum, whether that is too much)."""
    total = sum(parts.values())
    each = " + ".join(f"{name} {mib(count)}" for name, count in parts.items())
    return f"{each} = {mib(total)} MiB", total > MOST_MIB << 20


def mib(count):
    return f"{count / (1 << 20):.1f}"


def main(paths, root=ROOT):
    sentence, too_much = summary({"checkout": checkout_bytes(root)} | {path: size(pathlib.Path(path)) for path in paths})
    if too_much:
        print(f"tests/gpu/pack: expected at most {MOST_MIB} MiB together, got {sentence}", file=sys.stderr)
        return 1
    print(f"{sentence}, of at most {MOST_MIB}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
