"""The cost of copies elsewhere to the run that they are of, and how soon one is a run again.

    pace     rounds a second of a run that makes a set after each snapshot, with rclone to another folder of this disk, ÷
             those of the same run without, by turns of --seconds; and what rclone sent ÷ what snapshots and payloads
             in the bucket have
    restore  the coordinator is killed and its directory deleted; seconds from its start on an empty one, with
             --restore_from, until it listens, and until the next merged round

Three sites of the built-in synthetic trainer, int4 both ways with feedback, four fragments.
"""

import json
import pathlib
import shutil
import statistics
import sys
import time

from bench_lib.figures import goal

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
import test_copies  # noqa: E402
from harness import eventually, merged  # noqa: E402

FILE, MINUTES = "copies", 8
OPTIONS = {"what": (["pace", "restore"], "to measure"), "parameters": ([83_333_333], "of the model; 12 bytes of state each"),
           "step_ms": (1000, "of an inner step, of which ten are between two rounds of a fragment"),
           "seconds": (80, "of a turn of pace"), "turns": (2, "of pace")}
QUICK = {"what": ["restore"], "parameters": [1_000_000], "step_ms": 1, "seconds": 2, "turns": 1}


def turn(run, seconds):
    """Rounds of all fragments a second, from the end of one to that of another: few of them end in a turn."""
    def next_end():
        rounds = sum(fragment["version"] for fragment in run.status()["fragments"])
        more = eventually(lambda: (now := sum(fragment["version"] for fragment in run.status()["fragments"])) > rounds and now, "a round")
        return more, time.monotonic()

    rounds, begun = next_end()
    time.sleep(seconds)
    more, ended = next_end()
    return (more - rounds) / (ended - begun)


class Bench(test_copies.CopiesTest):
    def begin(self, parameters, step_ms):
        config = test_copies.config_of(run={"steps": 10_000_000}, checkpoint={"every_rounds": 4})
        config["model"]["tensors"] = [{"name": f"t{i}", "shape": [parameters // 4], "init": 0.25} for i in range(4)]
        self.bucket, self.rclone_log = self.folder / "bucket", self.folder / "rclone.log"
        hook = " && ".join(f'rclone copy "$CAUSEWAY_COPY_DIR/{part}" {self.bucket}/{part} -v --use-json-log --stats=1h '
                           f"2>>{self.rclone_log}" for part in ("files", "sets"))
        run = self.start(hook, merged(config, {"model": {"step_ms": step_ms}}))
        self.flags = [f"--copy_to={self.copies}", f"--copy_hook={hook}"]
        eventually(lambda: run.rounds() >= 5 and run.status()["copies"]["sent"], "rounds, and a hook", 400)
        return run

    def sent(self):
        lines = [json.loads(line) for line in self.rclone_log.read_text().splitlines() if line.startswith("{")]
        return sum(line["stats"]["bytes"] for line in lines if "stats" in line)

    def again(self, run, *flags):
        run.stop_coordinator()
        run.start_coordinator(*flags)
        rounds = run.rounds()
        eventually(lambda: run.rounds() > rounds, "rounds go on", 300)

    def pace(self, case, options):
        run, ratios, alone_per_s, sets = self.begin(case["parameters"], case["step_ms"]), [], [], []
        for _ in range(options.turns):
            before = len(self.sets(self.bucket))
            with_them = turn(run, options.seconds)
            sets.append(len(self.sets(self.bucket)) - before)
            figures = run.status()["copies"]
            self.again(run)
            alone = turn(run, options.seconds)
            self.again(run, *self.flags)
            ratios.append(with_them / alone)
            alone_per_s.append(alone)
        run.stop_all()
        payload = sum(path.stat().st_size for path in (self.bucket / "files").iterdir() if path.suffix != ".log")
        return {"ratio": statistics.median(ratios), "alone_per_s": statistics.median(alone_per_s), "sent_ratio": self.sent() / payload,
                "sent": self.sent(), "sets": sets, "set_bytes": figures["bytes"], "made_s": figures["seconds"], "hook_s": figures["hook_s"]}

    def restore(self, case, options):
        run = self.begin(case["parameters"], case["step_ms"])
        run.coordinator.kill()
        shutil.rmtree(run.state_dir)
        begun = time.monotonic()
        run.start_coordinator(f"--restore_from={self.bucket}")
        eventually(lambda: run.status() and run.status().get("fragments"), "it leads", 120)
        leads = time.monotonic()
        versions = {fragment["id"]: fragment["version"] for fragment in run.status()["fragments"]}
        eventually(lambda: any(now["version"] > versions[now["id"]] for now in run.status()["fragments"]), "a round", 120)
        return {"leads_s": leads - begun, "next_round_s": time.monotonic() - begun}


def cases(options):
    return [{"what": what, "parameters": parameters, "step_ms": options.step_ms} for parameters in options.parameters for what in options.what]


def measure(case, bench):
    return bench.in_test(lambda test: getattr(test, case["what"])(case, bench.options), Bench)


def report(rows, bench):
    for row in rows:
        of = f"{row['parameters'] * 12 / 1e9:.2f} GB of state, {row['what']}"
        if row["what"] == "pace":
            print(f"{of}: rounds with copies ÷ without {goal(row['ratio'], least=0.97)}, of {row['alone_per_s']:.2f} a second; sent ÷ "
                  f"new {goal(row['sent_ratio'], most=1.05)}, {row['sent'] / 1e9:.2f} GB in sets {row['sets']}; a set takes "
                  f"{row['made_s']:.2f} s and its hook {row['hook_s']:.1f} s")
        else:
            print(f"{of}: it leads after {row['leads_s']:.2f} s, the next round after {row['next_round_s']:.2f} s")
