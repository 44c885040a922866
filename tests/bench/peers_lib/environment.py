"""The Python that has the peers: one that is given, or a virtual environment with what could be installed."""

import os
import pathlib
import subprocess
import sys

from bench_lib.figures import say
from peers_lib.table import Unavailable

# module ─► packages, or alternatives of which the first that works is taken. Each module is installed on its own, so
# that one which is missing leaves the others.
PACKAGES = {"torch": (["torch", "numpy"],), "torchft": (["torchft-nightly"], ["torchft"]),
            "transformers": (["transformers"],), "piquant": (["pypiquant"],),
            "ninja": (["ninja", "setuptools", "wheel"],), "deepspeed": (["deepspeed"],)}
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
        self.python = pathlib.Path(given or folder / "python" / "bin" / "python")
        self.failures = {}  # module ─► why pip did not install it
        if given is None:
            self.install()

    def install(self):
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(self.folder / "python")], check=True)
        for module, alternatives in PACKAGES.items():
            reasons = []
            for packages in alternatives:
                say(f"installing {' '.join(packages)}")
                reason = self.pip(*(FROM_SOURCE if module == "deepspeed" else []), *packages)
                if reason is None:
                    break
                reasons.append(f"pip install {packages[0]}: {reason}")
            else:
                self.failures[module] = "; ".join(reasons)

    def pip(self, *arguments):
        """None, or why it failed."""
        command = [str(self.python), "-m", "pip", "install", "--quiet", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return None if done.returncode == 0 else last_line(done.stderr)

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
                raise Unavailable("; ".join([last_line(done.stderr), *filter(None, [self.failures.get(module)])]))

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
