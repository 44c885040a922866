"""deploy/'s systemd units: what they do with flags and exit codes."""

import re
import unittest

from deploy_files import DEPLOY, compose, unit_command


class Units(unittest.TestCase):
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
