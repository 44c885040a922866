"""A program with a limit of seconds, whose failure is a row and no end of the benchmark."""

import json
import os
import signal
import subprocess
import time

SAID = 1500  # characters of a program's last words that a row keeps


def last_row(command, limit_s, environment=None):
    """The JSON object in the last line that the program prints, or {"error": …} with why there is none. What it started
    ends with it."""
    begin = time.monotonic()
    process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True, env=environment)
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"error": f"expected an end within {limit_s:g} s, got none"}
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    lines = output.splitlines()
    if process.returncode == 0 and lines and lines[-1].startswith("{"):
        return json.loads(lines[-1])
    said = errors.strip()[-SAID:] or output.strip()[-SAID:]
    return {"error": f"exit code {process.returncode} after {time.monotonic() - begin:.0f} s: {said}"}
