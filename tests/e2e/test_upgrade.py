"""Messages and files of an earlier version's sites and coordinator are understood by today's programs."""

import json
import pathlib
import shutil
import tarfile

from harness import BIN_DIR, DONE, EndToEndTest, read_safetensors

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
SESSIONS = sorted(GOLDEN.glob("session-*.tar.xz"))
CHECKPOINTS = sorted(GOLDEN.glob("checkpoint-*.tar.xz"))


class UpgradeTest(EndToEndTest):
    def unpack(self, session, state):
        """A run with the session's config and one of its state directories; the folder of the rest."""
        bundle = self.folder / session.stem
        if not bundle.exists():
            with tarfile.open(session) as archive:
                archive.extractall(bundle)
        run = self.new_run(json.loads((bundle / "run.yaml").read_text()))
        shutil.copytree(bundle / state, run.state_dir)
        return run, bundle

    def test_sessions_of_earlier_versions_replay_to_the_bytes_of_then(self):
        self.assertTrue(SESSIONS)
        for session in SESSIONS:
            run, bundle = self.unpack(session, "before")
            run.start_coordinator()
            tape = self.program(run.folder, "tape", BIN_DIR / "tests/e2e/session_tape", "replay", run.grpc,
                                str(bundle / "tape.jsonl"))
            self.assertEqual(tape.wait(), DONE, tape.log())
            values = run.export()
            run.stop_coordinator()
            after, _ = self.unpack(session, "after")
            after.start_coordinator()
            self.assert_same_bits(after.export(), values, f"{session.name}: export after the replay")
            after.stop_coordinator()
            self.assert_same_bits(after.snapshots(), run.snapshots(), f"{session.name}: W, v and the residual")

    def test_runs_of_earlier_versions_go_on_from_their_checkpoints_to_the_bits_of_then(self):
        self.assertTrue(CHECKPOINTS)
        for checkpoint in CHECKPOINTS:
            run, bundle = self.unpack(checkpoint, "state")
            run.start_coordinator()
            sites = sorted(folder.name for folder in (bundle / "checkpoints").iterdir())
            for site in sites:
                run.start_worker(site, f"--checkpoint_dir={bundle / 'checkpoints' / site}")
            run.await_done()
            for site in sites:
                said = run.workers[site].log()
                self.assertIn("goes on from the checkpoint after step", said)
                self.assertNotIn("starts from the anchor", said)
                self.assert_same_bits(read_safetensors(bundle / "end" / f"local-{site}.safetensors"), run.local(site),
                                      f"{checkpoint.name}: parameters of site {site}")
            self.assert_same_bits(read_safetensors(bundle / "end" / "model.safetensors"), run.export(),
                                  f"{checkpoint.name}: export")
            run.stop_coordinator()
            end = self.new_run(json.loads((bundle / "run.yaml").read_text()))
            shutil.copytree(bundle / "end" / "state", end.state_dir)
            self.assert_same_bits(end.snapshots(), run.snapshots(), f"{checkpoint.name}: W, v and the residual")

    def replay_changed(self, choose, change):
        """Replays with the bytes of one line changed, the last that choose(method, line) takes; what the tape says."""
        run, bundle = self.unpack(SESSIONS[0], "before")
        lines = [json.loads(line) for line in (bundle / "tape.jsonl").read_text().splitlines()]
        methods = {line["call"]: line["open"].rpartition("/")[2] for line in lines if "open" in line}
        at = max(i for i, line in enumerate(lines) if choose(methods[line["call"]], line))
        key = "sent" if "sent" in lines[at] else "received"
        lines[at][key] = change(lines[at][key])
        path = self.folder / "changed.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        run.start_coordinator()
        tape = self.program(run.folder, "tape", BIN_DIR / "tests/e2e/session_tape", "replay", run.grpc, str(path))
        self.assertEqual(tape.wait(), 1)
        return at + 1, tape.log()

    def test_a_replay_that_differs_by_a_bit_is_noticed(self):
        at, said = self.replay_changed(lambda method, line: method == "Download" and len(line.get("received", "")) > 500,
                                       lambda text: text[:-1] + f"{int(text[-1], 16) ^ 1:x}")
        self.assertIn(f"changed.jsonl:{at}: expected", said)

    def test_a_site_of_another_protocol_is_refused_with_the_version_to_use(self):
        context = "08011203653265"  # protocol 1, run e2e
        _, said = self.replay_changed(lambda method, line: method == "Control" and context in line.get("sent", ""),
                                      lambda text: text.replace(context, "0807" + context[4:], 1))
        got = bytes.fromhex(said.rpartition("got ")[2].strip()).decode(errors="replace")
        self.assertRegex(got, r"expected protocol 1, got 7; this coordinator is Causeway \d+\.\d+\.\d+, use programs")
