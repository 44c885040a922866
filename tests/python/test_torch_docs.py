"""docs/python.md as its reader follows it: the script that it prints, by the commands that it prints, in its order."""

import os
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "deploy"))

from doc_page import OWN, Page
from torch_site import torch

WITH_PYTHON = re.compile(OWN.pattern + r"|^(?:\w+=\S+ )*python (?:-m causeway|script)")


@unittest.skipUnless(os.environ.get("CAUSEWAY_BIN_DIR"), "CAUSEWAY_BIN_DIR names no build")
class DocsTest(unittest.TestCase):
    def test_the_page_of_python_from_its_first_command_to_its_last(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        page = Page("docs/python.md", folder, own=WITH_PYTHON,
                    PATH=f"{os.environ['CAUSEWAY_BIN_DIR']}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
        self.addCleanup(page.stop)
        self.assertEqual(6, page.follow())
        self.assertTrue((folder / "model" / "model.safetensors").exists())
        for site in ("eu", "us"):
            self.assertEqual({"0.weight", "1.weight", "1.bias"}, torch.load(folder / f"{site}.pt")["model"].keys())


if __name__ == "__main__":
    unittest.main()
