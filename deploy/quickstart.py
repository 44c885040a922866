"""deploy/quickstart: trains one model in several sites on this machine. See --help.

    check the input ─► packages, build, corpus ─► calibration (how many steps fit?) ─► run with a live table ─► export
        ─► evaluation ─► report.html, result.json

    <out>/2026-01-31-093000/      one run: run.yaml, state/, export/, calibration/, *.log, result.json,
                                  report.html; --torch: text/
    <out>/latest                  link to the newest run; <out>/result.json and report.html are links into it

Everything goes through what users have: the programs, run.yaml and GET /status, and with --torch examples/plain.py.
Nothing is ever deleted: a model may be the work of a day.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import signal
import string
import subprocess
import sys
import time

from quickstart_lib import corpus, result, table
from quickstart_lib.built_in import BuiltInTrainer, Pipeline, ScheduleError
from quickstart_lib.stack import PartFailed, Stack, failure
from quickstart_lib.torch_trainer import TorchError, TorchTrainer

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
BINARIES = BUILD / "release"
LIBRARY = BINARIES / "libcauseway.so"
MADE = {"causeway_shared": LIBRARY.name}  # the file of a target that has another name
PROGRAMS = ("causeway-coordinator", "causewayctl")  # the trainer has more
RUN_ID, CALIBRATION_ID = "quickstart", "calibration"
# Links in the folder of --out, and where they lead.
LINKS = {"latest": None, "result.json": "latest/result.json", "report.html": "latest/report.html"}

BUILD_CORE_MINUTES = 8  # of the programs, without a cache of objects: 4 minutes on two cores, measured
POLL_S = 0.5
CALIBRATION_POLL_S = 0.05
CALIBRATION_S = 6
CALIBRATION_STOP_GRACE_S = 5  # its results are not needed
EVALUATION_SHARE = 0.05  # of the time, which one built-in site spends on the eval loss; the calibration has none
MIN_ROUNDS = 3  # a shorter run would show nothing
RANKS = (1, 2, 4, 8)
DONE_TIMEOUT_S = 30  # for the coordinator to notice that all sites have left


class UsageError(Exception):
    """Nothing was started."""


class Stopped(Exception):
    """A signal asked us to end."""

    def __init__(self, number):
        super().__init__()
        self.exit_code = 128 + number


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="deploy/quickstart", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Trains one model in several sites, each a process on this machine, and reports what crossed "
        "between them. Ctrl-C stops everything.")
    parser.add_argument("--minutes", type=float, default=3, metavar="N", help="how long to train")
    parser.add_argument("--sites", type=int, default=3, metavar="N", help="how many sites")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="how many processes train in each site, which "
                        "crosses to the others as one (docs/ranks.md)")
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="of each site: cpu or cuda "
                        "(docs/gpu.md); not with --torch")
    parser.add_argument("--pipeline", metavar="FILE", help="the first site's ranks run this schedule of causewayctl plan "
                        "pipeline --out (docs/pipelines.md): the model has four layers, a step eight rows")
    parser.add_argument("--data", metavar="FILE", help="a text file, a .bin of uint16 tokens, a .npy, or a folder "
                        "of such shards, instead of Debian's English dictionary; with --torch only text")
    parser.add_argument("--torch", nargs="?", const="", metavar="PYTHON", help="train with examples/plain.py, PyTorch "
                        "and a Hugging Face Qwen2, instead of the built-in trainer; PYTHON is an interpreter that has "
                        "torch and transformers, else they are installed once in build/torch (downloads about 3 GB)")
    parser.add_argument("--out", default=str(BUILD / "quickstart"), metavar="DIR",
                        help="gets a folder for each run, with logs, state, the exported model, report.html and result.json; "
                        "DIR/latest is a link to the newest")
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= 24 * 60:
        parser.error(f"--minutes={options.minutes}: expected more than 0 and at most a day")
    if not 1 <= options.sites <= 64:
        parser.error(f"--sites={options.sites}: expected 1 to 64")
    if options.torch is not None and options.device != "auto":
        parser.error(f"--device={options.device}: expected none with --torch, whose script says where it trains")
    if options.torch is not None and options.pipeline:
        parser.error(f"--pipeline={options.pipeline}: expected none with --torch: it is the built-in trainer's")
    if options.ranks not in RANKS:
        parser.error(f"--ranks={options.ranks}: expected one of {', '.join(map(str, RANKS))}, which divide the batch")
    return options


def site_names(count):
    named = ["eu", "us", "asia"]
    return (named + [f"site{i}" for i in range(len(named) + 1, count + 1)])[:count]


def say(text):
    print(text, flush=True)


def locked(path):
    """An open file that holds the lock `path` until it is closed, or None if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def take_out_folder(out):
    """Makes `out` a folder for runs, which other quickstarts leave alone meanwhile; the lock that keeps it so."""
    lock_path = out / "quickstart.lock"
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out={out}: expected a folder, got a file")
    holds_something = out.exists() and any(out.iterdir())
    if holds_something and not lock_path.exists():
        raise UsageError(f"--out={out}: holds files that are not a quickstart's; name another folder")
    for name in LINKS:
        path = out / name
        if path.exists() and not path.is_symlink():
            raise UsageError(f"--out={out}: expected {name} to be a link, which this run would renew, got a file or "
                             "folder, as an earlier version wrote it; move it away, or name another folder")
    try:
        lock = locked(lock_path)
    except OSError as error:
        raise UsageError(f"--out={out}: cannot write there: {error.strerror}") from None
    if lock is None:
        raise UsageError(f"--out={out}: another quickstart is running in it; name another folder with --out")
    return lock


