#!/usr/bin/python3
"""Finds words and sentences that code, messages, docs and tests avoid.

Better: "no site" for "nobody", "at most n" for "so many", "the coordinator sends the site" for "the site is told"; and
sentences that begin with their subject, not with "Of" or with a "What" that asks nothing.
"""

import re
import unittest

from includes_test import ROOT, tracked_files

# Where a sentence begins: a line, a comment, a cell, a string, or after the end of another.
BEGIN = r"(?:^[\s/#*|>-]*|[.!?:;]\s+(?://+|#)?\s*|//+ ?|# |\| |[\"'(])"
KINDS = {"Of …": re.compile(BEGIN + r"(Of\s)", re.MULTILINE),
         "What …": re.compile(BEGIN + r"(What\s)(?![^.!:;\"]*\?)", re.MULTILINE)}
for phrase in ("so many", "is told", "is asked", "nobody", "somebody", "whoever", "as it were"):
    KINDS[phrase] = re.compile(r"\b" + phrase.replace(" ", r"[\s/#]+") + r"\b", re.IGNORECASE)
SKIPPED = ("tests/golden/", "tests/fuzz/corpus/", "tests/house/english_test.py", "LICENSE")


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
    """A line for each place, with its kind."""
    found = []
    for name in tracked_files():
        content = b"" if name.startswith(SKIPPED) or not (ROOT / name).is_file() else (ROOT / name).read_bytes()
        if b"\0" not in content:
            found += [f"'{kind}': {place}" for kind, place in places_in(name, content.decode())]
    return found


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


class ThisTree(unittest.TestCase):
    def test_it_has_none_of_them(self):
        self.assertEqual("", "\n".join(places_in_tree()))


if __name__ == "__main__":
    unittest.main()
