"""Pages that one machine can follow without PyTorch, each from its first command to its last (doc_page.py)."""

import pathlib
import shutil
import sys
import tempfile
import unittest

import yaml

from doc_page import BINARIES, GAP, RUN, Page


@unittest.skipUnless(BINARIES, "CAUSEWAY_BIN_DIR names no build")
class Pages(unittest.TestCase):
    def follow(self, document, least, before=lambda page, command: None):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        page = Page(document, folder)
        self.addCleanup(page.stop)
        self.assertGreaterEqual(page.follow(before), least)
        return page

    def test_words_to_fill_in_are_not_run(self):
        for command in ("causewayctl stop RUN", "causeway-worker --data=… x", "causewayctl export --out=DIR"):
            self.assertTrue(GAP.search(command), command)
        for command in ("deploy/certs --out certs", "A_B=$PWD causewayctl plan", "causewayctl set inner.lr=1e-4"):
            self.assertFalse(GAP.search(command), command)

    def test_planning(self):
        self.follow("docs/planning.md", 11)

    def test_pipelines(self):
        self.follow("docs/pipelines.md", 4)

    def test_the_built_in_trainer_on_ranks(self):
        self.follow("docs/ranks.md", 1)

    def test_operating(self):
        def copied(page, command):
            if "--restore_from=copies" in command:
                page.write_run(yaml.safe_load(RUN))
                page.start_coordinator("causeway-coordinator --config=run.yaml --state_dir=copied --copy_to=copies")
                page.do("before", "causeway-worker --coordinator=127.0.0.1:7077 --site=eu --data=text.txt")
                page.stop()
        page = self.follow("docs/operating.md", 8, copied)
        self.assertTrue((page.folder / "model_of_then" / "model.safetensors").exists())
        self.assertTrue((page.folder / "run" / "operator" / "addresses").exists())

    def test_security(self):
        def copied(page, command):
            for path in page.folder.glob("certs/*"):
                shutil.copy(path, page.folder)
        self.follow("docs/security.md", 5, copied)

    def test_papers(self):
        self.follow("docs/papers.md", 1)


if __name__ == "__main__":
    sys.exit(unittest.main())
