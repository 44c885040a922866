"""Runs parts, each with a limit of its own: one that fails or is cut stops nothing, and its rows are kept."""

import contextlib
import dataclasses
import os
import pathlib
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from bench_lib.processes import ends_with_us
from limited_process import end

from . import rows

ROOT = pathlib.Path(__file__).resolve().parents[3]
LEAST_S = 10  # nothing is begun with less time left


@dataclasses.dataclass
class Command:
    argv: list
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Part:
    name: str
    what: str
    limit_s: float
    commands: Callable  # folder of the part ─► [Command]; ValueError: why it cannot be run here


def typed(argv, out):
    """The command as one types it in a checkout, on whatever machine: rows are kept."""
    line = shlex.join(str(word) for word in argv)
    for here, there in ((sys.executable, "python3"), (str(out), "build/gpu"), (f"{ROOT}/", "")):
        line = line.replace(here, there)
    return line


def run_command(command, seconds, on_line):
    """Calls on_line for each line that it prints. The exit status; None: it was cut, with all that it had started."""
    process = subprocess.Popen([str(word) for word in command.argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True, preexec_fn=ends_with_us,
                               env=os.environ | {key: str(value) for key, value in command.environment.items()})
    reader = threading.Thread(target=lambda: [on_line(line.rstrip("\n")) for line in process.stdout])
    reader.start()
    try:
        return process.wait(timeout=max(seconds, 0.001))
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(process)  # and what it left running
        process.wait()
        reader.join()
        process.stdout.close()


@contextlib.contextmanager
def start(commands, out):
    """Commands that go on beside all parts, and are ended with them."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "background.log", "a", encoding="utf-8") as log:
        processes = [subprocess.Popen([str(word) for word in command.argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      start_new_session=True, preexec_fn=ends_with_us) for command in commands]
        try:
            yield
        finally:
            for process in processes:
                end(process)
                process.wait()


class Runner:
    def __init__(self, out, kept, clocks=dict, say=print, now=time.monotonic):
        self.out, self.kept, self.clocks, self.say, self.now = out, kept, clocks, say, now

    def run(self, parts, seconds=None):
        """Runs parts until the seconds are over, if given. {name: "done", "failed", "cut"}; a part without time is missing."""
        ends, results = None if seconds is None else self.now() + seconds, {}
        for part in parts:
            left = part.limit_s if ends is None else min(part.limit_s, ends - self.now())
            if left < min(LEAST_S, part.limit_s):
                break
            results[part.name] = self._run_part(part, left)
        return results

    def _run_part(self, part, seconds):
        self.say(f"== {part.name}: {part.what} (at most {seconds:.0f} s)")
        folder = self.out / part.name
        folder.mkdir(parents=True, exist_ok=True)
        begin, before, problems = self.now(), self.clocks(), []
        try:
            commands = part.commands(folder)
        except ValueError as error:
            commands, problems = [], [str(error)]
        cut = False
        for command in commands:
            left = seconds - (self.now() - begin)
            line = typed(command.argv, self.out)
            if left <= 0:
                cut = True
                problems.append(f"no time was left for: {line}")
                continue
            status = self._run_command(part, command, line, folder, left)
            if status is None:
                cut = True
                problems.append(f"cut after {left:.0f} s: {line}")
            elif status != 0:
                problems.append(f"exit status {status}: {line}")
        result = "cut" if cut else "failed" if problems else "done"
        row = {"result": result, "seconds": round(self.now() - begin, 1)}
        if problems:
            row["why"] = problems
        if before:
            row |= {"clocks_before": before, "clocks_after": self.clocks()}
        self.kept.add(part.name, row)
        self.say(f"== {part.name}: {result}, {row['seconds']} s" + "".join(f"\n     {problem}" for problem in problems))
        return result

    def _run_command(self, part, command, line, folder, seconds):
        with open(folder / "log", "a", encoding="utf-8") as log:
            def on_line(text):
                log.write(text + "\n")
                log.flush()
                row = rows.from_line(text)
                if row is None:
                    self.say(text)
                else:
                    self.kept.add(part.name, {"command": line} | row)

            log.write(f"$ {line}\n")
            try:
                status = run_command(command, seconds, on_line)
            except OSError as error:
                self.say(f"{line}: {error}")
                status = 127
            return status
