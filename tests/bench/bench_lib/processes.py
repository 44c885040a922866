"""A coordinator and light sites as processes, and what /proc and /status say of them."""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
DEADLINE_S = 180
BENCH = pathlib.Path("tests", "bench")  # below the build folder


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def machine():
    return {"processor": processor(), "load": os.getloadavg()[0]}


def ends_with_us(signal_number=signal.SIGKILL):
    """In a child before its program: it gets the signal when this process is gone, however that ended."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal_number)


def corpus():
    """The text that benchmarks train on, which is fetched once."""
    sys.path.insert(0, str(ROOT / "deploy"))
    from quickstart_lib import corpus as texts
    return texts.default_corpus(ROOT / "build" / "corpus")


def free_memory():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def processor_time(pid, ends_in_s=None):
    """Seconds of a child of ours until now, or until it ends, which is at most `ends_in_s` from now; it stays to be waited for."""
    deadline = time.monotonic() + (ends_in_s or 0)
    while ends_in_s and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {pid} has not ended in {ends_in_s} s")
        time.sleep(0.02)
    user, system = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return {"user": int(user) / os.sysconf("SC_CLK_TCK"), "system": int(system) / os.sysconf("SC_CLK_TCK")}


def run_yaml(parameters, tensors, fragments, sites, codec, every_rounds=0, feedback_down=1):
    """A synthetic run of `parameters` values in equal tensors. JSON is YAML."""
    return json.dumps({
        "run_id": "light",
        "model": {"kind": "synthetic",
                  "tensors": [{"name": f"t{i}", "shape": [parameters // tensors], "init": 0} for i in range(tensors)]},
        "inner": {"optimizer": "sgd", "warmup_steps": 0, "schedule": "constant", "weight_decay": 0, "clip": 0},
        "sync": {"sync_every": max(20, fragments), "num_fragments": fragments},
        "codec": {"up": codec, "down": codec, "feedback_up": 0, "feedback_down": feedback_down},
        "membership": {"min_sites": sites, "lease_ms": 120000},
        "eval": {"every_rounds": 0},
        "checkpoint": {"every_rounds": every_rounds},
    })


class Coordinator:
    """causeway-coordinator on a state directory; the log goes to log_path."""

    def __init__(self, build, config, state_dir, log_path, *flags, listen="127.0.0.1:0"):
        self.state_dir, self.log_path = state_dir, log_path
        self.command = [str(build / "causeway-coordinator"), f"--config={config}", f"--state_dir={state_dir}",
                        f"--listen={listen}", "--http=127.0.0.1:0", *flags]
        self.address = None
        self.start()

    def start(self):
        """Also again after kill(): on the port it had."""
        if self.address:
            self.command[3] = f"--listen={self.address}"
        (self.state_dir / "addresses.json").unlink(missing_ok=True)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=ends_with_us)
        self.started = time.monotonic()

    def await_address(self):
        path = self.state_dir / "addresses.json"
        deadline = time.monotonic() + DEADLINE_S
        while not path.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"error: the coordinator did not start: {self.log_path.read_text()[-2000:]}")
            time.sleep(0.002)
        addresses = json.loads(path.read_text())
        self.address, self.http = addresses["grpc"], addresses["http"]
        return self.address

    def await_seed(self, site=None):
        """Until the initial parameters are saved; the process that supplies them must not end before."""
        while "the initial parameters are here" not in self.log_path.read_text():
            if self.process.poll() is not None or (site is not None and site.poll() is not None):
                raise SystemExit(f"error: no initial parameters: {self.log_path.read_text()[-2000:]}")
            time.sleep(0.02)

    def status(self):
        with urllib.request.urlopen(f"http://{self.http}/status", timeout=DEADLINE_S) as answer:
            return json.loads(answer.read())

    def memory(self):
        """Bytes: resident at most ever (or since reset_peak), now, and of that what is no file's."""
        fields = {}
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in ("VmHWM", "VmRSS", "RssAnon"):
                fields[key] = int(value.split()[0]) << 10
        return fields

    def reset_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def program(build):
    path = build / BENCH / "bench_run" / "bench_run"
    if not path.exists():
        raise SystemExit(f"error: expected {path}: cmake --build {build} --target benchmarks builds it; --build=DIR names another")
    return path


def command_of(build, case, parameters):
    """A case of the program bench_run with settings; a list's values are separated by commas."""
    texts = {key: ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value).lower() if isinstance(value, bool)
             else str(value) for key, value in parameters.items()}
    return [str(program(build)), case, *(f"--{key}={text}" for key, text in texts.items())]


def bench_rows(build, case, parameters, log=None, **environment):
    """The rows of figures that a case of bench_run prints, a line each."""
    done = subprocess.run(command_of(build, case, parameters), check=True, stdout=subprocess.PIPE, stderr=log, text=True,
                          env=os.environ | {"OPENBLAS_NUM_THREADS": "1"} | environment)
    return [json.loads(line) for line in done.stdout.splitlines()]


def wire_end(build, case, *arguments, log):
    """A process that is an end of the wire: sites, receiver or uploads of bench_run."""
    return subprocess.Popen([str(program(build)), case, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                            text=True, preexec_fn=ends_with_us)


def light_sites(build, address, *arguments, log):
    return wire_end(build, "sites", f"--coordinator={address}", *arguments, log=log)


def ask(process, line=""):
    """Its answer to a line, a row of JSON."""
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit("error: bench_run ended; its log is in the folder --out")
    return json.loads(answer)


def answer_of(process):
    """The row of JSON that it ends with."""
    answer = process.communicate()[0]
    if process.returncode != 0:
        raise SystemExit(f"error: it ended with {process.returncode}; its log is in the folder --out")
    return json.loads(answer)
