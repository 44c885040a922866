"""Mistakes that people make, each with the message and the exit code that they see."""

import json
import os
import resource
import signal
import socket
import struct
import unittest

from bad_input import PROGRAMS, SHAPES, BadInputTest, config_of
from harness import (BAD_INPUT, DONE, FAILED, NON_FINITE, REFUSED, UNREACHABLE, eventually, merged, others_reach_programs,
                     synthetic)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class FlagTest(BadInputTest):
    def test_help_and_version(self):
        for program in PROGRAMS:
            helped, versioned = self.run_program(program, "--help"), self.run_program(program, "--version")
            self.assert_ends(helped, DONE)
            self.assertIn("--log_format" if program != "causewayctl" else "causewayctl COMMAND --help", helped.output())
            self.assert_ends(versioned, DONE)
            self.assertRegex(versioned.output(), r"^causeway \d+\.\d+\.\d+\n$")

    def test_unknown_flags_and_bad_values(self):
        for program in PROGRAMS:
            self.assert_ends(self.run_program(program, "--no_such_flag=1"), BAD_INPUT, "unknown flag --no_such_flag")
        self.assert_ends(self.run_program("causeway-worker", "--connect_timeout_s=soon"), BAD_INPUT,
                         "--connect_timeout_s: expected a", "number, got 'soon'; ")
        self.assert_ends(self.run_program("causeway-worker", "--max_up_mbit=abc"), BAD_INPUT,
                         "--max_up_mbit: expected a number, got 'abc'; ", "Mbit/s")
        self.assert_ends(self.run_program("causeway-worker", "--site=a", "--threads=-2"), BAD_INPUT,
                         "--threads: expected 1 or more, or 0 for all cores, got -2")
        for value in ("-1", "inf", "nan"):
            self.assert_ends(self.run_program("causeway-worker", "--site=a", f"--metrics_every_s={value}"), BAD_INPUT,
                             f"--metrics_every_s: expected 0 or more seconds, got {value}")
        self.assert_ends(self.run_program("causewayctl", "plan", "--sites=a"), BAD_INPUT,
                         "--sites: expected a whole number, got 'a'; plan: how many sites take part")
        self.assert_ends(self.run_program("causeway-coordinator", "--log_format=xml"), BAD_INPUT, "text or json")
        self.assert_ends(self.run_program("causeway-coordinator"), BAD_INPUT, "--config=run.yaml", "--state_dir=DIR")
        self.assert_ends(self.run_program("causewayctl", "frobnicate"), BAD_INPUT, "unknown command 'frobnicate'")
        self.assert_ends(self.run_program("causewayctl", "drain", "--sites=3"), BAD_INPUT,
                         "drain takes --site; --sites is for plan")

    def test_flags_take_dashes_and_underscores_and_those_that_are_near_are_named(self):
        config = self.folder / "run.yaml"
        config.write_text(json.dumps(config_of()))
        planned = self.run_program("causewayctl", "plan", f"--config={config}", "--link-mbit=100", "--rtt-ms=20", "--step-ms=50",
                                   "--sites=2")
        self.assert_ends(planned, DONE)
        for arguments, words in ((("status", "--wach"), "unknown flag --wach; the nearest is --watch"),
                                 (("status", "-w"), "unknown flag -w: flags begin with two dashes, such as --watch"),
                                 (("set", "--at-steps=3"), "unknown flag --at_steps; the nearest is --at_step")):
            self.assert_ends(self.run_program("causewayctl", *arguments), BAD_INPUT, words)
        version, asked = self.run_program("causewayctl", "version"), self.run_program("causewayctl", "--version")
        helped, of_command = self.run_program("causewayctl", "help"), self.run_program("causewayctl", "help", "set")
        for program in (version, asked, helped, of_command):
            self.assert_ends(program, DONE)
        self.assertEqual(version.output(), asked.output())
        self.assertIn("Watch a run", helped.output())
        self.assertIn("--at_step", of_command.output())

    def test_site_names(self):
        for name in ("", "../eu", "a b", "x" * 65):
            self.assert_ends(self.run_program("causeway-worker", f"--site={name}"), BAD_INPUT, "--site:", f"'{name}'")

    def test_addresses(self):
        for address in ("nowhere", "127.0.0.1:99999", ":"):
            self.assert_ends(self.run_program("causeway-worker", "--site=a", f"--coordinator={address}"), BAD_INPUT,
                             "--coordinator", address)
        self.assert_ends(self.coordinator("--listen=127.0.0.1"), BAD_INPUT, "127.0.0.1")

    def test_an_address_with_spaces_around_it_is_taken_and_a_url_is_refused_as_one(self):
        run = self.live_run(config_of())
        for address in (f" {run.grpc}", f"{run.grpc}/", f"\t{run.grpc}\r\n"):
            self.assert_ends(self.run_program("causewayctl", "status", f"--coordinator={address}"), DONE)
        for scheme in ("http", "https", "grpc"):
            for program, *command in (("causewayctl", "status"), ("causeway-worker", "--site=a")):
                self.assert_ends(self.run_program(program, *command, f"--coordinator={scheme}://{run.grpc}"), BAD_INPUT,
                                 f"--coordinator: expected HOST:PORT without {scheme}://, got '{scheme}://{run.grpc}'")
        self.assert_ends(self.coordinator("--http=http://127.0.0.1:0"), BAD_INPUT, "--http: expected HOST:PORT without http://")
        self.assert_ends(self.coordinator("--listen=::1:0"), BAD_INPUT, "--listen: expected an IPv6 address in brackets, [::1]:0")
        run.stop_coordinator()

    def test_plaintext_beyond_loopback_must_be_asked_for(self):
        far = "192.0.2.1:7077"  # an address for documentation; nothing is sent to it
        self.assert_ends(self.run_program("causeway-worker", "--site=a", f"--coordinator={far}"), BAD_INPUT, far,
                         "--insecure")
        self.assert_ends(self.run_program("causewayctl", "status", f"--coordinator={far}"), BAD_INPUT, far,
                         "--insecure")
        self.assert_ends(self.coordinator("--listen=0.0.0.0:0"), BAD_INPUT, "0.0.0.0:0", "--insecure")
        run = self.new_run(config_of())
        run.grpc = "0.0.0.0:0"
        run.start_coordinator("--insecure")
        run.stop_coordinator()

    def test_a_status_page_beyond_loopback_must_be_asked_for(self):
        self.assert_ends(self.coordinator("--http=0.0.0.0:0"), BAD_INPUT, "--http: 0.0.0.0:0 is not a loopback address",
                         "has no password", "--insecure_http")
        run = self.new_run(config_of())
        run.http = "0.0.0.0:0"
        run.start_coordinator("--insecure_http")
        run.stop_coordinator()


