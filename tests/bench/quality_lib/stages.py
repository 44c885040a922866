"""The runs of each stage, in their order. A stage looks at the rows that are there, so its list grows as they come: the
driver asks again after every run and takes the first that has neither been done nor begun.

    1  eta of each codec                            M = 2, seed 1
    2  four seeds at the best eta; feedback; equal bytes; what they are compared with. Feedback that loses 0.5 % with the
       first seed is not tried with the others
    3  the best settings of each codec              M = 4, seeds 1 and 2
"""

import math
import statistics

from .setups import BASE_H, DEFAULTS, codec_setup, group_key, setup

CODECS = ["float32", "int4", "rotated_lm2", "rotated_sign", "e3m0", "rotated_lm4", "sign"]
ETAS = [0.7, 0.5, 0.9, 0.3]
SEEDS = [1, 2, 3, 4]
SEEDS_OF_FOUR_SITES = [1, 2]
FEEDBACK_CODECS = ["rotated_lm2", "rotated_sign", "sign"]
FEEDBACK = [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.9, 0.9), (0.5, 0.5), (0.9, 0.0), (0.0, 0.9), (0.5, 0.0),
            (0.0, 0.5)]
HOPELESS = 1.005  # three times the spread between runs that should be alike
# At H the bytes of int4, or half of them. A quarter of 30 is rounded up: never more bytes than int4.
SHORTER = [("rotated_sign", 15), ("rotated_sign", 8), ("rotated_lm2", 15)]


def diloco(**given):
    """Plain DiLoCo: everything at once, and everybody waits for it."""
    return setup(P=1, tau=0, alpha=0.0, **given)


def best(rows, varied, **fixed):
    """The settings in `varied` of the group of rows with the lowest mean loss, among those with `fixed` settings and
    the defaults elsewhere; None where there is none. Only groups with the most seeds compete."""
    wanted = {name: value for name, value in setup(**fixed).items() if name not in varied and name != "seed"}
    groups = {}
    for row in rows:
        if row["loss"] is not None and all(row[name] == value for name, value in wanted.items()):
            groups.setdefault(group_key(row), []).append(row)
    if not groups:
        return None
    most = max(len(group) for group in groups.values())
    winner = min((group for group in groups.values() if len(group) == most),
                 key=lambda group: statistics.mean(row["loss"] for row in group))
    return {name: winner[0][name] for name in varied}


def best_eta(rows, codec, **given):
    """With the first stage's feedback."""
    fixed = {name: value for name, value in codec_setup(codec, **given).items() if value != DEFAULTS[name]}
    fixed.pop("seed", None)
    return best(rows, ["eta"], **fixed)


def best_settings(rows, codec, **given):
    """The best eta and feedback of a codec."""
    return best(rows, ["eta", "beta_up", "beta_down"], up=codec, down=codec, **given)


def of_seed_one(rows):
    return [row for row in rows if row["seed"] == 1]


def stage_1(rows):
    del rows
    return [codec_setup(codec, eta=eta) for eta in ETAS for codec in CODECS]


def stage_2(rows):
    first = of_seed_one(rows)
    runs = []
    for seed in SEEDS:
        runs += [codec_setup(codec, seed=seed, **chosen) for codec in CODECS if (chosen := best_eta(first, codec))]
        runs += [setup(method="data_parallel", seed=seed), diloco(seed=seed)]
        runs += shorter(first, seed)
        feedback = [codec_setup(codec, up_beta, down_beta, seed=seed, **chosen) for up_beta, down_beta in FEEDBACK
                    for codec in FEEDBACK_CODECS if (chosen := best_eta(first, codec))]
        runs += feedback if seed == 1 else [run for run in feedback if promising(run, first)]
    return runs


def promising(run, first):
    """Whether the settings did not lose by so much with the first seed that others cannot make it good."""
    same_codec = [row for row in first if row["up"] == run["up"] and row["H"] == run["H"]]
    losses = {group_key(row): row["loss"] for row in same_codec if row["loss"] is not None}
    return losses.get(group_key(run), math.inf) <= HOPELESS * min(losses.values(), default=math.inf)


def shorter(first, seed):
    """The same steps in more and cheaper rounds: eta with the first seed, the best of them with all."""
    runs = []
    for codec, sync_every in SHORTER:
        sweep = [codec_setup(codec, H=sync_every, eta=eta) for eta in ETAS]
        done = {group_key(row) for row in first}
        if seed == 1:
            runs += sweep
        elif all(group_key(run) in done for run in sweep):
            chosen = best_eta(first, codec, H=sync_every)
            runs += [codec_setup(codec, H=sync_every, seed=seed, **chosen)] if chosen else []
    return runs


def stage_3(rows):
    runs = []
    for seed in SEEDS_OF_FOUR_SITES:
        for codec in CODECS:
            chosen = best_settings([row for row in rows if row["H"] == BASE_H], codec)
            runs += [codec_setup(codec, sites=4, seed=seed, **chosen)] if chosen else []
        runs += [setup(method="data_parallel", sites=4, seed=seed), diloco(sites=4, seed=seed)]
    return runs


STAGES = {1: stage_1, 2: stage_2, 3: stage_3}
