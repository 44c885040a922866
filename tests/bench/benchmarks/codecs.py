"""Speed of the codecs on this machine against its memory, and which goals that reaches.

Runs the program codec_bench codec by codec and appends each row to codecs.jsonl in the folder --out as soon as it
is measured, with the processor's model and the load average, since other work on the machine slows whatever computes and
leaves what waits for memory as it is. --resume keeps the rows that are there. At the end all rows are held against the
goals.
"""

import collections

FILE, MINUTES = "codecs", 25
ALL_CODECS = ["float32", "bfloat16", "int8", "int4", "e3m0", "sign", "rotated_sign", "rotated_lm2", "rotated_lm4"]
OPTIONS = {"sizes": ([16, 256], "MB of float32"), "threads": ([1, 2], "that share them"), "codecs": (ALL_CODECS, "some of these"),
           "targets": ([], "of scalar, avx2, avx512; default: all that there are")}
QUICK = {"sizes": [1], "threads": [1], "codecs": ["int4"]}


# Least ratio to the ceiling of one thread, by operation and codec.
ROTATED = ("rotated_sign", "rotated_lm4")
GOALS = {("encode_feedback", codec): 0.90 for codec in ("int8", "int4", "e3m0", "sign")}
GOALS.update({("encode_feedback", "rotated_sign"): 0.85, ("encode_feedback", "rotated_lm4"): 0.75})
for plain in ("int8", "int4", "e3m0", "sign"):
    GOALS.update({("decode", plain): 1.0, ("decode_add", plain): 0.90})
for rotated in ROTATED:
    GOALS.update({("decode", rotated): 0.80, ("decode_add", rotated): 0.70})
ENCODE_SIGN_GOALS = {16: 0.95, 256: 0.75}
SCALING_GOAL = 0.9  # of the ceiling's own scaling from one thread to two
SCALING_CODECS = tuple(codec for operation, codec in GOALS if operation == "decode")


def goal_of(row):
    if row["threads"] != 1 or row["target"] == "scalar":
        return None
    if row["operation"] == "encode":
        return ENCODE_SIGN_GOALS.get(row["megabytes"]) if row["codec"] == "sign" else None
    return GOALS.get((row["operation"], row["codec"]))


def cases(options):
    return [{"codec": codec} for codec in options.codecs]


def measure(case, bench):
    options = bench.options
    return bench.rows_of("codecs", codecs=[case["codec"]], sizes=options.sizes, threads=options.threads, targets=options.targets)


def report(rows, bench):
    missed, held = [], 0
    by_threads = collections.defaultdict(dict)
    for row in rows:
        if row["codec"] in SCALING_CODECS and row["target"] != "scalar":
            by_threads[row["megabytes"], row["target"], row["codec"], row["operation"]][row["threads"]] = row["ratio"]
        if (least := goal_of(row)) is None:
            continue
        held += 1
        if row["ratio"] < least:
            missed.append(f"{row['megabytes']} MB {row['target']} {row['codec']} {row['operation']}: {row['ratio']:.2f}, "
                          f"goal {least:.2f}")
    for key, ratios in by_threads.items():
        if 1 not in ratios or 2 not in ratios:
            continue
        held += 1
        # Both ratios are to the ceiling on as many threads, so their quotient is scaling over the ceiling's scaling.
        if ratios[2] / ratios[1] < SCALING_GOAL:
            missed.append(f"{' '.join(map(str, key))}: two threads scale {ratios[2] / ratios[1]:.2f} of the ceiling's "
                          f"scaling, goal {SCALING_GOAL}")
    print(f"{held - len(missed)} of {held} goals reached" + "".join(f"\n  missed: {text}" for text in missed))
