"""Records what test_upgrade holds later versions to, by the programs in $CAUSEWAY_BIN_DIR. In tests/e2e:

    CAUSEWAY_BIN_DIR=<build of the version to record> SESSION_TAPE=<build>/tests/e2e/session_tape \
        RECORD_AS=<version>-<format> /usr/bin/python3 -m unittest record_session

writes into tests/golden:

    session-<version>-<format>.tar.xz       run.yaml, the state directory before a session of two sites (an empty run)
                                            and after it, and tape.jsonl of what passed between
    checkpoint-<version>-<format>.tar.xz    run.yaml, the state directory and the sites' checkpoint directories of a
                                            moment in which all programs were killed, and the end of a run that was left
                                            alone: export, snapshots, and each site's own parameters
"""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tarfile
import time

from harness import EndToEndTest, eventually, synthetic

RECORD_AS = os.environ.get("RECORD_AS", "")
GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
ROUNDS = 4
ATTEMPTS = 50  # the moment that is looked for comes in one of a few


class Recorder(EndToEndTest):
    def setUp(self):
        self.assertTrue(RECORD_AS, "RECORD_AS: expected <version>-<format>, such as 0.1.0-format3, got nothing")
        self.bundle = self.folder / "bundle"
        self.bundle.mkdir()

    def archive(self, kind):
        with tarfile.open(GOLDEN / f"{kind}-{RECORD_AS}.tar.xz", "w:xz") as archive:
            for path in sorted(self.bundle.rglob("*")):
                member = archive.gettarinfo(path, path.relative_to(self.bundle))
                member.uid = member.gid = member.mtime = 0
                member.uname = member.gname = ""
                with open(path, "rb") if path.is_file() else open(os.devnull, "rb") as content:
                    archive.addfile(member, content if path.is_file() else None)


class RecordSession(Recorder):
    def test_record(self):
        config = synthetic({"a": 0.5, "b": -0.25}, [[2000], [300], [10, 10]],
                           model={"step_ms": 20, "gradient": {"kind": "noise"}, "init": "seeded"},
                           sync={"sync_every": 10, "num_fragments": 2, "fragment_sync_delay": 2},
                           codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1},
                           run={"steps": 10 * ROUNDS}, checkpoint={"every_rounds": 2, "keep": 2})
        run = self.new_run(config)
        run.start_coordinator()  # so that the state has a lineage
        run.control("set", "outer.lr=0.5")  # and a chain of settings
        run.stop_coordinator()
        shutil.copytree(run.state_dir, self.bundle / "before")
        run.start_coordinator()
        with subprocess.Popen([os.environ["SESSION_TAPE"], "record", run.grpc, self.bundle / "tape.jsonl"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as recorder:
            coordinator, run.grpc = run.grpc, recorder.stdout.readline().strip()
            run.start_workers("a")
            eventually(lambda: run.site("a"), "a has joined")  # first, so that it seeds
            run.start_workers("b")
            run.await_done()
            run.grpc = coordinator
            recorder.stdin.close()
        run.stop_coordinator()
        shutil.copytree(run.state_dir, self.bundle / "after")
        shutil.copy(run.config_path, self.bundle)
        self.archive("session")


class RecordCheckpoint(Recorder):
    """Small tensors, so that the archive stays small; error feedback, and delays that overlap between fragments."""

    SITES = {"a": 0.5, "b": -0.25}

    def start(self):
        config = synthetic(self.SITES, [[100], [2, 60], [257], [40]],
                           model={"step_ms": 20, "gradient": {"kind": "noise"}, "init": "seeded"},
                           inner={"optimizer": "adamw", "lr": 1e-3, "warmup_steps": 0, "schedule": "constant"},
                           sync={"sync_every": 9, "num_fragments": 3, "fragment_sync_delay": 5,
                                 "fragment_update_alpha": 0.5},
                           codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1},
                           run={"steps": 9 * 8}, checkpoint={"every_rounds": 2, "keep": 1})
        run = self.new_run(config)
        run.start_coordinator()
        run.control("set", "outer.lr=0.5", "inner.lr=0.002")
        run.start_worker("a", f"--checkpoint_dir={run.folder / 'checkpoints' / 'a'}")
        eventually(lambda: run.site("a"), "a has joined")  # first, so that it seeds
        run.start_worker("b", f"--checkpoint_dir={run.folder / 'checkpoints' / 'b'}")
        return run

    def kill_between_two_checkpoints(self):
        run = self.start()
        run.await_rounds(2)
        # In some attempts one site lags when the other makes its checkpoint, so that a contribution of that one waits.
        slow = run.workers["b"].process
        time.sleep(random.uniform(0, 0.4))
        slow.send_signal(signal.SIGSTOP)
        time.sleep(0.15)
        slow.send_signal(signal.SIGCONT)
        run.await_rounds(3)
        for program in [*run.workers.values(), run.coordinator]:
            program.process.kill()
        for program in [*run.workers.values(), run.coordinator]:
            program.kill()
        return run

    def is_worth_recording(self, run):
        """At one site or the other a contribution is unresolved, and an update that W took has not come to θ."""
        fragments = []
        for site in self.SITES:
            newest = sorted((run.folder / "checkpoints" / site).glob("[0-9]*/sync.json"))[-1:]
            fragments += [fragment for path in newest for fragment in json.loads(path.read_text())["fragments"]]
        return (any(fragment["sent"] for fragment in fragments)
                and any(fragment["version"] > fragment["applied"] for fragment in fragments))

    def test_record(self):
        undisturbed = self.start()
        undisturbed.await_done()
        undisturbed.export()
        undisturbed.stop_coordinator()
        end = self.bundle / "end"
        shutil.copytree(undisturbed.state_dir, end / "state")
        shutil.copy(undisturbed.folder / "export" / "model.safetensors", end)
        for site in self.SITES:
            shutil.copy(undisturbed.dump_path(site), end)
        runs = (self.kill_between_two_checkpoints() for _ in range(ATTEMPTS))
        run = next((run for run in runs if self.is_worth_recording(run)), None)
        self.assertIsNotNone(run, f"none of {ATTEMPTS} runs was killed at a moment that is worth recording")
        shutil.copytree(run.state_dir, self.bundle / "state")
        shutil.copytree(run.folder / "checkpoints", self.bundle / "checkpoints")
        shutil.copy(run.config_path, self.bundle)
        self.archive("checkpoint")
