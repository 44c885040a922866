"""server::Merge of one fragment against a copy of the same memory.

On one core, then on two, in turns. Contributions from four sites are decoded and added, the mean is encoded for the way
back with feedback, the outer step taken and the digest made; the ceiling is a memcpy of 12 bytes a value, which moves the
24 bytes that W, v and the residual take in and out. Each ratio is the median of pairs timed one after the other;
contributions and the update come on top and count against the merge. Goals on one core: int4 0.70, rotated_sign 0.50; on
two, the merge gains at least 0.9 of what the copy gains from the second core. Also how early the first chunk of the update
leaves, as a share of the merge's time.
"""

from bench_lib.figures import goal

FILE, MINUTES = "coordinator_merge", 1
OPTIONS = {"codecs": (["int4", "rotated_sign", "sign", "float32"], "of the way up"), "sites": (4, "that contribute"),
           "values": (1 << 24, "of the fragment"), "pairs": (15, "copy and merge"), "threads": (2, "at most"),
           "radial": (False, "merge radial_directional instead of average"), "feedback": (1.0, "of the way back")}
QUICK = {"codecs": ["int4"], "values": 1 << 18, "pairs": 2}
GOALS = {"int4": 0.70, "rotated_sign": 0.50}
SCALING_GOAL = 0.9
# From this size on glibc copies past the caches: a whole copy, and also the pieces of one on several threads, so that the
# ceiling is the same code with any number of them. By default pieces would be too small, and slower.
COPY_PAST_CACHES = f"glibc.cpu.x86_non_temporal_threshold={16 << 20}"


def cases(options):
    return [{"codec": codec} for codec in options.codecs]


def measure(case, bench):
    parameters = {name: getattr(bench.options, name) for name in ("sites", "values", "pairs", "threads", "radial", "feedback")}
    return bench.rows_of("merge", codec=case["codec"], environment={"GLIBC_TUNABLES": COPY_PAST_CACHES}, **parameters)


def report(rows, bench):
    for row in rows:
        one = row["threads"] == 1
        text = (f"{row['ratio']:.2f}" if not one or row["codec"] not in GOALS else
                goal(row["ratio"], least=GOALS[row["codec"]]))
        more = "" if one else (f"; {row['scaling']:.2f} times one thread's speed, the copy {row['copy_scaling']:.2f} times: "
                               f"{goal(row['scaling_ratio'], least=SCALING_GOAL)}")
        print(f"{row['codec']:14} {row['threads']} threads: of a copy at {row['copy_gigabytes_per_s']:.1f} GB/s {text}; "
              f"first chunk after {row['first_chunk_share']:.2f} of the merge{more}")
