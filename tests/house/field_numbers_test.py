#!/usr/bin/python3
"""Holds the numbers of the protocol's fields and enum values against those recorded in tests/golden/field_numbers.txt.

    field_numbers_test.py               checks proto/, and first that the checker sees planted faults
    field_numbers_test.py --record      adds what is new in proto/ to the record; it removes and changes nothing

A recorded number keeps its name and type, or is `reserved` in its message or enum; its line stays in the record, so
that no later field takes it.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "golden" / "field_numbers.txt"
MOST_RESERVED = 10_000  # numbers of one range
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\w.+-]+|[{}:]')


def tree_of(tokens):
    """Protobuf's text format as [(name, value or subtree)]."""
    entries = []
    for name in tokens:
        if name == "}":
            break
        entries.append((name, tree_of(tokens) if next(tokens) == "{" else next(tokens).strip('"')))
    return entries


def collect(scope, entries, numbers, reserved, range_end=1):
    """Into {(scope, number): "name type"} and {(scope, number)}, all fields and enum values of a subtree."""
    for kind, entry in entries:
        if kind in ("file", "message_type", "nested_type", "enum_type"):
            named = dict(entry)
            name = named.get("package", "") if kind == "file" else f"{scope}.{named['name']}"
            collect(name, entry, numbers, reserved, range_end=0 if kind == "enum_type" else 1)
        elif kind in ("field", "value"):
            field = dict(entry)
            words = [field["name"], field.get("type_name", field.get("type", "value"))]
            words += ["repeated"] if field.get("label") == "LABEL_REPEATED" else []
            numbers[scope, int(field["number"])] = " ".join(words)
        elif kind == "reserved_range":
            first, last = int(dict(entry)["start"]), int(dict(entry)["end"]) - range_end  # an enum's range has its end
            reserved |= {(scope, number) for number in range(first, min(last, first + MOST_RESERVED) + 1)}


def numbers_of(folder):
    """The numbers in the .proto files below `folder`, and those reserved, as protoc reads them."""
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.proto"))
    descriptors = subprocess.run(["protoc", f"-I{folder}", "--descriptor_set_out=/dev/stdout", *files],
                                 stdout=subprocess.PIPE, check=True).stdout
    decode = "protoc --decode=google.protobuf.FileDescriptorSet -I/usr/include google/protobuf/descriptor.proto"
    text = subprocess.run(decode.split(), input=descriptors, stdout=subprocess.PIPE, check=True).stdout
    numbers, reserved = {}, set()
    collect("", tree_of(iter(TOKEN.findall(text.decode()))), numbers, reserved)
    return numbers, reserved


def recorded(lines):
    """{(scope, number): "name type"} from lines "scope number name type"."""
    rows = (line.split(" ", 2) for line in lines if line and not line.startswith("#"))
    return {(scope, int(number)): rest for scope, number, rest in rows}


def faults_of(numbers, reserved, record):
    faults = []
    for (scope, number), was in record.items():
        now = numbers.get((scope, number))
        if now is None and (scope, number) not in reserved:
            faults.append(f"{scope}: {number} was {was} and is gone; write: reserved {number};")
        elif now is not None and now != was:
            faults.append(f"{scope}: {number} was {was} and is now {now}; a new meaning takes a new number")
    new = [f"{scope}: {number} is new; run: tests/house/field_numbers_test.py --record" for scope, number in numbers
           if (scope, number) not in record]
    return faults + new


class PlantedFaults(unittest.TestCase):
    BEFORE = "message M { int32 a = 1; repeated M b = 2; message N { string c = 3; } enum E { ZERO = 0; ONE = 1; } }"

    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "x.proto").write_text(f'syntax = "proto3"; package p; {text}')
            return numbers_of(pathlib.Path(folder))

    def faults_after(self, before, after):
        self.assertIn(before, self.BEFORE)
        return faults_of(*self.read(self.BEFORE.replace(before, after)), self.read(self.BEFORE)[0])

    def test_every_field_and_value_is_found(self):
        self.assertEqual({("p.M", 1): "a TYPE_INT32", ("p.M", 2): "b .p.M repeated", ("p.M.N", 3): "c TYPE_STRING",
                          ("p.M.E", 0): "ZERO value", ("p.M.E", 1): "ONE value"}, self.read(self.BEFORE)[0])

    def test_no_change_and_a_reserved_number_pass(self):
        for before, after in (("int32 a = 1;", "int32 a = 1;"), ("int32 a = 1;", 'reserved 1; reserved "a";'),
                              ("ONE = 1;", "reserved 1;"), ("repeated M b = 2;", "reserved 2 to 3;"),
                              ("int32 a = 1;", "oneof o { int32 a = 1; }")):
            self.assertEqual([], self.faults_after(before, after))

    def test_a_changed_a_moved_a_removed_and_a_new_one_do_not(self):
        for before, after, faults in (
                ("int32 a = 1;", "int64 a = 1;", ["p.M: 1 was a TYPE_INT32 and is now a TYPE_INT64"]),
                ("int32 a = 1;", "int32 z = 1;", ["p.M: 1 was a TYPE_INT32 and is now z TYPE_INT32"]),
                ("int32 a = 1;", "repeated int32 a = 1;", ["p.M: 1 was a TYPE_INT32 and is now a TYPE_INT32 repeated"]),
                ("int32 a = 1;", "", ["p.M: 1 was a TYPE_INT32 and is gone"]),
                ("repeated M b = 2;", "reserved 3;", ["p.M: 2 was b .p.M repeated and is gone"]),
                ("repeated M b = 2;", "message O { reserved 2; }", ["p.M: 2 was b .p.M repeated and is gone"]),
                ("ONE = 1;", "TWO = 1;", ["p.M.E: 1 was ONE value and is now TWO value"]),
                ("int32 a = 1;", "int32 a = 4;", ["p.M: 1 was a TYPE_INT32 and is gone", "p.M: 4 is new"])):
            found = self.faults_after(before, after)
            self.assertEqual(faults, [fault.partition(";")[0] for fault in found])


class ThisTree(unittest.TestCase):
    def test_the_numbers_are_those_recorded(self):
        record = recorded(RECORD.read_text().splitlines())
        self.assertGreater(len(record), 100, f"{RECORD} lost its lines")
        self.assertEqual("", "\n".join(faults_of(*numbers_of(ROOT / "proto"), record)))


def add_new():
    record = recorded(RECORD.read_text().splitlines()) if RECORD.exists() else {}
    added = {**numbers_of(ROOT / "proto")[0], **record}  # what is recorded wins
    head = "# Fields and enum values ever published: message, number, name, type. See tests/house/field_numbers_test.py.\n"
    RECORD.write_text(head + "".join(f"{scope} {number} {rest}\n" for (scope, number), rest in sorted(added.items())))


if __name__ == "__main__":
    sys.exit(add_new() if sys.argv[1:] == ["--record"] else unittest.main())
