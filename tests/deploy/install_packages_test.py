"""deploy/install_packages with made-up dpkg-query, id and apt-get: what it installs, and what it says when it may not."""

import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "install_packages"


class InstallPackages(unittest.TestCase):
    def run_with(self, missing, user):
        """The script's run where the packages `missing` are, and the calls of apt-get that it made."""
        with tempfile.TemporaryDirectory() as folder:
            programs = {
                "dpkg-query": f'case " {missing} " in *" $3 "*) exit 1;; esac; printf installed',
                "id": f"echo {user}",
                "apt-get": f'echo "$@" >> {folder}/calls',
            }
            for name, body in programs.items():
                program = pathlib.Path(folder) / name
                program.write_text(f"#!/bin/sh\n{body}\n")
                program.chmod(0o755)
            for name in ("bash", "sed", "dirname", "env"):  # and no others, such as sudo
                (pathlib.Path(folder) / name).symlink_to(f"/usr/bin/{name}")
            done = subprocess.run([SCRIPT], env={**os.environ, "PATH": folder}, capture_output=True, text=True)
            calls = pathlib.Path(folder) / "calls"
            return done, calls.read_text() if calls.exists() else ""

    def test_with_nothing_missing_it_is_silent_and_asks_for_nothing(self):
        done, calls = self.run_with(missing="", user=1000)
        self.assertEqual((0, "", "", ""), (done.returncode, done.stdout, done.stderr, calls))

    def test_root_installs_what_is_missing_and_no_more(self):
        done, calls = self.run_with(missing="ccache libxxhash-dev", user=0)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("update", calls.splitlines()[0])
        self.assertTrue(calls.splitlines()[1].endswith("ccache libxxhash-dev"), calls)

    def test_without_root_or_sudo_it_names_the_packages_and_the_command(self):
        done, calls = self.run_with(missing="ccache libxxhash-dev", user=1000)
        self.assertEqual((2, ""), (done.returncode, calls))
        self.assertIn("apt-get install --no-install-recommends ccache libxxhash-dev", done.stderr)


if __name__ == "__main__":
    unittest.main()
