"""A run: its settings under short names, the run.yaml they stand for, and the key that recognises it again."""

import json

# Streaming as in deploy/quickstart.yaml: same inner optimizer, P, tau and alpha. The model is small and the batch short
# so that a run of two sites takes about 20 s on one core: 0.26 M parameters; a step of 4 sequences of 64 bytes takes
# 7 ms. H is the papers' 30 and everything makes 40 rounds of it.
DEFAULTS = {
    "method": "sites",  # or data_parallel: one model, the batches of all sites at every step
    "sites": 2,
    "seed": 1,
    "up": "float32", "down": "float32", "beta_up": 0.0, "beta_down": 0.0,
    "exempt": "",  # kinds of tensors at bfloat16: "norm,embedding"
    "eta": 0.7, "mu": 0.9, "gain": 0,
    "H": 30, "P": 4, "tau": 1, "alpha": 0.5, "assignment": "strided",
    "steps": None,  # None: what 40 rounds of every fragment need at H = 30, whatever H is, so that the text is the same
    "lr": 3e-3, "warmup": 50, "batch": 4,
    "hidden": 80, "intermediate": 224, "layers": 3, "heads": 4, "sequence": 64,
    "eval_windows": 1024, "tail_rounds": 4,
    "curve_rounds": 0,
    "link_phase_rounds": 0,  # of up, down: auto; quality_run
}
ROUNDS = 40
BASE_H = 30


class SetupError(Exception):
    """Settings that make no run."""


def steps_for_rounds(rounds, sync_every, fragments, delay):
    """Inner steps after which every fragment has made that number of rounds (core/schedule.h)."""
    last_offset = max((p + 1) * sync_every // fragments % sync_every for p in range(fragments))
    return rounds * sync_every + last_offset + delay


def setup(**given):
    """All settings, the defaults where none is given."""
    unknown = sorted(set(given) - set(DEFAULTS))
    if unknown:
        raise SetupError(f"unknown settings {', '.join(unknown)}; expected some of {', '.join(DEFAULTS)}")
    settings = {**DEFAULTS, **given}
    if settings["method"] not in ("sites", "data_parallel"):
        raise SetupError(f"method: expected sites or data_parallel, got {settings['method']}")
    if settings["method"] == "data_parallel":  # these have no part in it
        settings.update(up="float32", down="float32", beta_up=0.0, beta_down=0.0, eta=1.0, mu=0.0)
    if settings["steps"] is None:
        settings["steps"] = steps_for_rounds(ROUNDS, BASE_H, settings["P"], settings["tau"])
    return settings


def bits(codec):
    """Bits of a value, without scales."""
    known = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4, "e3m0": 4, "rotated_lm4": 4, "rotated_lm2": 2,
             "rotated_sign": 1, "sign": 1}
    return known.get(codec, 1)


def key(settings):
    """Equal for rows and settings of the same run."""
    return json.dumps({name: settings[name] for name in sorted(DEFAULTS)})


def group_key(settings):
    """Equal for runs that differ in their seed alone."""
    return key({**settings, "seed": 0})


def run_yaml(settings):
    """The run.yaml that it stands for, as JSON, which is YAML."""
    nesterov = settings["mu"] != 0
    return json.dumps({
        "run_id": "quality",
        "seed": settings["seed"],
        "run": {"steps": settings["steps"]},
        "model": {"kind": "llama", "hidden_size": settings["hidden"], "intermediate_size": settings["intermediate"],
                  "num_hidden_layers": settings["layers"], "num_attention_heads": settings["heads"],
                  "num_key_value_heads": settings["heads"], "vocab_size": 256,
                  "max_position_embeddings": settings["sequence"]},
        "inner": {"lr": settings["lr"], "warmup_steps": settings["warmup"], "schedule": "cosine",
                  "batch_size": settings["batch"]},
        "data": {"mode": "shared"},
        "sync": {"sync_every": settings["H"], "num_fragments": settings["P"], "fragment_sync_delay": settings["tau"],
                 "fragment_update_alpha": settings["alpha"], "fragment_assignment": settings["assignment"]},
        "outer": {"optimizer": "nesterov" if nesterov else "sgd", "lr": settings["eta"], "codec_gain": bool(settings["gain"]),
                  **({"momentum": settings["mu"]} if nesterov else {})},
        "codec": {"up": settings["up"], "down": settings["down"], "feedback_up": settings["beta_up"],
                  "feedback_down": settings["beta_down"],
                  "exempt": [kind for kind in settings["exempt"].split(",") if kind]},
        "membership": {"min_sites": settings["sites"]},
    })


def label(settings):
    """A few words for a progress line."""
    if settings["method"] == "data_parallel":
        return f"data-parallel M={settings['sites']} seed={settings['seed']}"
    codec = settings["up"] if settings["up"] == settings["down"] else f"{settings['up']}/{settings['down']}"
    codec += f" but {settings['exempt']}" if settings["exempt"] else ""
    shape = f"H={settings['H']}" + ("" if settings["P"] > 1 else " P=1") + ("" if settings["tau"] else " tau=0")
    gain = " gain" if settings["gain"] else ""
    return (f"{codec}{gain} beta={settings['beta_up']:g}/{settings['beta_down']:g} eta={settings['eta']:g} mu={settings['mu']:g} {shape}"
            f" M={settings['sites']} seed={settings['seed']}")
