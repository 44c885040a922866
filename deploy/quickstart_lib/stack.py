"""A coordinator and its sites as processes of this machine: start, watch, stop."""

import ctypes
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

START_TIMEOUT_S = 30  # for the coordinator to listen; it takes well under a second
STATUS_TIMEOUT_S = 10  # for a status request; a coordinator that is silent for so long has failed
STOP_GRACE_S = 20  # between SIGTERM and SIGKILL: a site drains what is in flight
ERROR_LINE = re.compile(r"^(\d\d:\d\d:\d\d\.\d+ )?(error|critical)\b")
TRACEBACK = "Traceback (most recent call last):"
PR_SET_PDEATHSIG = 1

# Never through a proxy of the environment: the stack is on this machine.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PartFailed(Exception):
    """A part of the stack ended or went silent. The message quotes its own last words and says where its log is."""


def last_words(log):
    """The last errors that a program logged, or the end of a Python traceback; if there are neither, its last lines."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if any(line.startswith(TRACEBACK) for line in lines):
        return lines[-5:]
    errors = [line for line in lines if ERROR_LINE.match(line)]
    return errors[-3:] or lines[-5:] or ["(it wrote nothing)"]


def failure(name, how, log):
    return PartFailed("\n".join([f"{name} {how}:", *("    " + line for line in last_words(log)), f"its log: {log}"]))


def how_it_ended(code):
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _end_with_parent():
    """In the child: SIGTERM if the quickstart dies without stopping it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Part:
    """One process with its log. It has a session of its own, so that Ctrl-C reaches only the quickstart, which stops
    its parts in order."""

    def __init__(self, name, command, log, environment=None):
        self.name = name
        self.log = log
        with open(log, "wb") as output:
            self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=output, env={**os.environ, **(environment or {})},
                                            start_new_session=True, preexec_fn=_end_with_parent)

    def check(self, may_be_done=True):
        """Raises PartFailed if it has ended, except with 0 where that is allowed."""
        code = self.process.poll()
        if code is not None and not (code == 0 and may_be_done):
            raise failure(self.name, how_it_ended(code), self.log)

    def ended(self):
        return self.process.poll() is not None

    def terminate(self):
        if not self.ended():
            self.process.terminate()


class Stack:
    """A run in `folder`: run.yaml, state/, and a log for each part. Use as a context: leaving it stops all."""

    def __init__(self, binaries, folder, run_yaml, site, sites, processes=None):
        """Args: `site`: gives command and environment of a site, from its name and the coordinator's address.
        `processes`: how many all of them start; one each."""
        self.processes = processes or len(sites)
        self.binaries = binaries
        self.folder = folder
        self.site = site
        self.site_names = sites
        self.parts = []
        self.sites = []
        self.coordinator = None
        self.addresses = None
        self._heard_at = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.yaml").write_text(run_yaml)

    def __enter__(self):
        try:
            self._start_coordinator()
            self._start_sites()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _start(self, name, program, *arguments, environment=None):
        """Starts a program of the build, or of its own absolute path."""
        part = Part(name, [self.binaries / program, *arguments], self.folder / f"{name}.log", environment)
        self.parts.append(part)
        return part

    def _start_coordinator(self):
        state = self.folder / "state"
        self.coordinator = self._start("coordinator", "causeway-coordinator", f"--config={self.folder}/run.yaml",
                                       "--listen=127.0.0.1:0", "--http=127.0.0.1:0", f"--state_dir={state}")
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (state / "addresses.json").exists():
            self.coordinator.check(may_be_done=False)
            if time.monotonic() > deadline:
                raise failure("coordinator", f"did not listen within {START_TIMEOUT_S} s", self.coordinator.log)
            time.sleep(0.05)
        self.addresses = json.loads((state / "addresses.json").read_text())
        self._heard_at = time.monotonic()

    def _start_sites(self):
        # The sites' processes share this machine's cores; BLAS and OpenMP would otherwise start a thread for each core in
        # every one.
        threads = str(max(1, len(os.sched_getaffinity(0)) // self.processes))
        for name in self.site_names:
            command, environment = self.site(name, self.addresses["grpc"])
            self.sites.append(self._start(name, *command, environment={
                "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, **environment}))

    def check(self):
        """Raises PartFailed for the first part that failed. The coordinator runs until `finish` or `stop`."""
        self.coordinator.check(may_be_done=False)
        for site in self.sites:
            site.check()

    def status(self):
        """The answer of GET /status, or None if there was none this time."""
        self.check()
        try:
            with _direct.open(f"http://{self.addresses['http']}/status", timeout=STATUS_TIMEOUT_S) as response:
                status = json.load(response)
        except (urllib.error.URLError, OSError, ValueError) as error:
            self.check()
            if time.monotonic() - self._heard_at > STATUS_TIMEOUT_S:
                raise failure("coordinator", f"does not answer at http://{self.addresses['http']}/status ({error})",
                              self.coordinator.log) from None
            return None
        self._heard_at = time.monotonic()
        # null where each site evaluates on data of its own: there is no loss of the whole run.
        status["eval_loss"] = status["eval_loss"] or {"start": None, "latest": None}
        return status

    def sites_ended(self):
        return all(site.ended() for site in self.sites)

    def run_program(self, name, program, *arguments):
        """Runs a program to its end. Its output (stderr goes to its log)."""
        log = self.folder / f"{name}.log"
        with open(log, "wb") as errors:
            done = subprocess.run([self.binaries / program, *map(str, arguments)], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=errors, check=False)
        if done.returncode != 0:
            with open(log, "ab") as errors:
                errors.write(done.stdout)
            raise failure(name, how_it_ended(done.returncode), log)
        return done.stdout.decode(errors="replace")

    def export(self, name, folder):
        """Writes the global parameters into `folder`."""
        self.run_program(name, "causewayctl", "export", f"--coordinator={self.addresses['grpc']}", f"--out={folder}")

    def report(self, path, model, sample):
        """Writes the run's report: its model is an export, which wrote `sample` if that is not empty."""
        flags = []
        if sample:
            text = self.folder / "sample.txt"
            text.write_text(sample)
            flags = [f"--sample={text}"]
        self.run_program("report", "causewayctl", "report", f"--coordinator={self.addresses['grpc']}", f"--out={path}",
                         f"--model={model}", *flags)

    def finish(self):
        """Ends a run that is done; raises PartFailed unless all its parts end with 0. The sites end by themselves."""
        self._wait(self.sites, STOP_GRACE_S)
        self.coordinator.terminate()
        self._wait([self.coordinator], STOP_GRACE_S)
        for part in self.parts:
            part.check()
            if not part.ended():
                raise failure(part.name, f"did not end within {STOP_GRACE_S} s of the end of the run", part.log)

    def stop(self, grace_s=STOP_GRACE_S):
        """SIGTERM to the sites, then to the coordinator; SIGKILL for what is left after `grace_s`, or at once if the
        user interrupts this too."""
        try:
            for part in self.sites:
                part.terminate()
            self._wait(self.sites, grace_s)
            for part in self.parts:
                part.terminate()
            self._wait(self.parts, grace_s)
        finally:
            for part in self.parts:
                if not part.ended():
                    part.process.kill()
                    part.process.wait()

    @staticmethod
    def _wait(parts, grace_s):
        deadline = time.monotonic() + grace_s
        for part in parts:
            try:
                part.process.wait(timeout=max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
