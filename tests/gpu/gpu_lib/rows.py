"""Rows of measurements on a GPU: JSON lines, each with the card and the state of the code, kept as soon as they are there.

    {"part": "offload", "gpu": "NVIDIA H200", "commit": "1a2b3c4", "command": "…", …}      what a command measured
    {"part": "offload", "gpu": …, "commit": …, "result": "done", "seconds": 187.2, …}      how a part ended: done, failed, cut
"""

import json


def read(path):
    """All rows of a file; none where it is missing. ValueError names the line that is no JSON object."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else [], 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number}: expected a JSON object, got {line[:60]!r}")
        rows.append(row)
    return rows


def from_line(line):
    """A row that a program printed, or None: people's text."""
    if not line.startswith("{"):
        return None
    try:
        return json.loads(line)
    except ValueError:
        return None


def next_parts(parts, rows, gpu, commit):
    """The parts to run, in order: those that this card never did, then those whose measurement is oldest; without those that are
    done for this commit. One that failed or was cut for this commit comes after the ones of its kind that were not tried."""
    done = [row["part"] for row in rows if row.get("gpu") == gpu and row.get("result") == "done"]
    now = {row["part"]: row["result"] for row in rows if row.get("gpu") == gpu and row.get("commit") == commit and "result" in row}
    newest = {part: place for place, part in enumerate(done, 1)}
    missing = [part for part in parts if now.get(part.name) != "done"]
    return sorted(missing, key=lambda part: (newest.get(part.name, 0) > 0, part.name in now, newest.get(part.name, 0)))


class Rows:
    """The file of a run, to which every row is written at once."""

    def __init__(self, path, tags):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.tags = path, tags

    def add(self, part, row):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(self.tags | row | {"part": part}, ensure_ascii=False) + "\n")
