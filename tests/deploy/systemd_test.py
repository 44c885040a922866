"""deploy/'s systemd units, checked by systemd itself. Ends with 77 where it is not installed."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from deploy_files import DEPLOY

SKIPPED = 77


class Units(unittest.TestCase):
    def test_systemd_takes_them_and_finds_them_hardened(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program"
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
            units = []
            for path in sorted((DEPLOY / "systemd").glob("*.service")):
                text = re.sub(r"^(ExecStart=)\S+", rf"\1{program}", path.read_text(), flags=re.MULTILINE)
                units.append(pathlib.Path(folder) / path.name.replace("@.", "@paris."))
                units[-1].write_text(text)
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
            self.assertEqual((0, ""), (done.returncode, done.stderr))
            for unit in units:
                done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", unit],
                                      capture_output=True, text=True)
                self.assertEqual(0, done.returncode, done.stdout[-200:] + done.stderr)


if __name__ == "__main__":
    if shutil.which("systemd-analyze") is None:
        print("skipped: systemd's check of its units needs systemd (deploy/install_packages deploy/packages_ci.txt)")
        sys.exit(SKIPPED)
    unittest.main()
