"""Statuses and timelines for looking at the page without a coordinator: one that a coordinator gave (recorded_status.json),
with the fields that a run of some hours would have, in the situations that the page has to make plain.

    healthy   three sites train and contribute
    dead      us is gone: two sites train on
    alone     eu has fallen silent, too: asia trains alone, and alarms tell
    paused    an operator has paused the run
    before    no site has joined yet
    finished  all three sites have done their steps and left
    old       as recorded: a coordinator that knows none of the newer fields
    large     64 sites, 64 fragments
    markup    a site whose name, reasons and alarms are HTML
"""

import copy
import json
import math
import pathlib

RECORDED = json.loads((pathlib.Path(__file__).parent / "recorded_status.json").read_text())
SITES = ["asia", "eu", "us"]
PERIOD_MS = 30_000  # from one round of a fragment to the next
MARKUP = "<img src=x onerror=\"document.title='injected'\">"


def history(now_ms, points, start, end, wobble):
    """Losses that fall, over two hours."""
    span = 2 * 3600 * 1000
    return [[now_ms - span + span * i // (points - 1),
             end + (start - end) * math.exp(-4 * i / points) + wobble * math.sin(i * 2.1) * math.sin(i * 0.7)]
            for i in range(points)]


def healthy(now_ms):
    status = copy.deepcopy(RECORDED)
    parameters = 1_304_000_000
    losses = history(now_ms, 60, 5.546, 2.31, 0.01)
    status.update({
        "version": "0.1.0", "unix_ms": now_ms, "mode": "quorum", "contributing_sites": 3, "min_quorum": 2, "alarms": [],
        "parameters": parameters, "uptime_s": 7260.0, "float32_every_step_bytes": 0,
        "settings": [{"revision": 1, "unix_ms": now_ms - 3_000_000, "step": 5120, "versions": [128] * 4,
                      "changes": "inner.lr: 0.003 → 0.0001, outer.lr: 0.7 → 0.5"},
                     {"revision": 2, "unix_ms": now_ms - 600_000, "step": 9040, "versions": [226] * 4,
                      "changes": "run.steps: 20000 → 30000"}],
        "disk": {"free_bytes": 412_000_000_000, "reserved_bytes": 1_073_741_824}, "certificate": None, "details": "full",
        "config": {**RECORDED.get("config", {}), "run": {"steps": 30_000}, "membership": {"min_sites": 3}},
        "eval_loss": {"start": 5.546, "latest": losses[-1][1], "versions": [240, 240, 240, 239],
                      "history": [{"unix_ms": t, "version": 4 * i, "loss": loss} for i, (t, loss) in enumerate(losses)]},
    })
    status["codec"] |= {"up": "rotated_lm2", "auto_up": True, "reason_up":
                        "rotated_lm2: 40.8 MB a round need 12.4 s of 30 s on the slowest link (asia, 3.3 MB/s); "
                        "rotated_lm4 would need 24.7 s, and is taken up to 19.5 s"}
    for fragment, share in zip(status["fragments"], (0.4, 0.3, 0.2, 0.1)):
        fragment.update(parameters=int(share * parameters), version=240, state="idle", reason="", contributors=[])
    status["fragments"][2].update(state="open", reason="1 of 2 for a quorum; waiting for asia, us", contributors=["eu"])
    for i, site in enumerate(status["sites"]):
        complete_site(site, i, now_ms, status)
    status["float32_every_step_bytes"] = 8 * parameters * sum(site["step"] for site in status["sites"])
    return status


