"""deploy/'s systemd units: whether systemd takes them, and what they do with flags and exit codes."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from deploy_files import DEPLOY, compose, unit_command


class Units(unittest.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
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

    def test_a_restored_or_lost_state_is_said_by_a_variable_without_an_edit_of_the_file(self):
        unit = DEPLOY / "systemd" / "causeway-coordinator.service"
        defaults = re.search(r"^Environment=(.*)$", unit.read_text(), re.MULTILINE)[1]
        for variable in ("NEW_LINEAGE", "REBUILD_FROM_SITES"):
            self.assertIn(f"--{variable.lower()}=${{{variable}}}", unit_command(unit))
            self.assertIn(f"{variable}=false", defaults.split())
            for variables, value in (({}, "false"), ({variable: "true"}, "true")):
                command = compose("compose.yaml", variables)["services"]["coordinator"]["command"]
                self.assertIn(f"--{variable.lower()}={value}", command)

    def test_a_worker_that_was_refused_is_not_started_again(self):
        for path in (DEPLOY / "systemd").glob("*.service"):
            codes = re.search(r"^RestartPreventExitStatus=(.*)$", path.read_text(), re.MULTILINE)[1].split()
            self.assertLessEqual({"2", "3"}, set(codes))


if __name__ == "__main__":
    unittest.main()
