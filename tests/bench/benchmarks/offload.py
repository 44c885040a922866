"""The optimizer's update: AdamW on the CPU against the memory's bandwidth, and the interleaved update on a GPU.

CPU rows, one thread and two: AdamW's bytes a second as a share of b = a + b in place over as much memory (goal 0.85 of 28 bytes a
parameter, and of 30 with the bfloat16 copy), and of as many streams with nothing to compute, which shows what is limiting; the copy
in the same pass against one of its own (goal 1.13 times as fast); denormal state and gradients against ordinary ones (goal 0.97);
two threads against one. Each ratio is the median of turns in which all were timed one after the other.

GPU rows: the bus each way and both at once; the update for each k, gradients flushed during backward or in the update, its time
against the plan's prediction (goal: within 10 %), the bits against the CPU's; k = 1 against k = 2 (goal 1.15 where the bus is fast
against DRAM). A row that cannot be measured here says why.

GPU rows need the programs of the cuda preset: --build=build/cuda.
"""

import os

from bench_lib.figures import goal

FILE, MINUTES = "offload", 8
OPTIONS = {"rows": ([""], "what their names begin with: bandwidth,update/k=1"), "values": (100_000_000, "of the CPU rows"),
           "pairs": (9, "of the CPU rows"), "threads": (2, "of the CPU rows, at most; GPU rows have all cores"),
           "parameters": (1_000_000_000, "of the GPU rows: 32 bytes each of host memory"),
           "subgroup": (100_000_000, "parameters"), "steps": (8, "of an update")}
QUICK = {"rows": ["bandwidth"], "values": 1_000_000, "pairs": 2, "threads": 1}
BANDWIDTH_GOAL = 0.85
SAME_PASS_GOAL = 1.13
TINY_GOAL = 0.97
PREDICTION_GOAL = 0.10
STREAMING_GOAL = 1.15
DEVICE_KS = [1, 2, 3, 4, 0]  # 0: all on the CPU


def planned_rows(options):
    """Name → settings of the program."""
    cpu = {"values": options.values, "pairs": options.pairs}
    rows = {}
    for threads in range(1, options.threads + 1):
        for gradients in ("float32", "bfloat16"):
            rows[f"bandwidth/{gradients}/{threads}"] = {
                "row": "bandwidth", "threads": threads, "bfloat16_gradients": gradients == "bfloat16", **cpu}
        rows[f"tiny/{threads}"] = {"row": "tiny", "threads": threads, **cpu}
    if options.threads > 1:
        rows[f"threads/{options.threads}"] = {"row": "threads", "threads": options.threads, **cpu}
    gpu = {"parameters": options.parameters, "subgroup": options.subgroup, "steps": options.steps}
    rows["bus"] = {"row": "bus"}
    for k in DEVICE_KS:
        for during in (True, False):
            name = f"update/k={k or 'cpu'}/flush={'backward' if during else 'update'}"
            rows[name] = {"row": "update", "k": k, "flush_during_backward": during, **gpu}
    return rows


def describe(row):
    kind = row["row"].split("/")[0]
    if "skipped" in row:
        return f"not measured: {row['skipped']}"
    if kind == "bandwidth":
        text = (f"{row['step_gb_per_s']:.1f} GB/s, {goal(row['of_add'], least=BANDWIDTH_GOAL)} of b = a + b at "
                f"{row['add_gb_per_s']:.1f}; with the copy {goal(row['with_copy_of_add'], least=BANDWIDTH_GOAL)}; copy in "
                f"the same pass {goal(row['same_pass_gain'], least=SAME_PASS_GOAL)} times as fast")
        if "of_streams" in row:
            text += f"; {row['of_streams']:.2f} of as many streams at {row['streams_gb_per_s']:.1f}"
        return text
    if kind == "tiny":
        return (f"denormal gradients: {goal(row['tiny'], least=TINY_GOAL)} of the ordinary speed; the first step on a denormal "
                f"state, too: {goal(row['tiny_first_step'], least=TINY_GOAL)}")
    if kind == "threads":
        return f"{row['scaling']:.2f} times one thread's speed"
    if kind == "bus":
        return (f"{row['device']}: {row['to_device_gb_per_s']:.1f} GB/s to it, {row['to_host_gb_per_s']:.1f} from it, both at once "
                f"{row['both_gb_per_s']:.1f}: {row['overlap']:.2f} of 2 at the same time")
    return (f"{row['update_s']:.3f} s, predicted ÷ measured "
            f"{goal(row['predicted_of_measured'], within=PREDICTION_GOAL)}, "
            f"{row['to_device_gb_per_s']:.1f} GB/s to the device and {row['to_host_gb_per_s']:.1f} back; planned k: {row['planned_k']}; "
            f"bits {'equal the CPU' if row['bits_equal_to_cpu'] else 'DIFFER from the CPU'}’s")


def compare(rows):
    """Figures that compare rows."""
    times = {row["row"]: row for row in rows if "update_s" in row}
    one, two = times.get("update/k=1/flush=backward"), times.get("update/k=2/flush=backward")
    if one and two:
        gain = two["update_s"] / one["update_s"]
        fast_bus = 12 / one["bus_to_device_gb_per_s"] <= 26 / one["dram_gb_per_s"]
        print(f"k=1 is {gain:.2f} times as fast as k=2; the bus is {'fast' if fast_bus else 'slow'} against DRAM"
              + (f", {goal(gain, least=STREAMING_GOAL)}" if fast_bus else ", so there is no goal"))
    during_backward = [row for name, row in times.items() if name.endswith("flush=backward")]
    for planned in during_backward:
        chosen = times.get(f"update/k={planned['planned_k']}/flush=backward")
        if chosen:  # the plan is made anew for each row
            best = min(row["update_s"] for row in during_backward)
            print(f"planned k={planned['planned_k']}: {chosen['update_s'] / best:.3f} of the best measured k's time (goal 1.03)")
            break
    for k in ("1", "2", "3", "4", "cpu"):
        during, inside = times.get(f"update/k={k}/flush=backward"), times.get(f"update/k={k}/flush=update")
        if during and inside:
            print(f"k={k}: a flush during backward makes the update {inside['update_s'] / during['update_s']:.2f} times as fast")


def cases(options):
    return [{"row": name} for name in planned_rows(options) if name.startswith(tuple(options.rows))]


def measure(case, bench):
    row = bench.rows_of("offload", **planned_rows(bench.options)[case["row"]])[0]
    if row.get("bits_equal_to_cpu") is False:
        raise RuntimeError(f"bits differ from the CPU's: {row}")
    return row | {"cores": os.cpu_count()}


def report(rows, bench):
    for row in rows:
        print(f"{row['row']:28} {describe(row)}")
    compare(rows)
