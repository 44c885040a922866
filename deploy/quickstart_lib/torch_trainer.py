"""deploy/quickstart --torch: the sites are examples/plain.py, each a process of a Python that has PyTorch; with --ranks
examples/ddp_site.py, under torchrun.

    text ─┬─ first 95 % ─► <run>/text/eu.txt, us.txt, … one for each site, which trains on all of it
          └─ last 5 %  ─► <run>/text/held_out.txt, which no site has
"""

import json
import os
import pathlib
import shutil
import subprocess

from quickstart_lib import corpus

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plain.py"
RANKS_EXAMPLE = ROOT / "examples" / "ddp_site.py"
EVALUATION = pathlib.Path(__file__).with_name("torch_evaluation.py")

MODULES = ("torch", "transformers", "safetensors", "numpy")
FIND_MODULES = "import importlib.util, sys; print(*(m for m in sys.argv[1:] if not importlib.util.find_spec(m)))"
HELD_OUT_PARTS = 20  # one of this number of equal parts of the text is held out
LEAST_BYTES = 1024  # of each site's text, and of the held-out text: some rows of the example
COPY_BYTES = 1 << 24


class TorchError(Exception):
    """There is no Python with PyTorch; the message says what to do."""


class TorchTrainer:
    template = "quickstart_torch.yaml"
    targets = ("causeway_shared",)
    calibration_timeout_s = 600  # importing PyTorch in all sites at once takes minutes on a slow machine

    def __init__(self, python, build, library, ranks=1):
        """Args: `python`: an interpreter that the user named, checked here; without, a virtual environment in `build`."""
        self._ranks = ranks  # of each site
        self._environment = build / "torch"
        self._python = checked_python(python) if python else self._environment / "bin" / "python"
        self._makes_environment = not python
        self._library = library
        self._folder = self._sites = self._start_dir = None

    def processes(self, sites):
        """The number of processes of all sites."""
        return len(sites) * self._ranks

    @staticmethod
    def check_data(path, sites):
        path = corpus.check_data(path)
        if path.is_dir() or path.suffix == ".bin":
            raise corpus.CorpusError(f"--data={path}: expected a text file, whose bytes examples/plain.py reads, got a "
                                     f"{'folder' if path.is_dir() else '.bin file'}; without --torch it is read")
        held_out, *parts = split(path.stat().st_size, sites)
        least = min(end - begin for begin, end in [held_out, *parts])
        if least < LEAST_BYTES:
            raise corpus.CorpusError(f"--data={path}: expected a text of {HELD_OUT_PARTS * LEAST_BYTES * sites} bytes "
                                     f"or more for {sites} sites, got {path.stat().st_size}")
        return path

    def install(self):
        """Makes the virtual environment, unless the user named a Python or it was made before."""
        complete = self._environment / "complete"  # there once all is installed
        if not self._makes_environment or complete.exists():
            return
        print(f"Installs PyTorch and transformers in {self._environment}: downloads about 3 GB and takes 6.5 GB, once. "
              "--torch=PYTHON names a Python that has them …", flush=True)
        must_run(["/usr/bin/python3", "-m", "venv", self._environment],
                 "install Debian's package python3-venv")
        must_run([self._python, "-m", "pip", "install", "--quiet", "torch", "transformers", "numpy"],
                 "it needs a network and 6.5 GB of disk, and resumes where it stopped")
        complete.touch()

    def take(self, data, sites, folder):
        """Splits `data` into a file for each site and one that is held out, in `folder`/text."""
        self._folder, self._sites = folder / "text", sites
        self._folder.mkdir()
        with open(data, "rb") as source:
            for name, (begin, end) in zip(["held_out", *sites], split(data.stat().st_size, len(sites))):
                copy(source, begin, end, self._text(name))

    def _text(self, name):
        return self._folder / f"{name}.txt"

    def values(self, _calibrates):
        return {}

    def site(self, name, coordinator):
        """Command and environment of a site."""
        path = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
        script = [EXAMPLE]
        if self._ranks > 1:
            script = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={self._ranks}", RANKS_EXAMPLE]
        held_out = [self._text("held_out")] if name == self._sites[0] else []  # one site evaluates for all
        return [self._python, *script, self._text(name), *held_out], {
            "CAUSEWAY_COORDINATOR": coordinator, "CAUSEWAY_SITE": name, "CAUSEWAY_LIBRARY": str(self._library),
            "PYTHONPATH": path}

    def training_begins(self, stack):
        """Exports the untrained model that the first site gave to the run, unless a first round is already merged."""
        start_dir = stack.folder / "start"
        stack.export("start", start_dir)
        status = stack.status()
        if status and all(fragment["version"] == 0 for fragment in status["fragments"]):
            self._start_dir = start_dir

    def evaluate(self, stack, export_dir):
        start = [f"--start={self._start_dir}"] if self._start_dir else []
        return json.loads(stack.run_program("evaluate", self._python, EVALUATION, f"--export={export_dir}", *start,
                                            f"--held_out={self._text('held_out')}", *map(self._text, self._sites)))


def checked_python(name):
    """The interpreter, as an absolute path: a link of a virtual environment stays one."""
    found = shutil.which(name)
    if not found:
        raise TorchError(f"--torch={name}: expected a Python interpreter, found no such program")
    try:
        done = subprocess.run([found, "-c", FIND_MODULES, *MODULES], capture_output=True, text=True, check=False)
    except OSError as error:
        raise TorchError(f"--torch={name}: cannot run it: {error.strerror}") from None
    if done.returncode != 0:
        raise TorchError(f"--torch={name}: expected a Python interpreter, got a program that ended with exit code "
                         f"{done.returncode}: {done.stderr.strip()[-300:]}")
    missing = done.stdout.split()
    if missing:
        raise TorchError(f"--torch={name}: expected a Python that has {', '.join(MODULES)}, it lacks "
                         f"{', '.join(missing)}; install them with {found} -m pip install torch transformers numpy")
    return pathlib.Path(found).absolute()


def must_run(command, advice):
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        code = error.strerror
    if code != 0:
        raise TorchError(f"the command {' '.join(map(str, command))} failed ({code}), see above: {advice}; or name a "
                         "Python that has torch and transformers: --torch=PYTHON")


def split(size, sites):
    """[begin, end) in bytes: of the held-out text, which is the last, and of each site's."""
    trained = size - size // HELD_OUT_PARTS
    bounds = [trained * i // sites for i in range(sites + 1)]
    return [(trained, size), *zip(bounds, bounds[1:])]


def copy(source, begin, end, path):
    source.seek(begin)
    with open(path, "wb") as target:
        while begin < end:
            block = source.read(min(COPY_BYTES, end - begin))
            if not block:
                raise corpus.CorpusError(f"{source.name}: became shorter while it was read")
            target.write(block)
            begin += len(block)
