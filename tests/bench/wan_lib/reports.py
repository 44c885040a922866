"""Rows of figures: in a file as they are measured, and as a table in the end."""

import json
import sys


class Rows:
    """The rows measured so far, in a file that grows by each."""

    def __init__(self, path, resume):
        self.path = path
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if resume and path.exists() else []
        path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def append(self, row):
        self.rows.append(row)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def print_columns(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())


def say(text):
    print(text, file=sys.stderr, flush=True)
