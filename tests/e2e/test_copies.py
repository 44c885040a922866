"""Copies of the coordinator's state elsewhere: sets of files that a hook takes to an object store, and a restore."""

import re
import shutil
import signal
import subprocess
import unittest

from harness import BAD_INPUT, DONE, DigestBook, EndToEndTest, eventually
from test_restart import SITES, config_of

RCLONE = shutil.which("rclone")


def with_rclone(remote):
    """The files first, so that a set in the bucket is whole."""
    return f'cd "$CAUSEWAY_COPY_DIR" && rclone copy files "{remote}/files" && rclone copy sets "{remote}/sets"'


class CopiesTest(EndToEndTest):
    def start(self, hook):
        run = self.new_run(config_of(run={"steps": 5000}, checkpoint={"every_rounds": 2}))
        self.copies = run.folder / "copies"
        run.start_coordinator(f"--copy_to={self.copies}", f"--copy_hook={hook}")
        run.start_workers(*SITES)
        return run

    def sets(self, folder):
        return sorted(path.stem for path in (folder / "sets").glob("*.json"))

    def failure(self, run):
        return next((alarm["text"] for alarm in run.status()["alarms"] if alarm["name"] == "copy_failed"), "")

    def lose_and_restore(self, hook, fetch, *flags):
        """The coordinator's machine goes with all that is on it; another takes the run up from what `fetch` brings."""
        run = self.start(hook)
        eventually(lambda: run.newest() >= 5 and run.status()["copies"]["sent"], "rounds and a hook")
        self.assertEqual(self.failure(run), "")
        run.coordinator.send(signal.SIGSTOP)
        lost = max(version for _, version in run.journal("SELECT fragment, MAX(version) FROM rounds GROUP BY fragment")) + 1
        run.coordinator.kill()
        self.remove(run.state_dir, self.copies)
        fetched = self.folder / "fetched"
        fetch(fetched)
        newest = self.sets(fetched)[-1]
        run.start_coordinator(f"--restore_from={fetched}", f"--copy_to={self.copies}", f"--copy_hook={hook}")
        self.assertIn(f"was restored from the copy {newest}", run.coordinator.log())
        self.assertNotIn("high_water is missing", run.coordinator.log())
        eventually(lambda: min(version for site in run.status()["sites"] or [{"digests": {}}]
                               for version in [anchor["version"] for anchor in site["digests"].values()] or [-1]) > lost,
                   "all sites are beyond what is made again")
        DigestBook().await_agreement(run, SITES, lost)
        run.stop_all()  # the coordinator makes a last copy, and waits for its hook
        self.assertIn(self.sets(self.copies)[-1], self.sets_after(fetch))

    def remove(self, *folders):
        for folder in folders:  # a hook may still be at work there
            eventually(lambda: shutil.rmtree(folder, ignore_errors=True) or not folder.exists(), f"{folder} is gone")

    def sets_after(self, fetch):
        later = self.folder / "later"
        fetch(later)
        return self.sets(later)

    def test_a_run_whose_machine_is_gone_goes_on_from_what_a_hook_has_taken_elsewhere(self):
        bucket = self.folder / "bucket"
        (bucket / "files").mkdir(parents=True)
        (bucket / "sets").mkdir()
        self.lose_and_restore(f'cd "$CAUSEWAY_COPY_DIR"; for part in files sets; do cp -a $part/. {bucket}/$part; done',
                              lambda to: shutil.copytree(bucket, to))

    @unittest.skipUnless(RCLONE, "rclone is not installed (apt-get install rclone)")
    def test_rclone_takes_copies_to_a_folder_and_back(self):
        self.lose_and_restore(with_rclone(self.folder / "bucket"),
                              lambda to: subprocess.run(["rclone", "copy", self.folder / "bucket", to], check=True))

    @unittest.skipUnless(RCLONE, "rclone is not installed (apt-get install rclone)")
    def test_rclone_takes_copies_over_webdav_and_back(self):
        log, bucket = self.folder / "webdav.log", self.folder / "bucket"
        bucket.mkdir()
        with open(log, "w") as out, subprocess.Popen(["rclone", "serve", "webdav", bucket, "--addr=127.0.0.1:0"],
                                                     stdout=out, stderr=out) as server:
            try:
                started = eventually(lambda: re.search(r"started on .?(http://[0-9.:]+[0-9])", log.read_text()), "it serves")
                remote = f":webdav,url='{started[1]}':"
                self.lose_and_restore(with_rclone(remote),
                                      lambda to: subprocess.run(["rclone", "copy", remote, to], check=True))
            finally:
                server.kill()

    def test_a_state_that_sites_have_rebuilt_goes_on_in_the_same_folder(self):
        run = self.start("true")
        eventually(lambda: run.newest() >= 3 and self.sets(self.copies), "rounds and a copy")
        run.coordinator.kill()
        self.remove(run.state_dir)
        before = self.sets(self.copies)[-1]
        run.start_coordinator("--rebuild_from_sites", f"--copy_to={self.copies}")
        eventually(lambda: (run.status().get("copies") or {}).get("set", "") > before, "a copy of it")
        self.assertEqual(self.failure(run), "")
        run.stop_all()

    def test_a_failing_hook_is_an_alarm_and_tells_no_page_what_it_printed(self):
        run = self.start("echo AWS_SECRET_ACCESS_KEY=hunter2; exit 3")
        text = eventually(lambda: self.failure(run), "an alarm")
        self.assertRegex(text, r"--copy_hook ended with 3, for the set \S+; what it printed is in \S+copy_hook.log")
        self.assertNotIn("hunter2", str(run.status()) + run.coordinator.log())
        self.assertIn("hunter2", (run.state_dir / "copy_hook.log").read_text())
        newest = run.newest()
        eventually(lambda: run.newest() > newest + 2, "rounds go on")
        run.stop_all()

    def test_a_hook_that_hangs_holds_no_round_and_the_coordinator_waits_for_it(self):
        go = self.folder / "go"
        run = self.start(f"until [ -e {go} ]; do sleep 0.1; done; sleep 1")
        eventually(lambda: self.sets(self.copies), "a set")
        newest = run.newest()
        eventually(lambda: run.newest() > newest + 6, "rounds go on")
        self.assertEqual(len(self.sets(self.copies)), 1)
        go.touch()
        run.stop_all()
        self.assertEqual(len(self.sets(self.copies)), 2)

    def test_flags_that_fit_nothing_are_refused_before_anything_begins(self):
        run = self.new_run(config_of())
        for flags, expected in (([f"--copy_to={self.folder}", "--copy_keep=0"], "--copy_keep: expected 1 or more, got 0"),
                                ([f"--copy_to={run.state_dir}/log/copies"], "--copy_to: expected a folder of its own, got one in"),
                                (["--copy_hook=true"], "--copy_hook: expected --copy_to=DIR with it, got none"),
                                ([f"--restore_from={self.folder}"], f"got {self.folder}, where sets/ holds no set")):
            ended = run.program("refused", "causeway-coordinator", f"--config={run.config_path}", "--http=127.0.0.1:0",
                                "--listen=127.0.0.1:0", f"--state_dir={run.state_dir}", *flags)
            self.assertEqual(ended.wait(), BAD_INPUT, ended.log())
            self.assertIn(expected, ended.log())


class ExportHook(EndToEndTest):
    def test_an_export_s_hook_gets_the_folder_and_its_failure_is_the_command_s(self):
        run = self.new_run(config_of(run={"steps": 40}))
        run.start_coordinator()
        run.start_workers(*SITES)
        run.await_done()
        out = self.folder / "model"
        for hook, code in (('cp "$CAUSEWAY_EXPORT_DIR/model.safetensors" "$CAUSEWAY_EXPORT_DIR.copy"', DONE), ("exit 7", 1)):
            export = run.program("export", "causewayctl", "export", f"--coordinator={run.grpc}", f"--out={out}",
                                 f"--hook={hook}")
            self.assertEqual(export.wait(), code, export.log())
        self.assertIn("--hook ended with 7", export.log())
        self.assertEqual((out / "model.safetensors").read_bytes(), (self.folder / "model.copy").read_bytes())


if __name__ == "__main__":
    unittest.main()
