"""The text to train on: the English dictionary in Debian's dict-gcide, or what the user brings."""

import array
import ast
import codecs
import gzip
import itertools
import pathlib
import re
import shutil
import subprocess
import sys

PACKAGE = "dict-gcide"
DICTIONARY = "usr/share/dictd/gcide.dict.dz"
BYTE_VOCAB = 256
FIRST_ENTRY = "\nA \\A"  # behind the licence and the history
MARKUP = [(re.compile(pattern), instead) for pattern, instead in [
    (r"\\[^\\\n]*\\", ""),                             # how a word is divided and stressed
    (r"\[[^\[\]]*\]", ""), (r"\[[^\[\]]*\]", ""),  # sources and origins, one in the other
    (r"^(\S+) +\([^)]*\)", r"\1"),                     # how it sounds
    (r"--\s?[A-Z][\w.' &]*\s*$", ""),                  # whose sentence it is
    (r"[{}<>|*_`^]", ""), (r"\s+", " "), (r" (?=[,.;:])", "")]]

LLMC_MAGIC = 20240520  # first int32 of llm.c's shards, whose header is 256 int32
LLMC_WIDE_MAGIC = 20240801  # of those with uint32 tokens
LLMC_TYPES = {LLMC_MAGIC: "H", LLMC_WIDE_MAGIC: "I"}
LLMC_HEADER_BYTES = 1024
NUMPY_MAGIC = b"\x93NUMPY"
NUMPY_TYPES = {"u1": "B", "u2": "H", "i2": "h", "u4": "I", "i4": "i", "u8": "Q", "i8": "q"}
READ_BYTES = 1 << 24


class CorpusError(Exception):
    """There is no text to train on; the message says what to do."""


def default_corpus(folder):
    """Path of the dictionary's text (40 MB, UTF-8) in `folder`; downloads it the first time. Installs nothing."""
    text = folder / "gcide-utf8.txt"
    if text.exists():
        return text
    folder.mkdir(parents=True, exist_ok=True)
    package = _download(folder)
    unpacked = folder / "unpacked"
    subprocess.run(["dpkg-deb", "-x", package, unpacked], check=True)
    partial = folder / "gcide-utf8.txt.partial"
    with gzip.open(unpacked / DICTIONARY) as source, open(partial, "wb") as target:
        target.writelines(map(in_utf8, source))
    partial.rename(text)  # whole or not at all
    shutil.rmtree(unpacked)
    package.unlink()
    return text


def definitions(folder):
    """Path of the dictionary's words and what they mean, as sentences without markup (25 MB): what a small model writes
    after minutes can then be read."""
    text = folder / "gcide-definitions.txt"
    if not text.exists():
        source = default_corpus(folder).read_text()
        partial = folder / "gcide-definitions.txt.partial"
        with open(partial, "w") as target:
            for block in re.split(r"\n\s*\n", source[source.index(FIRST_ENTRY):]):
                sentence = plain(block)
                if sentence:
                    target.write(sentence + "\n" if block[:1].isspace() else f"\n{sentence}\n")
        partial.rename(text)
    return text


def plain(block):
    """A paragraph of the dictionary on one line."""
    block = block.strip()
    for pattern, instead in MARKUP:
        block = pattern.sub(instead, block)
    return block.strip(" ,;")


def in_utf8(line):
    """A line of the dictionary: a few have quotation marks and accents of Windows' code page among lines of UTF-8."""
    try:
        line.decode()
        return line
    except UnicodeDecodeError:
        return line.decode("cp1252", errors="replace").encode()


