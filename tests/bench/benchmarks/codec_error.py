"""The codecs' errors: relative squared error once, and what is left of it after 50 rounds with error feedback.

    error         ‖x − x̂‖² / ‖x‖², median of 9 seeds, n = 2^22 (recorded gradients: all tensors of all files together)
    accumulated   50 rounds of s + noise_r, ‖noise_r‖ = ‖s‖, β = 1:  ‖Σ decoded − Σ inputs‖ / ‖Σ inputs‖

Distributions: Gauss, Laplace, Student's t with 3 degrees of freedom, and outer gradients of the quickstart's config, which
--record=DIR makes first (safetensors; 20 rounds of each fragment). Bits count scales, padding and chunk headers.
"""

import pathlib
import string

from bench_lib import processes
from bench_lib.figures import print_columns
from quickstart_lib import corpus

FILE, MINUTES = "codec_error", 15
OPTIONS = {"record": (None, "a folder for outer gradients; default: without them"),
           "steps": (420, "of the run whose gradients are recorded")}
QUICK = {"record": "/tmp/causeway-recorded", "steps": 63}


def record(bench, folder):
    text = processes.corpus()
    template = string.Template((processes.ROOT / "deploy" / "quickstart.yaml").read_text())
    config = bench.folder / "run.yaml"
    config.write_text(template.substitute(run_id="record", steps=bench.options.steps, vocab_size=corpus.vocab_size(text),
                                          schedule="cosine", sites=3, eval_every_rounds=5))
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    bench.rows_of("quality", config=config, data=text, record=folder, eval_windows=256, tail_rounds=1)


def cases(options):
    recorded = [{"distribution": "recorded"}] if options.record else []
    return recorded + ([] if options.quick else [{"distribution": "gauss"}])  # the first of all that are drawn


def measure(case, bench):
    recorded = case["distribution"] == "recorded"
    if recorded:
        record(bench, bench.options.record)
    return bench.rows_of("codec_error", gradients=bench.options.record if recorded else "")


def report(rows, bench):
    print_columns([["codec", "distribution", "bits a value", "with zstd", "error", "accumulated"]] + [
        [row["codec"], row["distribution"], f"{row['bits_per_value']:.2f}", f"{row['with_zstd']:.2f}", f"{row['error']:.5f}",
         f"{row['accumulated']:.4f}" if "accumulated" in row else "–"] for row in rows])