def complete_site(site, i, now_ms, status):
    beat = 1 + 0.2 * math.sin(now_ms / 3000 + i)
    site.update({
        "reason": "", "step": 9640 + i, "tokens": 316_000_000 + 40_000 * i, "tokens_per_s": 43_900.0 - 700 * i,
        "loss": 2.35 + 0.02 * i, "wall_s": 7200.0, "compute_s": 7190.0 - 40 * i, "utilization": 0.998 - 0.006 * i,
        "stall_s": [0.0, 0.0, 38.4][i], "slack_s": [4.2, 6.1, 0.08][i], "up_bytes": 81_600_000_000 + i * 30_000_000,
        "down_bytes": 162_400_000_000, "up_bytes_per_s": 3.1e6 * beat, "down_bytes_per_s": 11.4e6 * beat,
        "up_mean_bytes_per_s": 11.3e6, "down_mean_bytes_per_s": 22.5e6, "up_peak_bytes_per_s": 3.4e7,
        "down_peak_bytes_per_s": 6.1e7, "contributing": True, "contributing_reason": "in all open rounds",
        "last_merged": {"fragment": i, "version": 240, "unix_ms": now_ms - 2500 * (i + 1)}, "missed": None, "staleness": 0,
        "contributions_sent": 962, "contributions_merged": 960, "residual_norm": [8.41, 8.39, 9.02][i],
        "loss_history": history(now_ms, 60, 5.6 + 0.1 * i, 2.35 + 0.02 * i, 0.06), "in_flight": [["2:sending"], [], []][i],
        "digests": {str(f["id"]): {"version": f["version"], "digest": f["digest"]} for f in status["fragments"]},
    })


def dead(now_ms):
    status = healthy(now_ms)
    for site in status["sites"][:2]:
        site["merged_weight"] = 0.36
    status["sites"][2].update(
        state="gone", reason="not heard of for 10000 ms (lease_ms)", contributing=False, contributing_reason="it is gone",
        up_bytes_per_s=0.0, down_bytes_per_s=0.0, in_flight=[], merged_weight=0.28,
        last_merged={"fragment": 1, "version": 229, "unix_ms": now_ms - 318_000},
        missed={"fragment": 2, "version": 230, "reason": "the quorum and the grace of 500 ms were over"})
    status["contributing_sites"] = 2
    status["fragments"][2].update(reason="1 of 2 for a quorum; waiting for asia")
    status["alarms"] = [
        {"name": "site_gone", "severity": "warning", "site": "us", "fragment": None,
         "text": "us is gone: not heard of for 10000 ms (lease_ms); no round waits for it", "since_unix_ms": now_ms - 308_000}]
    return status


def alone(now_ms):
    status = dead(now_ms)
    status["contributing_sites"] = 1
    status["sites"][1].update(
        contributing=False, lease_s_left=6.4, reason="its control stream broke; expected back within the lease",
        contributing_reason="silent; rounds wait for it until its lease ends",
        missed={"fragment": 3, "version": 240, "reason": "the quorum and the grace of 500 ms were over"})
    status["fragments"][2].update(reason="1 of 2 for a quorum; waiting for eu", contributors=["asia"])
    status["alarms"] += [
        {"name": "site_alone", "severity": "critical", "site": "asia", "fragment": None,
         "text": "only asia trains, of 3 sites that have been in the run", "since_unix_ms": now_ms - 41_000},
        {"name": "site_silent", "severity": "warning", "site": "eu", "fragment": None,
         "text": "not heard of for 3.6 s; its lease ends in 6.4 s", "since_unix_ms": now_ms - 3600},
        {"name": "residual_growing", "severity": "warning", "site": "asia", "fragment": None,
         "text": "the residual norm is 17.1, 8.3 ten rounds ago", "since_unix_ms": now_ms - 90_000}]
    return status


def paused(now_ms):
    status = healthy(now_ms)
    status.update(state="paused", reason="paused by an operator", alarms=[
        {"name": "run_paused", "severity": "warning", "site": None, "fragment": None, "text": "paused by an operator",
         "since_unix_ms": now_ms - 125_000}])
    for fragment in status["fragments"]:
        if fragment["contributors"]:
            fragment["reason"] = "paused by an operator"
    for site in status["sites"]:
        site.update(up_bytes_per_s=0.0, down_bytes_per_s=0.0, in_flight=[])
        site["last_merged"]["unix_ms"] -= 125_000
    return status


def before(now_ms):
    status = healthy(now_ms)
    status.update(state="waiting", reason="0 of 3 sites are ready (min_sites)", sites=[], fragments=[], contributing_sites=0,
                  parameters=0, float32_every_step_bytes=0,
                  eval_loss={"start": None, "latest": None, "versions": [], "history": []})
    return status


