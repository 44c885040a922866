"""A program with a limit of seconds, whose failure is a row and no end of the benchmark."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

from bench_lib.processes import ends_with_us

SAID = 1500  # characters of a program's last words that a row keeps


def end(process):
    """With all of its session: a build's compilers have process groups of their own."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(stat.read_text().rpartition(")")[2].split()[3])
            if session == process.pid:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except OSError:  # it is gone
            pass


def rows_of(command, limit_s, environment=None):
    """Yields the JSON object of each line that begins with {, as the program prints it; at the end {"error": …} if it failed,
    took longer or had none."""
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                   text=True, start_new_session=True, env=environment, preexec_fn=ends_with_us)
        late = threading.Event()
        timer = threading.Timer(limit_s, lambda: (late.set(), end(process)))
        timer.start()
        printed, rows = "", 0
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    rows += 1
                    yield json.loads(line)
                else:
                    printed = line
            process.wait()
        finally:
            timer.cancel()
            end(process)
            process.wait()
            process.stdout.close()
        if late.is_set():
            why = f"expected an end within {limit_s:g} s, got none"
        elif process.returncode != 0 or not rows:
            why = f"exit code {process.returncode} after {time.monotonic() - begin:.0f} s"
        else:
            return
        errors.seek(0)
        said = errors.read().strip()[-SAID:] or printed.strip()
        yield {"error": f"{why}: {said}" if said else why}


def last_row(command, limit_s, environment=None):
    """The last of them: the row that the program ends with, or the error."""
    return list(rows_of(command, limit_s, environment))[-1]
