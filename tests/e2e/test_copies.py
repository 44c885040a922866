"""Copies of the coordinator's state elsewhere: sets of files that a hook takes to an object store, and a restore."""

import json
import os
import shutil
import signal
import subprocess
import time
import unittest

from harness import BAD_INPUT, DONE, DigestBook, EndToEndTest, eventually, merged, yaml_text
from test_restart import SITES, config_of

EVERY = {"checkpoint": {"every_rounds": 2}}
RCLONE = shutil.which("rclone")


class CopiesTest(EndToEndTest):
    def start(self, config, hook, *flags, **options):
        run = self.new_run(config)
        self.copies = run.folder / "copies"
        run.start_coordinator(f"--copy_to={self.copies}", f"--copy_hook={hook}", *flags, **options)
        run.start_workers(*SITES)
        return run

    def sets(self, folder):
        return sorted((folder / "sets").glob("*.json"))

    def await_set(self, run, beyond=""):
        eventually(lambda: (run.status()["copies"] or {}).get("set", "") > beyond, "a set", 20)

    def alarm(self, run):
        return next((alarm["text"] for alarm in run.status()["alarms"] if alarm["name"] == "copy_failed"), "")

    def lost_and_restored(self, fetch, hook):
        """A run whose coordinator and directory go, and that another one takes up from what `fetch` brings."""
        run = self.start(config_of(run={"steps": 500}, **EVERY), hook)
        eventually(lambda: run.newest() >= 5, "rounds")
        eventually(lambda: run.status()["copies"]["hook_ended"] == "with 0", "a hook")
        self.assertEqual(self.alarm(run), "")
        run.coordinator.kill()
        versions = json.loads(self.sets(self.copies)[-1].read_text())
        shutil.rmtree(run.state_dir)
        shutil.rmtree(self.copies)
        fetched = fetch(run)
        self.assertEqual(len(self.sets(fetched)), len({path.name for path in self.sets(fetched)}))
        run.start_coordinator(f"--restore_from={fetched}", f"--copy_to={self.copies}")
        self.assertIn("was restored from the copy ", run.coordinator.log())
        self.assertEqual(run.status()["epoch"], versions["epoch"] + 1)
        DigestBook().until_done(run)
        return run


class Local(CopiesTest):
    def test_a_run_whose_machine_is_gone_goes_on_from_what_its_hook_has_taken_elsewhere(self):
        bucket = self.folder / "bucket"
        run = self.lost_and_restored(lambda run: bucket, f"mkdir -p {bucket} && cp -a --update $CAUSEWAY_COPY_DIR/. {bucket}")
        run.stop_coordinator()
        self.assertTrue(self.sets(self.copies))


if __name__ == "__main__":
    unittest.main()
