"""The Python that has the peers: one that is given, or a virtual environment with what could be installed."""

import os
import subprocess
import sys

from peers_lib.table import Unavailable
from wan_lib import reports

# Installed one after the other, so that a package which is missing leaves the others; of a group the first that works.
PACKAGES = [(["torch", "numpy"],), (["torchft-nightly"], ["torchft"]), (["transformers"],), (["pypiquant"],),
            (["deepspeed", "ninja", "setuptools", "wheel"],)]
FROM_SOURCE = ["--no-build-isolation"]  # DeepSpeed's setup imports the torch that is there
INSTALL_S, IMPORT_S = 1800, 120


def last_line(text):
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no message"])[-1][:200]


class Environment:
    def __init__(self, given, folder):
        self.folder = folder
        self.python = given or folder / "python" / "bin" / "python"
        self.failures = []  # of pip
        if given is None:
            self.install()

    def install(self):
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(self.folder / "python")], check=True)
        for alternatives in PACKAGES:
            for packages in alternatives:
                reports.say(f"installing {' '.join(packages)}")
                flags = FROM_SOURCE if "deepspeed" in packages else []
                command = [str(self.python), "-m", "pip", "install", "--quiet", *flags, *packages]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
                except subprocess.TimeoutExpired:
                    self.failures.append(f"pip install {packages[0]} took more than {INSTALL_S} s")
                    continue
                if done.returncode == 0:
                    break
                self.failures.append(f"pip install {packages[0]}: {last_line(done.stderr)}")

    def variables(self, threads=1, **more):
        """The environment of a program of this Python; programs of its packages (ninja) are found, too."""
        path = f"{self.python.absolute().parent}:{os.environ.get('PATH', '')}"
        return {**os.environ, "PATH": path, "OMP_NUM_THREADS": str(threads), "PYTHONDONTWRITEBYTECODE": "1",
                "TORCH_EXTENSIONS_DIR": str(self.folder / "extensions"), **more}

    def require(self, *modules):
        """Unavailable with the reason if one cannot be imported."""
        for module in modules:
            try:
                done = subprocess.run([str(self.python), "-c", f"import {module}"], capture_output=True, text=True,
                                      check=False, timeout=IMPORT_S, env=self.variables())
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Unavailable(str(error)) from error
            if done.returncode != 0:
                raise Unavailable("; ".join([last_line(done.stderr), *self.failures]))

    def answer(self, program, *arguments, limit_s=600, **variables):
        """The last line of what a Python program prints, whole."""
        command = [str(self.python), str(program), *map(str, arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s,
                                  env=self.variables(**variables))
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{program.name} took more than {limit_s} s") from error
        if done.returncode != 0:
            raise Unavailable(last_line(done.stderr))
        return done.stdout.splitlines()[-1]