class AddressTest(BadInputTest):
    def test_a_port_or_a_host_that_is_no_coordinators_is_explained(self):
        run = self.live_run(config_of())
        flags = ("--site=a", "--connect_timeout_s=1", "--insecure")
        port = run.http.rsplit(":", 1)[1]
        for address, words in ((run.http, f"{port} is an HTTP port, as the status page's is (--http)"),
                               ("127.0.0.1:1", "no server listens there")):
            worker = self.run_program("causeway-worker", f"--coordinator={address}", *flags)
            self.assert_ends(worker, UNREACHABLE, words)
            self.assertNotIn("failed to connect to all addresses", worker.log())
        self.assert_ends(self.run_program("causewayctl", "status", "--coordinator=127.0.0.1:1"), UNREACHABLE,
                         "no server listens there")
        self.assert_ends(self.run_program("causewayctl", "status", "--coordinator=no-such-host.invalid:7077", "--insecure"),
                         UNREACHABLE, "no-such-host.invalid: no ")
        run.stop_coordinator()

    def test_an_export_to_a_folder_that_cannot_be_written_is_bad_input(self):
        run = self.live_run(config_of(run={"steps": 6}))
        run.start_worker("a")
        run.await_done()
        (self.folder / "file").write_text("")
        for path in (self.folder / "file" / "export", "/proc/export"):
            program = self.run_program("causewayctl", "export", f"--coordinator={run.grpc}", f"--out={path}")
            self.assert_ends(program, BAD_INPUT, f"--out: cannot create folder {path}: ")
        run.stop_coordinator()


