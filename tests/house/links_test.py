"""Follows the links of all Markdown files inside the repository: to a tracked file or a folder, and to a heading of it.

    links_test.py               checks this tree, and first that the checker sees planted faults
"""

import pathlib
import posixpath
import re
import sys
import unittest

from includes_test import ROOT, tracked_files

CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(<?([^)>\s]+)>?[^)]*\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
ELSEWHERE = re.compile(r"^[a-z]+:")  # https:, mailto:
HEADING = re.compile(r"^#+ +(.*?) *#*$", re.MULTILINE)


def anchors_of(markdown):
    """The names that GitHub gives to the headings."""
    titles = HEADING.findall(re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def faults_of(texts, files):
    """All links of `texts` {path: markdown} that lead nowhere, each as "path: link: why"; `files` are those tracked."""
    there = {str(path) for file in map(pathlib.PurePosixPath, files) for path in (file, *file.parents)}
    faults = []
    for source, markdown in texts.items():
        for link in filter(None, (a or b for a, b in LINK.findall(CODE.sub("", markdown)))):
            if ELSEWHERE.match(link):
                continue
            path, _, anchor = link.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
            if target not in there:
                faults.append(f"{source}: {link}: is no file here")
            elif anchor and target in texts and anchor not in anchors_of(texts[target]):
                faults.append(f"{source}: {link}: {target} has no such heading")
    return faults


class PlantedFaults(unittest.TestCase):
    def faults_of(self, markdown):
        return faults_of({"docs/a.md": markdown, "docs/b.md": "# Say `why`, twice!\n"},
                         ["docs/a.md", "docs/b.md", "core/x.h"])

    def test_links_that_lead_somewhere_pass(self):
        self.assertEqual([], self.faults_of("# Top\n[b](b.md) [b](b.md#say-why-twice) [up](#top) [x](../core/x.h) "
                                            "[folder](../core) [far](https://c.d/e.md)\n"))

    def test_code_is_not_looked_at(self):
        self.assertEqual([], self.faults_of("`[a](c)`\n\n    [a](c)\n\n```\n[a](c)\n```\n"))

    def test_a_file_that_is_not_there(self):
        self.assertEqual(["docs/a.md: c.md: is no file here"], self.faults_of("see [c](c.md)"))
        self.assertEqual(["docs/a.md: core/x.h: is no file here"], self.faults_of("see [x](core/x.h)"))
        self.assertEqual(["docs/a.md: c.md: is no file here"], self.faults_of("see [c]\n\n[c]: c.md"))

    def test_a_heading_that_is_not_there(self):
        self.assertEqual(["docs/a.md: b.md#say: docs/b.md has no such heading"], self.faults_of("see [b](b.md#say)"))
        self.assertEqual(["docs/a.md: #top: docs/a.md has no such heading"], self.faults_of("see [b](#top)"))


class ThisTree(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        files = tracked_files()
        texts = {file: (ROOT / file).read_text() for file in files if file.endswith(".md")}
        self.assertIn("README.md", texts)
        self.assertEqual("", "\n".join(faults_of(texts, files)))


if __name__ == "__main__":
    sys.exit(unittest.main())
