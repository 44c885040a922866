"""The blocks of code in the documents, and what each of them is. Pure.

    a document ─► fenced or indented blocks ─► python, yaml, commands, picture, or text
"""

import ast
import builtins
import re
import shlex
from dataclasses import dataclass

import yaml

DRAWING = re.compile(r"[─►◄│┌┐└┘├▼▲■]")
UNTRIED = "<!-- untried:"  # before a block: why nothing tries it
OWN_PROGRAMS = ("causeway-coordinator", "causeway-worker", "causewayctl")
SERVICES = {"ctl": "causewayctl", "certificates": "deploy/certs"}  # of deploy/compose.yaml, with commands of their own
SHELL = frozenset("""alias apt-get cat cd cmake ctest docker echo export for head install journalctl kubectl mkdir mpirun nft
    pip python python3 rclone rm sed srun sudo systemctl tar torchrun xargs .""".split())
SECTIONS = frozenset("run_id seed run model inner sync outer codec values membership eval checkpoint data offload durability "
                     "placement".split())


@dataclass
class Block:
    """`line` is that of its first line, from 1 on; `language` of a fence, or ""."""

    path: str
    line: int
    language: str
    text: str
    untried: bool

    @property
    def place(self):
        return f"{self.path}:{self.line}"

    @property
    def kind(self):
        if self.language in ("python", "yaml"):
            return self.language
        if self.commands():
            return "commands"
        if DRAWING.search(self.text):
            return "picture"
        if self.settings():
            return "yaml"
        return "python" if _is_python(self.text) else "text"

    def commands(self):
        """The lines that are commands, whole: those behind "$ ", or all up to the first blank line and what is like them
        behind it."""
        lines, found = _joined(self.text), []
        shown = any(line.startswith("$ ") for line in lines)
        for number, line in enumerate(lines):
            if shown and not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
            if not shown and not is_command(line):
                if number == 0:
                    return []
                if not line.strip():
                    shown = not any(is_command(each) for each in lines[number + 1:])
                    continue
            found.append(line)
        return found

    def settings(self):
        """The sections of run.yaml that it is YAML of; None: it has others, or is no YAML."""
        try:
            found = yaml.safe_load(self.text)
        except yaml.YAMLError:
            return None
        return found if isinstance(found, dict) and found.keys() <= SECTIONS else None

    def undefined(self):
        """The names that Python code uses and does not define: none in a whole script."""
        tree = ast.parse(self.text)
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        defined = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | set(dir(builtins))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                defined |= {(each.asname or each.name).partition(".")[0] for each in node.names}
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                defined.add(node.name)
        return {node.id for node in names} - defined


def blocks_of(path, markdown):
    lines, at = markdown.split("\n"), 0
    while at < len(lines):
        fence = re.match(r"^```(\w*)", lines[at])
        begin = at + 1 if fence else at
        if fence:
            end = next(i for i in range(begin, len(lines)) if lines[i].startswith("```"))
            at = end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = begin
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            at = end
        else:
            at += 1
            continue
        text = "\n".join(line if fence else line[4:] for line in lines[begin:end]).rstrip()
        before = [line for line in lines[max(0, begin - 4):begin] if line.strip() and not line.startswith("```")]
        yield Block(path, begin + 1, fence[1] if fence else "", text, bool(before) and before[-1].startswith(UNTRIED))


def _joined(text):
    return text.replace("\\\n", " ").split("\n")


def _words(line):
    """The words of a command, without comments; quotes may be open, as in a here-document."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def is_command(line):
    words = [word for word in _words(line) if "=" not in word or word.startswith("-")]
    if not words:
        return False
    first = words[0].lstrip("(")
    return first in OWN_PROGRAMS or first in SHELL or bool(re.match(r"^(\./)?[a-z]+/\w", first))


def _is_python(text):
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return any(isinstance(node, (ast.Call, ast.Import)) for node in ast.walk(tree))


def calls_of(line, is_own):
    """(program, words) of each of our own programs in a command: up to the next one, or the end of its command."""
    calls, before = [], ""
    for word in _words(line):
        before, named, word = word, before in ("-p", "-t"), word.rstrip(";")
        if named:  # of a project or an image
            continue
        name = SERVICES.get(word, word) if "compose" in line else word
        if word in ("&&", "|", "||", ";"):
            calls.append(("", []))
        elif name in OWN_PROGRAMS or is_own(name):
            calls.append((name, []))
        elif calls:
            calls[-1][1].append(word)
    return [(program, words) for program, words in calls if program]


def paths_of(line, folders):
    """The words of a command that name something in one of the repository's folders."""
    found = re.findall(r"(?<![\w./<$-])(?:\./)?((?:" + "|".join(folders) + r")/[\w./*-]+)", line)
    return [path.rstrip(".") for path in found]