class PermissionTest(BadInputTest):
    """A user may not look into a folder."""

    def setUp(self):
        self.locked = self.folder / "locked"
        (self.locked / "inside").mkdir(parents=True)
        (self.locked / "inside" / "config.json").write_text("{}")
        root = os.geteuid() == 0
        self.locked.chmod(0o700 if root else 0)
        self.addCleanup(self.locked.chmod, 0o700)
        self.folder.chmod(0o755)
        self.options = {"preexec_fn": self.become_nobody} if root else {}
        if root and not others_reach_programs():
            self.skipTest("another user may not start the programs here")

    @staticmethod
    def become_nobody():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    def assert_denied(self, code, program, *arguments):
        label = f"{program}-{len(self.programs)}"
        (self.folder / f"{label}.log").touch()
        ended = self.program(self.folder, label, program, *arguments, **self.options)
        self.assert_ends(ended, code, "Permission denied", str(self.locked))

    def test_each_program_says_permission_denied_and_where(self):
        run = self.live_run(config_of())
        config = self.folder / "readable.yaml"
        config.write_text(json.dumps(config_of()))
        inside = self.locked / "inside"
        for state in (self.locked, inside, inside / "new"):
            self.assert_denied(BAD_INPUT, "causeway-coordinator", f"--config={config}", f"--state_dir={state}",
                               "--listen=127.0.0.1:0", "--http=127.0.0.1:0")
        worker = ("causeway-worker", f"--coordinator={run.grpc}", "--site=a")
        for checkpoints in (self.locked, inside, inside / "new"):
            self.assert_denied(BAD_INPUT, *worker, f"--checkpoint_dir={checkpoints}")
        self.assert_denied(BAD_INPUT, *worker, f"--export_dir={inside}")
        self.assert_denied(FAILED, "causewayctl", "init", f"--config={inside}/run.yaml", "--placement=sites",
                           "--shards_at=a=127.0.0.1:1,b=127.0.0.1:2", f"--out={self.folder}/out")
        self.assert_denied(FAILED, "causewayctl", "config-check", f"{inside}/run.yaml")