def finished(now_ms):
    status = healthy(now_ms)
    status.update(state="done", reason="all sites have finished", contributing_sites=0)
    status["config"] = {**status["config"], "run": {"steps": 9640}}
    for site in status["sites"]:
        site.update(state="gone", finished=True, reason="all steps are done", contributing=False, contributing_reason="it is gone",
                    step=9640, up_bytes_per_s=0.0, down_bytes_per_s=0.0, in_flight=[])
    for fragment in status["fragments"]:
        fragment.update(state="idle", reason="", contributors=[])
    return status


def old(now_ms):
    return copy.deepcopy(RECORDED)


def markup(now_ms):
    status = alone(now_ms)
    status["run_id"] = status["reason"] = MARKUP
    status["sites"][0].update(name=MARKUP, reason=MARKUP, contributing_reason=MARKUP, in_flight=[MARKUP], state=MARKUP)
    status["fragments"][2].update(reason=MARKUP, contributors=[MARKUP], digest=MARKUP)
    status["codec"].update(up=MARKUP, reason_up=MARKUP)
    status["alarms"][0].update(name=MARKUP, site=MARKUP, text=MARKUP)
    return status


def large(now_ms):
    status = healthy(now_ms)
    fragments = [{**status["fragments"][0], "id": i, "parameters": status["parameters"] // 64} for i in range(64)]
    sites = [{**status["sites"][i % 3], "name": f"site-{i:02}"} for i in range(64)]
    status.update(sites=sites, fragments=fragments, contributing_sites=64)
    return status


SCENARIOS = {run.__name__: run for run in (healthy, dead, alone, paused, before, finished, old, markup, large)}


def one_round(fragment, version, first, reached, take=True):
    """A round that begins at `first`; only what has happened up to `reached` is known."""
    arrived = [[i, first + 900 * i, first + 900 * i + 9000 + 2200 * ((i + version) % 3)] for i in range(3)]
    decided = max(end for _, _, end in arrived) + (500 if version % 3 == 0 else 40)
    merged = decided + 700
    taken = [[i, merged + 3000 + 1300 * i] for i in range(3)] if take else []
    seen = lambda time: time if time <= reached else None
    return {"fragment": fragment, "version": version, "first_unix_ms": first,
            "arrived": [[i, begun, seen(end)] for i, begun, end in arrived if begun <= reached],
            "decided_unix_ms": seen(decided), "merged_unix_ms": seen(merged),
            "taken": [one for one in taken if one[1] <= reached],
            "reason": "quorum of 2, and the grace of 500 ms is over" if version % 3 == 0 else "all 3 active sites have contributed"
                      if decided <= reached else "1 of 2 for a quorum; waiting for asia, us"}


def timeline(scenario, now_ms):
    if scenario in ("before", "old"):
        return {"unix_ms": now_ms, "sites": [], "rounds": []}
    if scenario == "large":
        return {"unix_ms": now_ms, "sites": [f"site-{i:02}" for i in range(64)],
                "rounds": [{**one_round(0, 237 + n, now_ms - PERIOD_MS * (4 - n) + 400 * i, now_ms), "fragment": i}
                           for i in range(64) for n in range(4)]}
    rounds = []
    reached = now_ms - 125_000 if scenario == "paused" else now_ms
    for fragment in range(4):
        newest = (now_ms - 3_000 * fragment) // PERIOD_MS
        for number in range(newest - 15, newest + 1):
            first = number * PERIOD_MS + 7000 * fragment
            if first <= reached:
                rounds.append(one_round(fragment, 240 - newest + number, first, reached))
    rounds.sort(key=lambda one: one["first_unix_ms"])
    if scenario in ("dead", "alone"):
        for one in rounds:
            if one["first_unix_ms"] > now_ms - 320_000:
                one["arrived"] = [each for each in one["arrived"] if each[0] != 2]
                one["taken"] = [each for each in one["taken"] if each[0] != 2]
    names = [MARKUP if scenario == "markup" and name == "asia" else name for name in SITES]
    return {"unix_ms": now_ms, "sites": names, "rounds": rounds}
