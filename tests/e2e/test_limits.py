"""Each limit of the machine that is too low for a program is named, and the program ends with 1."""

import os
import resource
import socket
import unittest

from harness import DONE, EndToEndTest, FAILED, eventually, others_reach_programs, synthetic

UNPRIVILEGED = 65534  # the limit of threads does not hold root


def few_threads():
    resource.setrlimit(resource.RLIMIT_NPROC, (20, 20))
    if os.getuid() == 0:
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)


def short_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10))


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))


class Limits(EndToEndTest):
    def setUp(self):
        super().setUp()
        self.config = synthetic({"a": 1.0}, [[2_000]], run={"steps": 1_000_000}, model={"step_ms": 1},
                                sync={"sync_every": 2, "num_fragments": 1})

    def start(self, label, program, *flags, **options):
        return self.program(self.folder, label, program, *flags, **options)

    def assert_says(self, program, *words):
        self.assertEqual(program.wait(), FAILED, program.log()[-2000:])
        for word in words:
            self.assertIn(word, program.log())

    def test_files_that_may_not_grow_end_the_coordinator(self):
        run = self.new_run(self.config)
        run.start_coordinator(preexec_fn=short_files)
        run.start_worker("a")
        self.assert_says(run.coordinator, "ulimit -f allows files of 102400 bytes", "records up to")
        eventually(lambda: "no server listens there" in run.workers["a"].log(), "the site waits for another")

    def test_idle_connections_leave_descriptors_for_the_state_and_callers_wait(self):
        config = synthetic({"a": 1.0}, [[2_000]], run={"steps": 1_000_000}, model={"step_ms": 5},
                           sync={"sync_every": 2, "num_fragments": 1}, checkpoint={"every_rounds": 3})
        run = self.new_run(config)
        run.start_coordinator(preexec_fn=few_descriptors)
        run.start_worker("a")
        run.await_rounds(1)
        host, port = run.grpc.split(":")
        idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(300)]
        eventually(lambda: "descriptors, for the state: callers wait" in run.coordinator.log(), "the log says so")
        run.await_rounds(run.rounds() + 20)  # with snapshots
        for connection in idle:
            connection.close()
        self.assertEqual(self.start("ctl", "causewayctl", "status", f"--coordinator={run.grpc}").wait(), DONE)
        self.assertTrue(run.coordinator.running() and run.workers["a"].running())

    def test_threads_that_may_not_be_started_are_named_before_anything_is(self):
        if os.getuid() == 0 and not others_reach_programs():
            self.skipTest("another user may not start the programs here")
        run = self.new_run(self.config)
        os.chmod(self.folder, 0o755)
        for label, program, flags in (
                ("coordinator", "causeway-coordinator", [f"--config={run.config_path}", f"--state_dir={run.state_dir}"]),
                ("worker", "causeway-worker", ["--coordinator=127.0.0.1:1", "--site=a"])):
            with self.subTest(program):
                started = self.start(label, program, *flags, preexec_fn=few_threads)
                self.assert_says(started, "expected to start ", " threads, got ", "ulimit -u is 20")

    def test_memory_that_may_not_be_mapped_is_named_before_anything_is(self):
        def little_memory():
            resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))

        run = self.new_run(self.config)
        started = self.start("coordinator", "causeway-coordinator", f"--config={run.config_path}",
                             f"--state_dir={run.state_dir}", preexec_fn=little_memory)
        self.assert_says(started, "expected to start ", "ulimit -v is 409600 kB, of which each thread takes ")

    def test_a_folder_for_temporary_files_that_is_not_there_or_has_too_long_a_name(self):
        for name, words in (("missing", ["TMPDIR=", "expected a folder, got none"]),
                            ("x" * 120, ["expected a TMPDIR of at most ", " characters"])):
            with self.subTest(name[:7]):
                folder = self.folder / name
                if name != "missing":
                    folder.mkdir()
                ranks = self.start(f"ranks-{name[:7]}", "causeway-worker", "--coordinator=127.0.0.1:1", "--site=a",
                                   "--nproc=2", environment={"TMPDIR": str(folder)})
                self.assert_says(ranks, *words)


if __name__ == "__main__":
    unittest.main()
