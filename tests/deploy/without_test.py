"""tests/deploy/without: which packages and files it hides, by made-up lists of dpkg; and that a command is run."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("without")
LOADER = importlib.machinery.SourceFileLoader("without", str(SCRIPT))
without = importlib.util.module_from_spec(importlib.util.spec_from_loader("without", LOADER))
LOADER.exec_module(without)

STATUS = """Package: base
Essential: yes
Status: install ok installed
Depends: libc (>= 2)

Package: libc
Status: install ok installed

Package: compiler
Status: install ok installed
Depends: libc, linker | other-linker
Pre-Depends: base

Package: linker
Status: install ok installed

Package: browser
Status: install ok installed
Depends: libc, fonts (= 1:2.0-1), linker

Package: real-fonts
Status: install ok installed
Provides: fonts (= 1:2.0-1)

Package: removed
Status: deinstall ok config-files
Depends: libc
"""


class Without(unittest.TestCase):
    def test_what_only_the_list_brings_is_hidden_with_what_it_needs(self):
        self.assertEqual(["browser", "real-fonts"], without.only_by(["browser", "removed"], ["compiler"], STATUS))
        self.assertEqual(["browser", "linker", "real-fonts"], without.only_by(["browser"], [], STATUS))
        self.assertEqual([], without.only_by(["base", "not-installed"], [], STATUS))

    def test_files_of_these_packages_alone_are_hidden_not_those_of_others(self):
        with tempfile.TemporaryDirectory() as folder:
            info = pathlib.Path(folder)
            (info / "browser.list").write_text("/.\n/usr\n/usr/bin\n/usr/bin/browser\n/usr/lib/browser\n/lib/browser/x.so\n/etc/b\n")
            (info / "base:amd64.list").write_text("/usr\n/usr/bin\n/usr/bin/sh\n")
            self.assertEqual(["/usr/bin/browser", "/usr/lib/browser", "/usr/lib/browser/x.so"],
                             without.files_of(["browser"], info))

    def test_the_command_runs_and_its_exit_status_is_kept(self):
        done = subprocess.run([SCRIPT, SCRIPT.parents[2] / "deploy" / "packages_ci.txt", "sh", "-c", "echo ran; exit 3"],
                              capture_output=True, text=True, check=False)
        self.assertEqual((3, ""), (done.returncode, done.stderr))
        self.assertIn("ran\n", done.stdout)


if __name__ == "__main__":
    unittest.main()
