"""The processes of a quickstart: how they start, fail and end, with scripts in place of the programs."""

import os
import pathlib
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy"))

from quickstart_lib import built_in, stack


class Parts(unittest.TestCase):
    LISTEN = 'echo \'{"grpc": "127.0.0.1:1", "http": "127.0.0.1:1"}\' > "$state/addresses.json"'
    STATE = 'for a in "$@"; do case "$a" in --state_dir=*) state="${a#--state_dir=}"; mkdir "$state";; esac; done\n'

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def stack(self, coordinator, worker):
        for name, script in (("causeway-coordinator", self.STATE + coordinator), ("causeway-worker", worker)):
            program = self.folder / name
            program.write_text("#!/bin/sh\n" + script + "\n")
            program.chmod(0o755)
        return stack.Stack(self.folder, self.folder / "out", "run_id: x\n", lambda *_: (["causeway-worker"], {}), ["eu"])

    def check_until_failure(self, running):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            running.check()

    def test_a_site_that_fails_is_reported_with_its_own_error_and_log(self):
        failing = "echo 'error: loss is NaN' >&2; echo bye >&2; exit 4"
        with self.assertRaisesRegex(stack.PartFailed, "(?s)eu ended with exit code 4:\n *error: loss is NaN\n.*out/eu.log"):
            with self.stack(self.LISTEN + "\nexec sleep 100", failing) as running:
                self.check_until_failure(running)
        self.assertTrue(running.coordinator.ended())

    def test_a_script_that_fails_is_reported_with_the_end_of_its_traceback(self):
        failing = ("echo 'error: none of it' >&2; echo 'Traceback (most recent call last):' >&2; "
                   "echo '  File \"plain.py\", line 7' >&2; echo 'ValueError: no such shape' >&2; exit 1")
        with self.assertRaisesRegex(stack.PartFailed, "(?s)exit code 1:.*line 7\n *ValueError: no such shape\n"):
            with self.stack(self.LISTEN + "\nexec sleep 100", failing) as running:
                self.check_until_failure(running)

    def test_each_site_has_its_share_of_the_threads(self):
        told = 'echo "$OPENBLAS_NUM_THREADS $OMP_NUM_THREADS" >&2; exit 4'
        share = len(os.sched_getaffinity(0))  # of one site
        with self.assertRaisesRegex(stack.PartFailed, f"eu ended with exit code 4:\n *{share} {share}\n"):
            with self.stack(self.LISTEN + "\nexec sleep 100", told) as running:
                self.check_until_failure(running)

    def test_each_site_starts_its_ranks_without_binding_them_to_the_cores_of_the_others(self):
        command, _ = built_in.BuiltInTrainer(ranks=2).site("eu", "127.0.0.1:1")
        self.assertEqual(["--nproc=2", "--bind=none"], command[-2:])
        self.assertNotIn("--nproc=1", built_in.BuiltInTrainer().site("eu", "127.0.0.1:1")[0])

    def test_the_first_site_starts_the_ranks_of_a_pipeline(self):
        schedule = self.folder / "two.schedule"
        schedule.write_text("causeway-schedule 1\ndevices 2 micro_batches 4 stages 2 replicas 1\nwidth 3 copies\n")
        trainer = built_in.BuiltInTrainer(pipeline=built_in.Pipeline(schedule))
        data = self.folder / "text.txt"
        data.write_text("text\n" * 1000)
        trainer.take(data, ["eu", "us"], self.folder)
        self.assertEqual([f"--pipeline={schedule}", "--nproc=6", "--bind=none"], trainer.site("eu", "here:1")[0][-3:])
        self.assertIn("--device=cpu", trainer.site("eu", "here:1")[0])
        self.assertNotIn("--nproc=6", trainer.site("us", "here:1")[0])
        self.assertEqual(7, trainer.processes(["eu", "us"]))
        self.assertEqual(4, trainer.values(False)["micro_batches"])
        for path, sentence in ((data, "expected a file of causewayctl plan pipeline"), ("absent", "No such file")):
            with self.assertRaisesRegex(built_in.ScheduleError, sentence):
                built_in.Pipeline(path)

    def test_a_coordinator_that_does_not_start_is_reported(self):
        with self.assertRaisesRegex(stack.PartFailed, "coordinator ended with exit code 2:\n *bad key"):
            self.stack("echo 'bad key' >&2; exit 2", "exec sleep 100").__enter__()

    def test_leaving_the_context_stops_all_parts_and_kills_those_that_stay(self):
        deaf = self.folder / "deaf"  # there once the site ignores SIGTERM
        stubborn = f"trap '' TERM\ntouch {deaf}\nwhile :; do sleep 0.01; done"
        with self.stack(self.LISTEN + "\nexec sleep 100", stubborn) as running:
            site = running.sites[0]
            deadline = time.monotonic() + 30
            while not deaf.exists() and time.monotonic() < deadline:
                running.check()
            running.stop(grace_s=0.1)
        self.assertEqual(-9, site.process.returncode)
        self.assertTrue(running.coordinator.ended())


if __name__ == "__main__":
    unittest.main()