def new_run_folder(out):
    """A folder of its own for this run, named by the time, to which the links lead from now on."""
    name = first = time.strftime("%Y-%m-%d-%H%M%S")
    number = 1
    while (out / name).exists():  # the clock was set back, or two runs began within a second
        number += 1
        name = f"{first}-{number}"
    (out / name).mkdir()
    for link, target in LINKS.items():
        renewed = out / f"{link}.new"
        renewed.unlink(missing_ok=True)  # of a quickstart that was killed between this line and the last
        renewed.symlink_to(target or name)
        os.replace(renewed, out / link)
    return out / name


def install_packages():
    if subprocess.run([ROOT / "deploy" / "install_packages"], check=False).returncode != 0:
        raise UsageError("packages are missing, see above")


def build(targets):
    began = time.monotonic()
    first = not all((BINARIES / MADE.get(target, target)).exists() for target in targets)
    if first:
        say(f"Builds {', '.join(targets)}: {BUILD_CORE_MINUTES / (os.cpu_count() or 1):.0f} minutes or so "
            f"on {os.cpu_count()} cores, once. Training begins after that …")
    for command, shown in ((["cmake", "--preset", "release"], False),
                           (["cmake", "--build", "--preset", "release", "--target", *targets], True)):
        done = subprocess.run(command, cwd=ROOT, check=False, stdout=None if shown else subprocess.PIPE,
                              stderr=None if shown else subprocess.STDOUT)
        if done.returncode != 0:
            print(done.stdout.decode(errors="replace") if done.stdout else "", end="")
            raise PartFailed(f"the build failed, see above; the command was: {' '.join(command)}")
    if first:
        say(f"Built in {table.duration(time.monotonic() - began)}.")


def prepare(data, trainer):
    """Installs, builds, and finds the text unless there is one. One at a time, should two quickstarts start."""
    install_packages()
    lock = locked(BUILD / "build.lock")
    while lock is None:
        time.sleep(POLL_S)
        lock = locked(BUILD / "build.lock")
    with lock:
        trainer.install()
        build([*PROGRAMS, *trainer.targets])
        return data or corpus.definitions(BUILD / "corpus")


def run_yaml(trainer, run_id, steps, sites):
    template = string.Template((ROOT / "deploy" / trainer.template).read_text())
    return template.substitute(run_id=run_id, steps=steps, sites=len(sites), **trainer.values(run_id == CALIBRATION_ID))


def steps_per_second(samples):
    """From (time, step) of a site, one each time that its step changed: the first and the last are exact."""
    (first_time, first_step), (last_time, last_step) = samples[0], samples[-1]
    return (last_step - first_step) / (last_time - first_time)


def calibrate(out, trainer, sites):
    """Steps per second of a site while all are running, and the run's sync_every."""
    config = run_yaml(trainer, CALIBRATION_ID, 0, sites)
    samples = {}  # site ─► [(time, step)]
    start = time.monotonic()
    with Stack(BINARIES, out / "calibration", config, trainer.site, sites, trainer.processes(sites)) as stack:
        while not calibrated(samples, sites):
            time.sleep(CALIBRATION_POLL_S)
            status = stack.status()
            now = time.monotonic()
            for site in status["sites"] if status else []:
                seen = samples.setdefault(site["name"], [])
                if site["step"] > 0 and (not seen or seen[-1][1] != site["step"]):
                    seen.append((now, site["step"]))
            if now - start > trainer.calibration_timeout_s:
                raise failure("the calibration", f"saw no progress of all sites in {trainer.calibration_timeout_s} s",
                              stack.coordinator.log)
        sync_every = status["config"]["sync"]["sync_every"]
        stack.stop(CALIBRATION_STOP_GRACE_S)
    return min(map(steps_per_second, samples.values())), sync_every


def calibrated(samples, sites):
    return len(samples) == len(sites) and all(
        len(seen) >= 2 and seen[-1][0] - seen[0][0] >= CALIBRATION_S for seen in samples.values())