def _download(folder):
    """The package's file. A machine whose package lists are absent or old gets fresh ones, kept in `folder`."""
    ours = [f"-oDir::State::lists={folder}/lists", f"-oDir::Cache={folder}/cache"]
    download = ["download", PACKAGE]
    attempts = [[download], [ours + ["update"], ours + download]]
    for attempt in attempts:
        (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (folder / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        results = [
            subprocess.run(["apt-get", "-q", "-oAPT::Sandbox::User=root", *arguments], cwd=folder, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for arguments in attempt
        ]
        packages = sorted(folder.glob(f"{PACKAGE}_*.deb"))
        if results[-1].returncode == 0 and packages:
            shutil.rmtree(folder / "lists")
            shutil.rmtree(folder / "cache")
            return packages[-1]
    raise CorpusError(f"cannot download Debian's {PACKAGE}, the default text:\n{results[-1].stdout.strip()}\n"
                      "Without a network, name a text of your own, a few MB or more: deploy/quickstart --data FILE")


def check_data(path):
    """The user's text, .bin shards or JSON lines, as an absolute path."""
    path = pathlib.Path(path).absolute()
    if not path.exists():
        raise CorpusError(f"--data={path}: no such file")
    expected = f"--data={path}: expected a text file, a .bin file, or a folder of .bin, .npy, .txt or .jsonl files"
    if not path.is_dir() and not path.is_file():
        raise CorpusError(f"{expected}, got a pipe or device")
    files = _files(path)
    if not files:
        raise CorpusError(f"{expected}, got a folder without any")
    for file in files:
        try:
            with open(file, "rb") as opened:
                if not opened.read(1):
                    raise CorpusError(f"--data={file}: is empty")
            if file.suffix not in (".bin", ".npy"):
                _check_utf8(file)
        except OSError as error:
            raise CorpusError(f"--data={file}: cannot read it: {error.strerror}") from None
    return path


def _check_utf8(file):
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open(file, "rb") as opened:
        head = opened.read(len(NUMPY_MAGIC))
        if head == NUMPY_MAGIC:  # an array, whatever its name
            return
        for block in itertools.chain([head], iter(lambda: opened.read(READ_BYTES), b"")):
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                raise CorpusError(f"--data={file}: expected text in UTF-8, got byte 0x{error.object[error.start]:02x}: iconv "
                                  "converts text of another encoding; unpack an archive; tokens are files that end in .bin, "
                                  "or .npy") from None


def _files(path):
    """The files that causeway-worker reads there (docs/data.md)."""
    if not path.is_dir():
        return [path]
    found = (sorted(file for file in path.glob(f"*{ending}") if not file.name.startswith("."))
             for ending in (".bin", ".npy", ".txt", ".jsonl"))
    return next(filter(None, found), [])


def vocab_size(path):
    """256 for text, whose bytes are the tokens; for tokens one more than the largest, at least that."""
    return max([BYTE_VOCAB] + [_largest_token(shard) + 1 for shard in _files(path)])


def _largest_token(shard):
    largest = 0
    with open(shard, "rb") as file:
        for token_type, begin in _layout(shard, file.read(LLMC_HEADER_BYTES)):
            file.seek(begin)
            while block := file.read(READ_BYTES):
                tokens = array.array(token_type)
                tokens.frombytes(block[:len(block) // tokens.itemsize * tokens.itemsize])
                if sys.byteorder == "big":
                    tokens.byteswap()
                largest = max(largest, max(tokens, default=0))
    return largest


def _layout(shard, head):
    """The type of a file's tokens and where they begin; nothing where its bytes are text, or causeway-worker refuses it."""
    if head.startswith(NUMPY_MAGIC):
        length_bytes = 2 if head[6] == 1 else 4
        begin = 8 + length_bytes + int.from_bytes(head[8:8 + length_bytes], "little")
        try:
            descr = ast.literal_eval(head[8 + length_bytes:begin].decode("latin1"))["descr"]
        except (SyntaxError, ValueError, KeyError, TypeError):
            return []
        known = isinstance(descr, str) and descr[0] != ">" and descr[1:] in NUMPY_TYPES
        return [(NUMPY_TYPES[descr[1:]], begin)] if known else []
    if shard.suffix != ".bin":
        return []
    magic = array.array("i", head.ljust(4, b"\0")[:4])[0]
    return [(LLMC_TYPES.get(magic, "H"), LLMC_HEADER_BYTES if magic in LLMC_TYPES else 0)]