class StateDirTest(BadInputTest):
    def test_a_state_dir_that_cannot_be_made(self):
        (self.folder / "file").write_text("")
        self.assert_ends(self.coordinator(f"--state_dir={self.folder}/file/state"), BAD_INPUT, "--state_dir",
                         f"{self.folder}/file/state")

    def test_a_state_dir_that_is_a_file_or_holds_a_foreign_one(self):
        (self.folder / "file").write_text("")
        self.assert_ends(self.coordinator(f"--state_dir={self.folder}/file"), BAD_INPUT,
                         f"--state_dir: expected a folder, got the file {self.folder}/file")
        (self.folder / "mine").mkdir()
        (self.folder / "mine" / "log").write_text("a line of another program")
        self.assert_ends(self.coordinator(f"--state_dir={self.folder}/mine"), BAD_INPUT,
                         f"--state_dir: {self.folder}/mine holds a file named log, which no coordinator has written",
                         "Move that file away, or name another folder; nothing was changed")
        self.assertEqual(["log"], [path.name for path in (self.folder / "mine").iterdir()])

    def test_a_second_coordinator_on_a_state_dir(self):
        run = self.live_run(config_of())
        self.assert_ends(self.coordinator(f"--state_dir={run.state_dir}"), BAD_INPUT, "another coordinator runs on",
                         str(run.state_dir))
        run.stop_coordinator()

    def test_a_taken_port(self):
        run = self.live_run(config_of())
        for flag, address in (("--listen", run.grpc), ("--http", run.http), ("--health", run.grpc)):
            second = self.coordinator(f"{flag}={address}")
            self.assert_ends(second, BAD_INPUT, f"{flag}: {address} is taken by another program: ss -ltnp")
            self.assertNotIn("gRPC", second.log())

    def test_the_state_of_another_run(self):
        config = config_of(run={"steps": 6})
        run = self.live_run(config)
        run.start_worker("a")
        run.await_done()
        run.stop_coordinator()
        others = [({"run_id": "other"}, "e2e", "other"), ({"seed": 5}, "seed", "5"),
                  ({"sync": {"first_send": "offset"}}, "sync.first_send", "offset"),
                  ({"eval": {"held_out": 0.5}}, "eval.held_out", "got 0.5")]
        for change, *messages in others:
            self.assert_ends(self.coordinator(f"--state_dir={run.state_dir}", config=merged(config, change)),
                             BAD_INPUT, "holds the state of another run", *messages)
        run.start_coordinator()  # its own run still does
        self.assertEqual(run.status()["state"], "done")
        run.stop_coordinator()

    def test_a_disk_that_is_full_ends_the_coordinator_and_loses_nothing_that_was_acknowledged(self):
        config = synthetic({"a": 0.5}, [[100_000]], model={"step_ms": 2})
        run = self.live_run(config)
        run.start_worker("a")
        run.await_rounds(2)
        run.stop_coordinator()

        def limit_files():  # 300 kB a file: the log fits, some rounds of 51 kB do, and then no more
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

        run.start_coordinator(preexec_fn=limit_files)
        self.assertEqual(run.coordinator.wait(), FAILED)
        self.assertIn("what was acknowledged is on the disk, unless a sync has failed", run.coordinator.log())
        run.start_coordinator()
        self.assertGreaterEqual(run.rounds(), 2)
        run.await_rounds(run.rounds() + 2)  # the site goes on

class ConnectionTest(BadInputTest):
    def test_an_absent_coordinator_is_waited_for_aloud(self):
        address = f"127.0.0.1:{free_port()}"
        patient = self.run_program("causeway-worker", "--site=a", f"--coordinator={address}")
        limited = self.run_program("causeway-worker", "--site=b", f"--coordinator={address}", "--connect_timeout_s=1")
        self.assert_ends(limited, UNREACHABLE, f"no coordinator at {address} within 1 s")
        eventually(lambda: patient.log().count("trying again in") >= 3, "three attempts")
        self.assertIn(f"no coordinator at {address}", patient.log())
        self.assertEqual(patient.terminate(), DONE)
        self.assert_ends(self.run_program("causewayctl", "status", f"--coordinator={address}"), UNREACHABLE, address)

    def test_a_coordinator_that_comes_late_is_found_at_the_next_attempt(self):
        run = self.new_run(config_of(run={"steps": 6}))
        run.grpc = f"127.0.0.1:{free_port()}"
        worker = run.start_worker("a")
        eventually(lambda: worker.log().count("trying again in") >= 4, "four attempts")
        run.start_coordinator()
        attempts = worker.log().count("trying again in")
        run.await_done()
        self.assertLessEqual(worker.log().count("trying again in"), attempts + 1)

    def test_a_port_where_something_else_listens(self):
        run = self.live_run(config_of())
        worker = self.run_program("causeway-worker", "--site=a", f"--coordinator={run.http}", "--connect_timeout_s=1")
        self.assertIn(worker.wait(), (UNREACHABLE, REFUSED))
        self.assertIn(run.http, worker.log())

    def test_a_second_live_site_of_the_same_name(self):
        run = self.live_run(config_of(model={"step_ms": 5}))
        first = run.start_worker("a")
        run.await_rounds(1)
        second = self.run_program("causeway-worker", "--site=a", f"--coordinator={run.grpc}")
        self.assert_ends(second, REFUSED, "site a is in the run already and alive")
        run.await_rounds(run.rounds() + 1)  # the first does not notice
        self.assertEqual(first.terminate(), DONE)


