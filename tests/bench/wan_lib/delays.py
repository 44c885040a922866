"""The choice of `fragment_sync_delay: auto` for the quickstart's run when a link of some rate is in between.

    dc1 causeway-coordinator ◄── its link, of the same rate as each site's ──► dc2 … dc4 causeway-worker on real text

The model trains for real, so a step takes what it takes on this machine with three sites beside each other.
"""

import pathlib
import string
import sys

from wan_lib import figures, network, run

DEPLOY = pathlib.Path(__file__).resolve().parents[3] / "deploy"
sys.path.insert(0, str(DEPLOY))
from quickstart_lib import corpus  # noqa: E402

SITES = figures.SITES[:3]
ROUNDS = 8
SYNC_EVERY, FRAGMENTS = 20, 4  # deploy/quickstart.yaml
LIMIT_S = 600


def write_config(path):
    template = string.Template((DEPLOY / "quickstart.yaml").read_text())
    text = template.substitute(run_id="delays", steps=ROUNDS * SYNC_EVERY, vocab_size=corpus.BYTE_VOCAB,
                               schedule="constant", sites=len(SITES), eval_every_rounds=0)
    fixed = "fragment_sync_delay: 1"
    if fixed not in text:
        raise RuntimeError(f"{DEPLOY / 'quickstart.yaml'}: expected {fixed}")
    path.write_text(text.replace(fixed, "fragment_sync_delay: auto"))


def measure(build, folder, rate_mbit, data):
    """A row: of all sites and fragments the delays that the last round's sends had, and what steps and updates took."""
    write_config(folder / "run.yaml")
    flags = ["--access=true", "--queue_ms=0"]
    with network.Network(build, 1 + len(SITES), rate_mbit, figures.RTT_MS, flags) as net:
        with run.Run(build, folder, net, SITES) as running:
            running.coordinator.await_address()
            running.start_workers(f"--data={data}")
            watch = run.Watch(running)
            watch.until_ended(LIMIT_S)
            end = net.report()
    sites = watch.status["sites"]
    delays = [fragment["fragment_sync_delay"] for site in sites for fragment in site["fragments"]]
    return {"rate_mbit": rate_mbit, "steps": ROUNDS * SYNC_EVERY, "delays": sorted(delays), "delay": max(delays),
            "step_s": max(site["compute_s"] / site["step"] for site in sites),
            "reasons": sorted({fragment["reason"] for site in sites for fragment in site["fragments"]}),
            **network.emulator_figures(watch.emulator, end)}
