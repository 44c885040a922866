"""Builds the documentation's website (docs/site) and follows all of its links: to a file, to a heading of it, and never
for something that a page loads from elsewhere. Skipped (77) where mkdocs is not installed.
"""

import html.parser
import pathlib
import posixpath
import shutil
import subprocess
import sys
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
NOT_INSTALLED = 77


class Page(html.parser.HTMLParser):
    """A page's links, the files that it loads, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.names = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.names.update(filter(None, (attributes.get("id"), attributes.get("name"))))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        loaded = attributes.get("href") if tag == "link" else attributes.get("src")
        if loaded and attributes.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(loaded)


def faults_of(pages, files):
    """Each link of `pages` {path: Page} that leads nowhere among `files`, and each thing loaded from elsewhere."""
    faults = []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            target = urllib.parse.urlsplit(link)
            if target.scheme or target.netloc:
                if link in page.loads and target.scheme != "data":
                    faults.append(f"{path}: loads {link}")
                continue
            name = posixpath.normpath(posixpath.join(posixpath.dirname(path), urllib.parse.unquote(target.path))) if target.path else path
            if name not in files:
                faults.append(f"{path}: {link}: no such file")
            elif target.fragment and name in pages and urllib.parse.unquote(target.fragment) not in pages[name].names:
                faults.append(f"{path}: {link}: no such heading")
    return faults


class PlantedFaults(unittest.TestCase):
    def test_dead_links_and_foreign_files_are_seen_and_nothing_else(self):
        good = '<h1 id="top">A</h1><a href="docs/b.html#x">b</a><a href="#top">up</a><a href="https://arxiv.org/">p</a><img src="i.png">'
        bad = '<a href="c.html">c</a><a href="b.html#y">b</a><script src="https://cdn.example.org/x.js"></script>'
        pages = {"a.html": Page(good), "docs/b.html": Page('<h2 id="x">X</h2>' + bad)}
        self.assertEqual(["docs/b.html: c.html: no such file", "docs/b.html: b.html#y: no such heading",
                          "docs/b.html: loads https://cdn.example.org/x.js"],
                         faults_of(pages, {"a.html", "docs/b.html", "i.png"}))


class Site(unittest.TestCase):
    def test_every_link_leads_somewhere_and_every_page_stands_in_it(self):
        built = subprocess.run([ROOT / "docs" / "site"], capture_output=True, text=True, check=False)
        self.assertEqual(0, built.returncode, built.stdout + built.stderr)
        files = {str(path.relative_to(SITE)) for path in SITE.rglob("*")}
        pages = {name: Page((SITE / name).read_text()) for name in files if name.endswith(".html")}
        del pages["404.html"]  # its links begin at a server's root
        self.assertEqual([], faults_of(pages, files | {"."}))
        for source in (ROOT / "docs").glob("*.md"):
            self.assertIn(f"docs/{source.stem}.html", pages)
            linked = any(link.endswith(f"{source.stem}.html") for link in pages["index.html"].links)
            self.assertTrue(linked, f"docs/{source.name} stands in no menu: add it to docs/mkdocs.yaml")


if __name__ == "__main__":
    if shutil.which("mkdocs") is None:
        print("skipped: the website of the documentation needs mkdocs (deploy/install_packages deploy/packages_ci.txt)")
        sys.exit(NOT_INSTALLED)
    unittest.main()
