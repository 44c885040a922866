#!/usr/bin/python3
"""Finds words and sentences that code, messages and docs avoid: none outside of tests/, and in there no more than before.

    english_test.py                     compares the counts of tests/ with those in tests/golden/english.txt
    english_test.py --list [KIND]       prints each place
    english_test.py --record            writes the counts that have fallen

Better: "no site" for "nobody", "at most n" for "so many", "the coordinator sends the site" for "the site is told"; and
sentences that begin with their subject, not with "Of" or with a "What" that asks nothing.
"""

import re
import sys
import unittest

from includes_test import ROOT, tracked_files

RECORD = ROOT / "tests" / "golden" / "english.txt"
# Where a sentence begins: a line, a comment, a cell, a string, or after the end of another.
BEGIN = r"(?:^[\s/#*|>-]*|[.!?:;]\s+(?://+|#)?\s*|//+ ?|# |\| |[\"'(])"
KINDS = {"Of …": re.compile(BEGIN + r"(Of\s)", re.MULTILINE),
         "What …": re.compile(BEGIN + r"(What\s)(?![^.!:;\"]*\?)", re.MULTILINE)}
for phrase in ("so many", "is told", "is asked", "nobody", "somebody", "whoever", "as it were"):
    KINDS[phrase] = re.compile(r"\b" + phrase.replace(" ", r"[\s/#]+") + r"\b", re.IGNORECASE)
SKIPPED = ("tests/golden/", "tests/fuzz/corpus/", "tests/english_test.py", "LICENSE")


def places_in(name, text):
    """(kind, "file:line: text") of each place."""
    places = []
    for kind, pattern in KINDS.items():
        for match in pattern.finditer(text):
            start = match.start(match.lastindex or 0)
            line = text.count("\n", 0, start) + 1
            places.append((kind, f"{name}:{line}: {text[start:start + 60].splitlines()[0]}"))
    return places


def places_in_tree():
    found = {kind: [] for kind in KINDS}
    for name in tracked_files():
        content = b"" if name.startswith(SKIPPED) or not (ROOT / name).is_file() else (ROOT / name).read_bytes()
        if b"\0" not in content:
            for kind, place in places_in(name, content.decode()):
                found[kind].append(place)
    return found


def in_tests(place):
    return place.startswith("tests/")


def recorded():
    rows = (line.rsplit(" ", 1) for line in RECORD.read_text().splitlines() if not line.startswith("#"))
    return {kind: int(count) for kind, count in rows}


def faults_of(counts, record):
    return [f"'{kind}': {count} places, {record.get(kind, 0)} recorded; say it in other words. "
            f"All places: tests/english_test.py --list '{kind}'"
            for kind, count in counts.items() if count > record.get(kind, 0)]


class PlantedSentences(unittest.TestCase):
    def kinds_in(self, text):
        return [kind for kind, _ in places_in("a.cc", text)]

    def test_sentences_that_begin_so_are_found_wherever_they_stand(self):
        for text in ("// Of a site: its name.", "int a;  // Of a site.", "x = 1  # Of a site", '"""Of a site."""',
                     'Error("Of a site")', "One. Of a site.", "// One.\n  // Of a site.", "| `a` | Of a site |",
                     "- Of a site"):
            self.assertEqual(["Of …"], self.kinds_in(text), text)
            self.assertEqual(["What …"], self.kinds_in(text.replace("Of a site", "What a site sends")), text)

    def test_questions_and_other_uses_pass(self):
        for text in ("## What is a site?", "// What if it\n// is gone?", "the Name Of it", "Offer", "DigestOf (x)",
                     "soMany", "// one of a site", "What(x)"):
            self.assertEqual([], self.kinds_in(text), text)

    def test_words_are_found_also_over_the_end_of_a_line(self):
        self.assertEqual(["so many", "is told", "nobody"], self.kinds_in("// So\n  // many that it is\n# told. Nobody"))
        self.assertEqual([("nobody", "a.cc:2: nobody knows")], places_in("a.cc", "\nnobody knows\n"))

    def test_a_count_may_fall_and_not_rise(self):
        self.assertEqual([], faults_of({"nobody": 2, "whoever": 1}, {"nobody": 3, "whoever": 1}))
        (fault,) = faults_of({"nobody": 4, "whoever": 1}, {"nobody": 3, "whoever": 1})
        self.assertIn("'nobody': 4 places, 3 recorded", fault)


class ThisTree(unittest.TestCase):
    def test_there_is_none_outside_of_tests(self):
        found = [f"'{kind}': {place}" for kind, places in places_in_tree().items() for place in places if not in_tests(place)]
        self.assertEqual("", "\n".join(found))

    def test_no_count_has_risen(self):
        counts = {kind: len(list(filter(in_tests, found))) for kind, found in places_in_tree().items()}
        record = recorded()
        self.assertEqual("", "\n".join(faults_of(counts, record)))
        if counts != record:
            print("english_test: counts have fallen; lower the record with: tests/english_test.py --record")


def main(arguments):
    if arguments[:1] == ["--list"]:
        kinds = arguments[1:] or KINDS
        print("\n".join(place for kind, found in places_in_tree().items() if kind in kinds for place in found))
    elif arguments == ["--record"]:
        record = recorded()
        counts = {kind: min(len(list(filter(in_tests, found))), record.get(kind, len(found)))
                  for kind, found in places_in_tree().items()}
        head = "# How often tests/ has each of these; a count may only fall. See tests/english_test.py.\n"
        RECORD.write_text(head + "".join(f"{kind} {count}\n" for kind, count in counts.items()))
    else:
        return unittest.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
