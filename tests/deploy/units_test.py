"""deploy/'s systemd units: what they do with flags and exit codes."""

import pathlib
import re
import subprocess
import tempfile
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


class Removal(unittest.TestCase):
    """The package's prerm, with a systemctl that notes its calls."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "run" / "systemd" / "system").mkdir(parents=True)
        wanted = self.root / "etc" / "systemd" / "system" / "multi-user.target.wants"
        wanted.mkdir(parents=True)
        for site in ("paris", "oslo"):
            (wanted / f"causeway-worker@{site}.service").symlink_to("/lib/systemd/system/causeway-worker@.service")
        systemctl = self.root / "bin" / "systemctl"
        systemctl.parent.mkdir()
        systemctl.write_text(f"""#!/bin/sh
echo "$*" >> {self.root}/calls
[ "$1" != list-units ] || echo 'causeway-worker@tokyo.service loaded active running Causeway worker'
""")
        systemctl.chmod(0o755)

    def calls(self, *arguments):
        subprocess.run(["sh", DEPLOY / "debian" / "prerm", *arguments], check=True,
                       env={"DPKG_ROOT": str(self.root), "PATH": f"{self.root / 'bin'}:/usr/bin:/bin"})
        noted = self.root / "calls"
        return noted.read_text().splitlines() if noted.exists() else []

    def test_each_unit_that_is_enabled_or_runs_is_disabled_and_stopped_by_its_name(self):
        stopped = [call for call in self.calls("remove") if call.startswith("disable")]
        self.assertEqual(sorted(stopped), [f"disable --now causeway-{unit}.service" for unit in (
            "coordinator", "worker@oslo", "worker@paris", "worker@tokyo")])

    def test_an_upgrade_leaves_them_running(self):
        self.assertEqual(self.calls("upgrade"), [])


if __name__ == "__main__":
    unittest.main()