class DataTest(BadInputTest):
    def test_data_that_is_missing_empty_or_too_small(self):
        run = self.live_run({"run_id": "e2e"})
        empty, tiny = self.folder / "empty", self.folder / "tiny"
        empty.write_text("")
        tiny.write_text("Too short to learn from.")
        for flags, message in [([], "--data"), (["--data=/no/such/text"], "/no/such/text"),
                               ([f"--data={empty}"], str(empty)), ([f"--data={tiny}"], str(tiny))]:
            worker = self.run_program("causeway-worker", "--site=a", f"--coordinator={run.grpc}", *flags)
            self.assert_ends(worker, BAD_INPUT, message)
        self.assertEqual(run.status()["sites"], [], "no site joined")

    def test_a_native_worker_has_no_external_model(self):
        run = self.live_run({"run_id": "e2e", "model": {"kind": "external"}})
        worker = self.run_program("causeway-worker", "--site=a", f"--coordinator={run.grpc}")
        self.assert_ends(worker, BAD_INPUT, "the sites bring this run's model: use the Python package or causeway.h")
        self.assertEqual(run.status()["sites"], [], "no site joined")
        plan = self.run_program("causewayctl", "plan", f"--config={run.config_path}", f"--coordinator={run.grpc}",
                                "--link_mbit=100", "--rtt_ms=10", "--step_ms=100", "--sites=2")
        self.assert_ends(plan, REFUSED, "the sites bring the model of run e2e, and none has joined yet")

    def test_shards_of_another_width_than_the_run_says(self):
        model = {"kind": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
                 "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 1000, "max_position_embeddings": 8}
        run = self.live_run({"run_id": "e2e", "model": model, "sync": {"num_fragments": 1}})
        shard = self.folder / "train.bin"
        tokens = struct.pack("<4I", 0, 600, 7, 999) * 1024
        header = struct.pack("<256i", 20240801, 7, 5000, *[0] * 253)
        for contents, message in [(struct.pack("<4I", 0, 600, 70_000, 999) * 1024,
                                   "token 4: expected less than vocab_size 1000, got 4464 (the file looks like uint32: "
                                   "data.token_bytes: 4)"),
                                  (header + tokens, "expected 5000 tokens of 4 bytes, as its header says, got 16384 bytes")]:
            shard.write_bytes(contents)
            worker = self.run_program("causeway-worker", "--site=a", f"--coordinator={run.grpc}", f"--data={shard}")
            self.assert_ends(worker, BAD_INPUT, f"{shard}: {message}")
        self.assertEqual(run.status()["sites"], [], "no site joined")


class BadValueTest(BadInputTest):
    def test_a_gradient_that_is_not_a_number_ends_its_site_and_is_not_sent(self):
        sites = {"a": float("nan"), "b": 0.5, "c": -0.25}
        run = self.live_run(synthetic(sites, SHAPES, run={"steps": 30}))
        run.start_workers(*sites)
        self.assert_ends(run.workers.pop("a"), NON_FINITE, "gradient of t0 is nan at index 0 in step 1")
        run.await_done()
        bad = run.site("a")
        self.assertEqual((bad["state"], bad["contributions_sent"], bad["contributions_merged"]), ("gone", 0, 0))
        self.assertIn("t0", bad["reason"])
        self.assertEqual(run.rounds(), 5)
        alone = self.live_run(synthetic({"b": 0.5, "c": -0.25}, SHAPES, run={"steps": 30}))
        alone.start_workers("b", "c")
        alone.await_done()
        self.assert_same_bits(alone.export(), run.export(), "as if the site had never been there")


if __name__ == "__main__":
    unittest.main()
