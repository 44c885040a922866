"""Tries a script as several sites of one run on this machine: python -m causeway.try --sites=2 -- script.py ARGUMENTS

    coordinator (a run.yaml of its own) ◄── script.py as site eu, script.py as site us, … : what they print, with the site's
    name in front ─► their end ─► the model in a folder

`{site}` in the script's arguments becomes the site's name, so that each may have data of its own. Ctrl-C ends all.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any

NAMES = ("eu", "us", "asia", "africa", "oceania", "arctic", "antarctica", "moon")
START_S, LEAVE_S, BAR_S = 30.0, 20.0, 5.0
RUN = """# The run of python -m causeway.try; deploy/run.yaml explains every key.
run_id: try
run: {{steps: {steps}}}
model: {{kind: external}}
sync: {{sync_every: {sync_every}, num_fragments: 1}}
codec: {{up: int4, down: int4}}
membership: {{min_sites: {sites}}}
"""


def program(name: str) -> str:
    """The package's, or that of CAUSEWAY_BIN_DIR, or of the PATH."""
    places = [os.environ.get("CAUSEWAY_BIN_DIR"), str(pathlib.Path(__file__).parent / "bin")]
    found = next((path for place in places if place and os.access(path := os.path.join(place, name), os.X_OK)), None)
    found = found or shutil.which(name)
    if found is None:
        sys.exit(f"causeway.try: expected the program {name}, found none: the package that pip installs has it, and "
                 "CAUSEWAY_BIN_DIR names a folder that does")
    return found


def start(name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    """In a group of its own, so that Ctrl-C reaches it once, from here; its lines are printed."""
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True, env={**os.environ, **environment})
    assert started.stdout is not None
    threading.Thread(target=_print, args=(name, started.stdout), daemon=True).start()
    return started


def _print(name: str, output: IO[bytes]) -> None:
    """Line by line; of a bar that rewrites its line the state now and then."""
    pending, shown = b"", time.monotonic()
    while chunk := output.read1(1 << 16):  # type: ignore[attr-defined]
        *lines, pending = re.split(rb"(?<=[\r\n])", pending + chunk)
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if line.endswith(b"\r") and time.monotonic() - shown < BAR_S:
                continue
            if line.endswith(b"\r"):
                shown = time.monotonic()
            if text and not re.match(r"\S+ \S+Z info ", text):  # the coordinator's: the page shows that better
                say(f"{name:>11} │ {text}")
    if pending.strip():
        say(f"{name:>11} │ {pending.decode(errors='replace').rstrip()}")


def say(text: str) -> None:
    """Where nothing reads any longer (| head), the sites go on all the same."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")


def addresses(folder: pathlib.Path, coordinator: subprocess.Popen[bytes]) -> dict[str, Any]:
    until = time.monotonic() + START_S
    while time.monotonic() < until and coordinator.poll() is None:
        if (folder / "addresses.json").exists():
            read: dict[str, Any] = json.loads((folder / "addresses.json").read_text())
            return read
        time.sleep(0.05)
    coordinator.kill()
    sys.exit("causeway.try: the coordinator did not start; its lines above say why")


def parsed(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m causeway.try", description=(__doc__ or "").split("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--sites", type=int, default=2, metavar="N", help=f"how many, up to {len(NAMES)}")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="run.steps: inner steps of each site")
    parser.add_argument("--sync_every", type=int, default=20, metavar="H", help="inner steps between two syncs")
    parser.add_argument("--config", metavar="FILE", help="a run.yaml in place of these two")
    parser.add_argument("--out", metavar="DIR", help="where state and model go; a new temporary folder without")
    parser.add_argument("script", nargs="+", metavar="-- script.py", help="and its arguments, of which {site} becomes "
                        "the site's name; or -m MODULE, or another program, such as torchrun, and its arguments")
    given = parser.parse_args(arguments)
    if not 1 <= given.sites <= len(NAMES):
        parser.error(f"--sites: expected 1 to {len(NAMES)}, got {given.sites}")
    if given.steps < 1 or given.sync_every < 1:
        parser.error("--steps, --sync_every: expected 1 or more")
    if given.script[0] != "-m" and not os.path.isfile(given.script[0]) and not shutil.which(given.script[0]):
        parser.error(f"expected a script, got {given.script[0]}, which does not exist")
    if given.out and os.path.exists(os.path.join(given.out, "state")):
        parser.error(f"--out: expected a folder without a run, got {given.out}, which has one")
    return given, given.script


def interpreter(script: str) -> list[str]:
    """Python, but for programs."""
    runs = not script.endswith(".py") and (os.access(script, os.X_OK) if os.path.isfile(script) else script != "-m")
    return [] if runs else [sys.executable]


def main(arguments: list[str]) -> int:
    given, script = parsed(arguments)
    coordinator_program, ctl = program("causeway-coordinator"), program("causewayctl")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    out = pathlib.Path(given.out or tempfile.mkdtemp(prefix="causeway-try-"))
    out.mkdir(parents=True, exist_ok=True)
    config = pathlib.Path(given.config or out / "run.yaml")
    if not given.config:
        config.write_text(RUN.format(**vars(given)))
    coordinator = start("coordinator", [coordinator_program, f"--config={config}", f"--state_dir={out / 'state'}",
                                        "--listen=127.0.0.1:0", "--http=127.0.0.1:0"])
    sites: dict[str, subprocess.Popen[bytes]] = {}
    try:
        at = addresses(out / "state", coordinator)
        say(f"page: http://{at['http']}/   run.yaml and state: {out}   Ctrl-C ends all")
        for name in NAMES[:given.sites]:
            command = [*interpreter(script[0]), *(each.replace("{site}", name) for each in script)]
            threads = str(max(1, (os.cpu_count() or 1) // given.sites))
            sites[name] = start(name, command, CAUSEWAY_COORDINATOR=at["grpc"], CAUSEWAY_SITE=name, CAUSEWAY_TRY="1", PYTHONUNBUFFERED="1",
                                OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", threads))
        code = await_all(sites)
        if code == 0:
            exported = subprocess.run([ctl, "export", f"--coordinator={at['grpc']}", f"--out={out / 'model'}"],
                                      stdout=subprocess.DEVNULL, check=False)
            code = exported.returncode
            say(f"the model: {out / 'model'}" if code == 0 else
                "no model: expected a script that enters causeway.DiLoCo or causeway.Site, or a framework's callback")
        return code
    except KeyboardInterrupt:
        say("ends all")
        return 130
    finally:
        end([*sites.values()], signal.SIGINT)
        end([coordinator], signal.SIGTERM)


def await_all(sites: dict[str, subprocess.Popen[bytes]]) -> int:
    """Until all have ended, or one has failed: its code, as a shell has it."""
    while True:
        codes = {name: site.poll() for name, site in sites.items()}
        for name, code in codes.items():
            if code:
                others = ": the others are ended, too" if None in codes.values() else ""
                say(f"site {name} has ended with {code}{others}")
                return code if code > 0 else 128 - code
        if None not in codes.values():
            return 0
        time.sleep(0.2)


def end(processes: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """Asks, waits, kills."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)
    until = time.monotonic() + LEAVE_S
    for process in processes:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # asked again: at once
            until = 0
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with contextlib.suppress(ProcessLookupError):  # what it has started, and left
            os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
