"""Pipelines as they run, against the simulator's prediction.

    timed    four devices, eight micro-batches, operations that wait instead of computing, with messages
             that take no time and a quarter of a forward: measured ÷ simulated makespan of every schedule, goal 1.05;
             how much of the copies' gradients is hidden; interleaved ÷ 1F1B; a searched schedule and the best generator
             with one copy of the weights
    stages   two ranks, real processes over Gloo, one core each, train a model of 13 M parameters: the step that costs of
             `causeway-worker --profile_stages` predict ÷ the one that `--trace` measured; goal within 10 %. Both ranks'
             cores are busy while the costs are taken, as in a step. Both are drawn, to pipeline_NAME.svg
"""

import json
import os
import re
import subprocess

from bench_lib import processes
from bench_lib.figures import goal

FILE, MINUTES = "pipelines", 6
MOST_TIMED, MOST_OFF = 1.05, 0.10
DEVICES, MICRO_BATCHES, STEPS = 2, 8, 40
SCHEDULES = ["gpipe", "1f1b", "interleaved", "breadth_first", "zb_h1", "zb_v", "chimera", "dualpipe", "bitpipe", "zeropp"]
ONE_COPY = {"gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"}
OPTIONS = {"part": (["timed", "stages"], "some of these"), "schedules": (SCHEDULES, "of the part stages")}
QUICK = {"part": ["stages"], "schedules": ["1f1b"]}


RUN = {"run_id": "pipelines", "run": {"steps": STEPS},
       "model": {"kind": "llama", "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8,
                 "num_attention_heads": 6, "num_key_value_heads": 6, "vocab_size": 256, "max_position_embeddings": 128},
       "inner": {"batch_size": MICRO_BATCHES, "micro_batches": MICRO_BATCHES}, "sync": {"sync_every": STEPS, "num_fragments": 1},
       "membership": {"min_sites": 1}, "eval": {"every_rounds": 0}, "checkpoint": {"every_rounds": 0}}


def profile(bench, config):
    """Costs, with all cores as busy as in a step."""
    command = [bench.build / "causeway-worker", f"--profile_stages={config}"]
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    beside = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env) for _ in range(DEVICES - 1)]
    costs = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env).stdout
    for process in beside:
        process.wait()
    return costs


def cases(options):
    parts = {"timed": [{"part": "generators"}], "stages": [{"part": "stages", "schedule": name} for name in options.schedules]}
    return [case for part in options.part for case in parts[part]]


def measure(case, bench):
    return measure_stages(case["schedule"], bench) if case["part"] == "stages" else bench.rows_of("pipelines")


def measure_stages(name, bench):
    folder = bench.folder
    config, costs, schedule, trace = (folder / file for file in ("run.yaml", "costs.json", "schedule", "trace.json"))
    config.write_text(json.dumps(RUN))
    bench.kept.setdefault("costs", None)
    bench.kept["costs"] = bench.kept["costs"] or profile(bench, config)  # one for all schedules
    costs.write_bytes(bench.kept["costs"])
    plan = [bench.build / "causewayctl", "plan", "pipeline", f"--costs={costs}", "--latency_us=100", "--bandwidth_gbit=20"]
    subprocess.run([*plan, f"--schedule={name}", f"--devices={DEVICES}", f"--micro_batches={MICRO_BATCHES}",
                    f"--out={schedule}"], check=True, stdout=subprocess.DEVNULL)
    coordinator = processes.Coordinator(bench.build, config, folder, folder / "coordinator.log")
    coordinator.await_address()
    subprocess.run([bench.build / "causeway-worker", f"--coordinator={coordinator.address}", "--site=site",
                    f"--data={processes.corpus()}", f"--pipeline={schedule}", f"--nproc={DEVICES}", f"--trace={trace}"],
                   check=True, stdout=bench.log, stderr=bench.log)
    coordinator.stop()
    said = subprocess.run([*plan, f"--check={schedule}", f"--trace={trace}",
                           f"--svg={bench.options.out / f'pipeline_{name}.svg'}"], check=True, stdout=subprocess.PIPE,
                          text=True).stdout
    predicted, measured = (float(number) for number in re.findall(r"([0-9.]+) ms", said))
    return {"devices": DEVICES, "micro_batches": MICRO_BATCHES, "predicted_ms": predicted, "measured_ms": measured,
            "ratio": predicted / measured}


def report_timed(rows):
    for row in rows:
        print(f"latency {row['latency_forwards']:.2f}, {row['schedule']}: {1e3 * row['measured_s']:.1f} ms, "
              f"measured ÷ simulated {row['ratio']:.3f}")
    print(f"measured ÷ simulated at most: {goal(max(row['ratio'] for row in rows), most=MOST_TIMED)}")
    for latency in sorted({row["latency_forwards"] for row in rows}):
        times = {key: {row["schedule"]: row[key] for row in rows if row["latency_forwards"] == latency}
                 for key in ("measured_s", "simulated_s")}
        for name in ("dualpipe", "bitpipe"):
            hidden = {key: (of[f"{name} late"] - of[f"{name} eager"]) / (of[f"{name} late"] - of[f"{name} none"])
                      for key, of in times.items()}
            print(f"latency {latency:.2f}, {name}: of the gradients' exchange {100 * hidden['measured_s']:.0f} % are hidden "
                  f"where they are eager, {100 * hidden['simulated_s']:.0f} % simulated")
        ratio = {key: of["interleaved"] / of["1f1b"] for key, of in times.items()}
        best = {key: min(of[name] for name in ONE_COPY) for key, of in times.items()}
        print(f"latency {latency:.2f}: interleaved ÷ 1F1B {ratio['measured_s']:.3f}, {ratio['simulated_s']:.3f} simulated; "
              f"searched ÷ best generator {times['measured_s']['searched V'] / best['measured_s']:.3f}, "
              f"{times['simulated_s']['searched V'] / best['simulated_s']:.3f} simulated")


def report(rows, bench):
    if timed := [row for row in rows if row["part"] != "stages"]:
        report_timed(timed)
    for row in rows:
        if row["part"] == "stages":
            print(f"{row['schedule']}: {row['predicted_ms']:.1f} ms predicted, {row['measured_ms']:.1f} ms measured, ratio "
                  f"{goal(row['ratio'], within=MOST_OFF)}")
