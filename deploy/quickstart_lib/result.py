"""The results of a run: the figures of result.json, and the summary that a person reads."""

import textwrap

from quickstart_lib.table import duration, number, size

FLOAT_BYTES = 4
COLUMNS = 80
SITE_FIELDS = ("name", "steps", "tokens", "bytes_up", "bytes_down", "stall_s", "wall_s", "utilization", "loss",
               "contributions_sent", "contributions_merged")


def site_result(site):
    values = {**site, "steps": site["step"], "bytes_up": site["up_bytes"], "bytes_down": site["down_bytes"],
              "tokens": site["tokens"] or None}  # a site's script need not say how many
    return {field: values.get(field) for field in SITE_FIELDS}


def summarize(status, evaluation, training_s, export_dir):
    """The content of result.json, from the last status and what `causeway-worker --evaluate` or torch_evaluation.py
    printed. Unknown figures are None."""
    sites = [site_result(site) for site in status["sites"]]
    total = {field: sum(site[field] or 0 for site in sites)
             for field in ("steps", "tokens", "bytes_up", "bytes_down", "stall_s", "wall_s")}
    # A site that averages float32 gradients at every step sends all parameters and receives as many.
    float32_every_step = 2 * FLOAT_BYTES * status["parameters"] * total["steps"]
    crossed = total["bytes_up"] + total["bytes_down"]
    wall_s = total["wall_s"] or training_s * len(sites)
    return {
        "eval_loss_start": evaluation.get("eval_loss_start", status["eval_loss"]["start"]),
        "eval_loss_end": evaluation["eval_loss"],
        "bigram_loss": evaluation["bigram_loss"],
        "minutes": training_s / 60,
        "steps": max((site["steps"] for site in sites), default=0),
        "tokens": total["tokens"] or None,
        "bytes_up": total["bytes_up"],
        "bytes_down": total["bytes_down"],
        "bytes_float32_every_step": float32_every_step,
        "reduction": float32_every_step / crossed if crossed else None,
        "stall_share": total["stall_s"] / wall_s if wall_s else None,
        "export_dir": str(export_dir),
        "sample": evaluation["sample"],
        "config": status["config"],
        "sites": sites,
    }


def bigram_comparison(result):
    loss, bigram = result["eval_loss_end"], result["bigram_loss"]
    if loss is None or bigram is None:
        return ""
    difference = f"{abs(bigram - loss):.3f} {'below' if loss < bigram else 'above'}"
    return f"                    ({difference} a bigram table's {bigram:.3f})"


def factors(result):
    """The two factors of the reduction: rarer syncs, and fewer bits."""
    config = result["config"]
    every = config.get("sync", {}).get("sync_every")
    if result["reduction"] is None or not every:
        return ""
    up, down = config["codec"]["up"], config["codec"]["down"]
    bits = up if up == down else f"{up} up and {down} down"
    return (f"                    {every} times by syncing every {every} steps, "
            f"{result['reduction'] / every:.1f} times by {bits}")


def loads_in(result):
    if result["config"].get("model", {}).get("kind") == "external":
        return "loads in Hugging Face's AutoModelForCausalLM and AutoTokenizer"
    return "loads in Hugging Face's LlamaForCausalLM"


def printable(text):
    """A young model also writes control characters, which must not reach the terminal."""
    return "".join(character if character.isprintable() else "·" for character in text)


def summary_lines(result):
    stall = "–" if result["stall_share"] is None else f"{100 * result['stall_share']:.1f} % of the sites' time"
    reduction = "–" if result["reduction"] is None else f"{result['reduction']:.0f} times less"
    crossed = result["bytes_up"] + result["bytes_down"]
    tokens = "" if result["tokens"] is None else f" {result['tokens']} tokens in all,"
    lines = [
        f"trained             {len(result['sites'])} sites, {result['steps']} steps each,{tokens}"
        f" in {duration(60 * result['minutes'])}",
        f"held-out loss       {number(result['eval_loss_start'])} → {number(result['eval_loss_end'])} nats per token",
        bigram_comparison(result),
        f"crossed the links   {size(crossed)} ({size(result['bytes_up'])} up, {size(result['bytes_down'])} down)",
        f"float32 every step  {size(result['bytes_float32_every_step'])}: {reduction}",
        factors(result),
        f"waited for updates  {stall}",
        f"the model           {result['export_dir']}",
        f"                    safetensors; {loads_in(result)}",
    ]
    lines = [line for line in lines if line]
    if result["sample"]:
        lines += ["what it writes      (sampled, continues held-out text)"]
        for line in result["sample"].splitlines():
            lines += textwrap.wrap(printable(line), COLUMNS, initial_indent="    ", subsequent_indent="    ")
    return lines
