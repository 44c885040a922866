"""Records a session of two sites with a coordinator, for test_upgrade, by the programs in $CAUSEWAY_BIN_DIR:

    CAUSEWAY_BIN_DIR=<build of the version to record> SESSION_TAPE=<build>/tests/e2e/session_tape \
        /usr/bin/python3 -m unittest record_session

writes tests/golden/session-<version>.tar.xz: run.yaml, the state directory before the session (an empty run) and after
it, and tape.jsonl of what passed between.
"""

import os
import pathlib
import shutil
import subprocess
import tarfile

from harness import EndToEndTest, eventually, synthetic

VERSION = os.environ.get("SESSION_VERSION", "")
GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
ROUNDS = 4


class RecordSession(EndToEndTest):
    def test_record(self):
        config = synthetic({"a": 0.5, "b": -0.25}, [[2000], [300], [10, 10]],
                           model={"step_ms": 20, "gradient": {"kind": "noise"}, "init": "seeded"},
                           sync={"sync_every": 10, "num_fragments": 2, "fragment_sync_delay": 2},
                           codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1},
                           run={"steps": 10 * ROUNDS}, checkpoint={"every_rounds": 2, "keep": 2})
        run = self.new_run(config)
        run.start_coordinator()  # so that the state has a lineage
        run.stop_coordinator()
        bundle = self.folder / "session"
        shutil.copytree(run.state_dir, bundle / "before")
        run.start_coordinator()
        with subprocess.Popen([os.environ["SESSION_TAPE"], "record", run.grpc, bundle / "tape.jsonl"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as recorder:
            coordinator, run.grpc = run.grpc, recorder.stdout.readline().strip()
            run.start_workers("a")
            eventually(lambda: run.site("a"), "a has joined")  # first, so that it seeds
            run.start_workers("b")
            run.await_done()
            run.grpc = coordinator
            recorder.stdin.close()
        run.stop_coordinator()
        shutil.copytree(run.state_dir, bundle / "after")
        shutil.copy(run.config_path, bundle)
        with tarfile.open(GOLDEN / f"session-{VERSION}.tar.xz", "w:xz") as archive:
            for path in sorted(bundle.rglob("*")):
                member = archive.gettarinfo(path, path.relative_to(bundle))
                member.uid = member.gid = member.mtime = 0
                member.uname = member.gname = ""
                with open(path, "rb") if path.is_file() else open(os.devnull, "rb") as content:
                    archive.addfile(member, content if path.is_file() else None)
