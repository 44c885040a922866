"""Programs that a shell, a supervisor or a pipe starts: streams that are closed, full or read no longer, hang-ups, and files
to write that are links, pipes and devices."""

import json
import os
import re
import signal
import subprocess
import threading

from harness import BAD_INPUT, BIN_DIR, DONE, FAILED, EndToEndTest, eventually, synthetic

PROGRAMS = ["causeway-coordinator", "causeway-worker", "causewayctl"]
SHAPES = [[10], [20]]
LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z (info|warning|error) ")
PLAN = ("plan", "pipeline", "--schedule=1f1b", "--devices=2", "--micro_batches=4")


class StreamsTest(EndToEndTest):
    def live_run(self, **sections):
        run = self.new_run(synthetic({"a": 0.5}, SHAPES, **{"model": {"step_ms": 1}, "run": {"steps": 0}} | sections))
        run.start_coordinator()
        return run

    def ctl(self, *arguments, shell="", run=None):
        """causewayctl in bash, with what follows it there; exit code and its stderr."""
        where = (f"--coordinator={run.grpc}",) if run else ()
        command = " ".join([str(BIN_DIR / "causewayctl"), *map(str, arguments + where), shell])
        ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        return ended.returncode, ended.stderr


class OutputTest(StreamsTest):
    def test_a_result_that_finds_no_room_is_an_error(self):
        run = self.live_run()
        run.start_workers("a")
        run.await_rounds(2)
        config = run.config_path
        for arguments, at in ((("status", "--json"), run), (("status",), run), (("status", "--watch"), run),
                              (("history",), run), (("history", "--json"), run), (("config-check", config, "--json"), None),
                              (PLAN, None),
                              (("export", f"--out={self.folder}/export"), run), (("--help",), None),
                              (("--version",), None),
                              (("report", f"--out={self.folder}/report.html"), run)):
            code, said = self.ctl(*arguments, shell=">/dev/full", run=at)
            self.assertEqual(code, FAILED, arguments)
            self.assertIn("cannot write all of the result to standard output: No space left on device", said)
        for program in PROGRAMS:
            ended = subprocess.run(["bash", "-c", f"{BIN_DIR / program} --version >/dev/full"], capture_output=True,
                                   text=True, check=False)
            self.assertEqual(ended.returncode, FAILED, program)
            self.assertIn("No space left on device", ended.stderr)
        profiled = subprocess.run(["bash", "-c", f"{BIN_DIR}/causeway-worker --profile_stages=no >/dev/full"],
                                  capture_output=True, check=False)
        self.assertEqual(profiled.returncode, BAD_INPUT, "the first fault counts")

    def test_a_reader_that_has_enough_is_no_error_message(self):
        run = self.live_run()
        run.start_workers("a")
        run.await_rounds(40)
        for arguments in (("status", "--watch"), ("history",)):
            _, said = self.ctl(*arguments, shell="| head -1 >/dev/null", run=run)
            self.assertEqual(said, "", arguments)

    def test_a_log_that_is_read_no_longer_ends_no_program(self):
        for extra in ([], ["--nproc=2"]):
            with self.subTest(extra):
                run = self.live_run(run={"steps": 200})
                worker = [str(BIN_DIR / "causeway-worker"), f"--coordinator={run.grpc}", "--site=a"]
                reads, writes = os.pipe()
                os.close(reads)
                process = subprocess.Popen([*worker, *extra], stdout=writes, stderr=writes, stdin=subprocess.DEVNULL)
                os.close(writes)
                self.assertEqual(process.wait(60), DONE)

    def test_streams_that_are_closed_are_taken_by_no_file(self):
        run = self.new_run(synthetic({"a": 0.5}, SHAPES, run={"steps": 200}, model={"step_ms": 1}))
        closed = "0<&- 1>&- 2>&-"
        coordinator = subprocess.Popen(["bash", "-c", f"exec {BIN_DIR}/causeway-coordinator --config={run.config_path} "
                                        f"--state_dir={run.state_dir} --listen=127.0.0.1:0 --http=127.0.0.1:0 {closed}"])
        try:
            addresses = run.state_dir / "addresses.json"
            eventually(lambda: addresses.exists() or coordinator.poll() is not None, "the coordinator listens")
            listening = json.loads(addresses.read_text())
            run.grpc, run.http = listening["grpc"], listening["http"]
            for stream in range(3):
                self.assertEqual(os.readlink(f"/proc/{coordinator.pid}/fd/{stream}"), "/dev/null")
            worker = subprocess.run(["bash", "-c", f"exec {BIN_DIR}/causeway-worker --coordinator={run.grpc} --site=a "
                                     f"--checkpoint_dir={self.folder}/checkpoints {closed}"], check=False)
            self.assertEqual(worker.returncode, DONE)
            self.assertEqual(self.ctl("export", f"--out={self.folder}/export", shell=closed, run=run)[0], DONE)
            self.assertTrue((self.folder / "export" / "model.safetensors").exists())
            coordinator.send_signal(signal.SIGTERM)
            self.assertEqual(coordinator.wait(60), DONE)
        finally:
            coordinator.kill()
            coordinator.wait()


