"""Ranks that divide weights, gradients and optimizer state over link levels: seconds of a step and memory of a rank,
against the prediction of causewayctl plan partition.

Eight ranks are threads (partition_run); levels of two, two and two have links with rates of 10 : 3 : 1, slow beside the
processor. A step's prediction is the time without links, measured, and the bytes of each level at its rate. Goals:
three levels faster than ZeRO-3 by the predicted ratio, within 15 %; memory within 5 %. Then causewayctl plan what-if: a
trace at one setting predicts the step at five others, with other links and half the processor; goal within 10 %.
"""

from bench_lib import processes
from bench_lib.figures import goal

FILE, MINUTES = "partitions", 3
OPTIONS = {"mbyte_per_s": (60.0, "of the innermost level"), "steps": (3, "of each strategy, of which the fastest counts")}
QUICK = {"steps": 1, "mbyte_per_s": 600.0}
MOST_TIME_OFF, MOST_MEMORY_OFF, MOST_WHAT_IF_OFF = 0.15, 0.05, 0.10


def cases(options):
    return [{}]  # one for all rows


def measure(case, bench):
    return bench.rows_of("partitions", data=processes.corpus(), mbyte_per_s=bench.options.mbyte_per_s, steps=bench.options.steps)


def report(rows, bench):
    of = {row["strategy"]: row for row in rows if "strategy" in row}
    for name, row in of.items():
        print(f"{name}: a step {row['step_s']:.3f} s, predicted ÷ measured {row['predicted_s'] / row['step_s']:.3f}; "
              f"{row['state_bytes'] / 1e6:.1f} MB a rank for {row['parameters'] / 1e6:.1f} M parameters, predicted ÷ measured "
              f"{goal(row['predicted_state_bytes'] / row['state_bytes'], within=MOST_MEMORY_OFF)}")
    ratio = {key: of["ZeRO-3"][key] / of["three levels"][key] for key in ("step_s", "predicted_s")}
    print(f"three levels are {ratio['step_s']:.2f} times as fast as ZeRO-3, predicted ÷ that "
          f"{goal(ratio['predicted_s'] / ratio['step_s'], within=MOST_TIME_OFF)}")
    for row in rows:
        if "setting" in row:
            print(f"{row['setting']}: {row['measured_s']:.3f} s, {row['binds']} binds, predicted ÷ measured "
                  f"{goal(row['predicted_s'] / row['measured_s'], within=MOST_WHAT_IF_OFF)}")