def steps_that_fit(rate, minutes, sync_every):
    steps = int(rate * minutes * 60 * (1 - EVALUATION_SHARE))
    return max(steps // sync_every, MIN_ROUNDS) * sync_every  # none is left out of a round


def watch(stack, trainer, total_steps):
    """Shows the run until it is done. Its last status, and how long it trained in seconds."""
    live = table.LiveTable(sys.stdout, total_steps)
    training_since = sites_ended_at = None
    while True:
        status = stack.status()
        now = time.monotonic()
        if status:
            if training_since is None and status["state"] in ("training", "done"):
                training_since = now
                trainer.training_begins(stack)
            training_s = now - training_since if training_since else 0.0
            live.show(status, training_s)
            if status["state"] == "done":
                return status, training_s
            if stack.sites_ended():
                sites_ended_at = sites_ended_at or now
                if now - sites_ended_at > DONE_TIMEOUT_S:
                    raise failure("coordinator", f"says '{status['state']}' ({status['reason']}), though all sites "
                                  "have ended", stack.coordinator.log)
        time.sleep(POLL_S)


def status_line(addresses, folder):
    return f"Status page: http://{addresses['http']}/\nLogs: {folder}/*.log"


def keep_what_there_is(stack, out, export_dir):
    """The work of a run that someone ends early; where that fails, what ended it is the news."""
    with contextlib.suppress(PartFailed):
        stack.export("export", export_dir)
        stack.report(out / "report.html", export_dir, "")
        say(f"\nEnded early. The model so far: {export_dir}\nreport: {out}/report.html")


def train(out, trainer, sites, steps):
    """The run, its export and evaluation: the content of result.json."""
    export_dir = out / "export"
    with Stack(BINARIES, out, run_yaml(trainer, RUN_ID, steps, sites), trainer.site, sites, trainer.processes(sites)) as stack:
        say(status_line(stack.addresses, out))
        try:
            status, training_s = watch(stack, trainer, steps)
        except Stopped:
            keep_what_there_is(stack, out, export_dir)
            raise
        stack.export("export", export_dir)
        say("Evaluates the exported model, a minute or so …")
        evaluation = trainer.evaluate(stack, export_dir)
        stack.report(out / "report.html", export_dir, evaluation["sample"])
        stack.finish()
    return result.summarize(status, evaluation, training_s, export_dir)


def chosen_trainer(options):
    if options.torch is None:
        return BuiltInTrainer(options.ranks, options.device, Pipeline(options.pipeline) if options.pipeline else None)
    return TorchTrainer(options.torch, BUILD, LIBRARY, options.ranks)


def quickstart(options):
    trainer = chosen_trainer(options)
    data = trainer.check_data(options.data, options.sites) if options.data else None
    parent = pathlib.Path(options.out).absolute()
    sites = site_names(options.sites)
    with take_out_folder(parent):
        data = prepare(data, trainer)
        ranks = f" of {options.ranks} ranks each" if options.ranks > 1 else ""
        say(f"Trains on {data} ({table.size(data.stat().st_size)}) in {len(sites)} sites{ranks}: {', '.join(sites)}.")
        out = new_run_folder(parent)
        trainer.take(data, sites, out)
        say("Measures how many steps fit …")
        rate, sync_every = calibrate(out, trainer, sites)
        steps = steps_that_fit(rate, options.minutes, sync_every)
        say(f"{rate:.2f} steps per second in each site: {steps} steps.")
        figures = train(out, trainer, sites, steps)
        (out / "result.json").write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
        say("\n" + "\n".join(result.summary_lines(figures)))
        say(f"figures             {out}/result.json")
        say(f"report              {out}/report.html")
        say("                    for a browser: curves, tables, how to talk to the model")


def stop_on(signals):
    """Turns signals into Stopped, wherever we are; from then on they are ignored, except a second Ctrl-C."""
    def stop(number, _):
        for other in signals:
            signal.signal(other, signal.SIG_IGN if other != signal.SIGINT else signal.default_int_handler)
        raise Stopped(number)

    for number in signals:
        signal.signal(number, stop)


def open_standard_streams():
    """Opens those on /dev/null that are closed, so that no file or program of ours takes their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
            os.set_inheritable(number, True)


def parsed(arguments):
    """The options; --help and mistakes end the program, with 1 where what it prints finds no room."""
    try:
        return parse_arguments(arguments)
    finally:
        try:
            print(end="", flush=True)
        except OSError as error:
            print(f"quickstart: {error}", file=sys.stderr)
            os._exit(1)


def main(arguments):
    open_standard_streams()
    options = parsed(arguments)
    stop_on([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    try:
        quickstart(options)
        return 0
    except (UsageError, ScheduleError, corpus.CorpusError, TorchError) as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 2
    except PartFailed as error:
        print(f"\nquickstart: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # such as a full disk; it names the file
        print(f"\nquickstart: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print("\nquickstart: stopped; all parts have ended.", file=sys.stderr)
        return stopped.exit_code
    except KeyboardInterrupt:
        print("\nquickstart: stopped at once; all parts were killed.", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