class HangUpTest(StreamsTest):
    def test_a_hang_up_saves_like_a_request_to_stop(self):
        for flags in ((), ("--nproc=2",)):
            with self.subTest(flags):
                run = self.live_run()
                worker = run.start_worker("a", f"--checkpoint_dir={run.folder}/checkpoints", *flags)
                run.await_rounds(3)
                worker.send(signal.SIGHUP)
                worker.send(signal.SIGHUP)  # from the shell, and from the terminal
                self.assertEqual(worker.wait(), DONE, worker.log())
                self.assertIn("drained", worker.log())
                self.assertTrue(list((run.folder / "checkpoints").glob("0*/sync.json")))
                run.coordinator.send(signal.SIGHUP)
                self.assertEqual(run.coordinator.wait(), DONE)
                self.assertIn("stopping: saves snapshots", run.coordinator.log())

    def test_a_launcher_and_its_ranks_that_all_get_the_signal_save(self):
        run = self.live_run()
        worker = run.start_worker("a", f"--checkpoint_dir={run.folder}/checkpoints", "--nproc=2", preexec_fn=os.setsid)
        run.await_rounds(3)
        os.killpg(worker.process.pid, signal.SIGINT)
        self.assertEqual(worker.wait(), DONE, worker.log())
        self.assertIn("drained", worker.log())

    def test_under_nohup_it_goes_on(self):
        run = self.live_run()
        worker = run.start_worker("a", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        run.await_rounds(2)
        worker.send(signal.SIGHUP)
        run.await_rounds(run.rounds() + 20)
        self.assertTrue(worker.running())
        self.assertEqual(worker.terminate(), DONE)


class LogTest(StreamsTest):
    def test_times_of_the_log_and_the_history_are_utc_and_say_so(self):
        run = self.new_run(synthetic({"a": 0.5}, SHAPES, run={"steps": 30}))
        run.start_coordinator(environment={"TZ": "Asia/Kolkata"})
        worker = run.program("worker", "causeway-worker", f"--coordinator={run.grpc}", "--site=a",
                             environment={"TZ": "America/New_York"})
        self.assertEqual(worker.wait(), DONE)
        for line in worker.log().splitlines() + run.coordinator.log().splitlines():
            self.assertRegex(line, LOG_LINE)
        history = run.program("history", "causewayctl", "history", f"--coordinator={run.grpc}")
        self.assertEqual(history.wait(), DONE)
        for line in history.output().splitlines():
            self.assertRegex(line, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  ")
        self.assertEqual(run.coordinator.log()[:13], history.output()[:13], "both begin in the same hour")
        bad = run.program("json", "causeway-worker", "--log_format=json", "--site=")
        self.assertEqual(bad.wait(), BAD_INPUT)
        self.assertRegex(json.loads(bad.log())["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")

    def test_control_characters_of_a_name_are_written_as_escapes(self):
        for flag, said in (("--site=eu\r", "'eu\\r'"), ("--site=\x1b[2Jeu", "'\\x1b[2Jeu'"), ("--site=e\nu", "'e\\nu'"),
                           ("--coordinator=eu\a:1", "eu\\x07:1"), ("--data=/no\rwhere", ""), ("--no_such\r=1", "no_such\\r"),
                           ("--max_up_mbit=a\x7f", "'a\\x7f'")):
            worker = self.program(self.folder, "worker", "causeway-worker", "--site=a", flag, "--connect_timeout_s=1")
            worker.wait()
            log = worker.log_path.read_bytes()
            self.assertIn(said, log.decode(), flag)
            self.assertNotRegex(log, rb"[\x00-\x08\x0b-\x1f\x7f]")
            worker.log_path.unlink()


class FilesTest(StreamsTest):
    def test_a_pipe_a_device_and_a_link_to_write_to_stay_what_they_are(self):
        run = self.live_run()
        run.start_workers("a")
        run.await_rounds(2)
        commands = {"report": (("report",), "--out", run), "schedule": (PLAN, "--out", None),
                    "drawing": (PLAN, "--svg", None), "csv": (PLAN, "--torch_csv", None)}
        for label, (arguments, flag, at) in commands.items():
            with self.subTest(label):
                pipe, link, target = (self.folder / f"{label}-{kind}" for kind in ("pipe", "link", "target"))
                os.mkfifo(pipe)
                read = []
                reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
                reader.start()
                self.assertEqual(self.ctl(*arguments, f"{flag}={pipe}", run=at)[0], DONE)
                reader.join()
                self.assertTrue(pipe.is_fifo() and read[0])
                link.symlink_to(target)
                self.assertEqual(self.ctl(*arguments, f"{flag}={link}", run=at)[0], DONE)
                self.assertTrue(link.is_symlink() and target.is_file())
                self.assertEqual(target.read_text()[:40], read[0][:40])
                null, full = self.folder / f"{label}-null", self.folder / f"{label}-full"
                null.symlink_to("/dev/null")
                full.symlink_to("/dev/full")
                self.assertEqual(self.ctl(*arguments, f"{flag}={null}", run=at)[0], DONE)
                code, said = self.ctl(*arguments, f"{flag}={full}", run=at)
                self.assertNotEqual(code, DONE)
                self.assertIn("No space left on device", said)
                self.assertEqual(self.ctl(*arguments, f"{flag}={self.folder}", run=at)[0], BAD_INPUT)
                self.assertFalse(list(self.folder.glob("*.tmp")))

    def test_a_report_to_standard_output_is_the_report_alone(self):
        run = self.live_run()
        run.start_workers("a")
        run.await_rounds(2)
        for where in (">", "| cat >"):
            path = self.folder / "out.html"
            self.assertEqual(self.ctl("report", "--out=/dev/stdout", f"--coordinator={run.grpc}", shell=f"{where}{path}")[0],
                             DONE)
            self.assertTrue(path.read_text().rstrip().endswith("</html>"), path.read_text()[-80:])

    def test_several_that_write_one_file_all_succeed_and_leave_one_whole_file(self):
        run = self.live_run()
        run.start_workers("a")
        run.await_rounds(2)
        out = self.folder / "out" / "report.html"
        out.parent.mkdir()
        reports = [run.program(f"report-{i}", "causewayctl", "report", f"--out={out}", f"--coordinator={run.grpc}")
                   for i in range(12)]
        for report in reports:
            self.assertEqual(report.wait(), DONE, report.log())
        self.assertEqual([path.name for path in out.parent.iterdir()], ["report.html"])
        self.assertTrue(out.read_text().rstrip().endswith("</html>"))

    def test_the_parameters_that_a_worker_writes_at_its_end_follow_a_link(self):
        run = self.new_run(synthetic({"a": 0.5}, SHAPES, run={"steps": 12}))
        run.start_coordinator()
        run.dump_path("a").symlink_to(self.folder / "target")
        run.start_workers("a")
        run.await_done()
        self.assertTrue(run.dump_path("a").is_symlink() and (self.folder / "target").is_file())

    def test_checkpoints_whose_folder_was_removed_are_written_again(self):
        run = self.live_run(checkpoint={"every_rounds": 5, "keep": 1})
        checkpoints = run.folder / "checkpoints"
        worker = run.start_worker("a", f"--checkpoint_dir={checkpoints}")
        eventually(lambda: list(checkpoints.glob("0*/sync.json")), "a checkpoint")
        checkpoints.rename(run.folder / "away")
        eventually(lambda: list(checkpoints.glob("0*/sync.json")), "a checkpoint again")
        self.assertIn(f"--checkpoint_dir: {checkpoints} is gone", worker.log())
        self.assertEqual(worker.terminate(), DONE)
        again = run.start_worker("a", f"--checkpoint_dir={checkpoints}")
        eventually(lambda: again.log().count("takes part") == 2, "the site is back")
        self.assertEqual(again.terminate(), DONE)


class StuckLogTest(EndToEndTest):
    def test_a_log_that_is_not_read_holds_no_round_up_and_has_an_alarm(self):
        run = self.new_run(synthetic({"a": 0.5, "b": -0.25}, [[1000]], model={"step_ms": 1}))
        read_end, write_end = os.pipe()  # stays open, and is not read
        environment = {"CAUSEWAY_LOG": "debug"}
        run.start_coordinator(preexec_fn=lambda: os.dup2(write_end, 2), environment=environment)
        run.start_worker("a", preexec_fn=lambda: os.dup2(write_end, 2), environment=environment)
        run.start_worker("b")
        eventually(lambda: "log_stuck" in [alarm["name"] for alarm in (run.status() or {}).get("alarms", [])],
                   "the alarm log_stuck")
        run.await_rounds(run.rounds() + 20)
        run.stop_all()  # SIGTERM ends them
        os.close(read_end)
        os.close(write_end)
