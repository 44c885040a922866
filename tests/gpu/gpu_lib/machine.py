"""The machine of a run: card, driver, clocks, bus, processor, memory."""

import json
import os
import pathlib
import re
import subprocess

CLOCKS = ["clocks.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu", "pcie.link.gen.current",
          "pcie.link.width.current", "clocks_event_reasons.active"]


def output_of(*argv):
    """The output of a program, or "" where it is missing or fails."""
    try:
        return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def card():
    """(name, driver) of the first GPU, or None."""
    line = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    return tuple(part.strip() for part in line[0].split(",")) if line else None


def clocks():
    values = output_of("nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits").splitlines()
    return dict(zip(CLOCKS, (value.strip() for value in values[0].split(",")))) if values else {}


def facts():
    """Facts on which a figure depends, beside the name of the card."""
    lines = output_of("lscpu").splitlines()
    of_cpu = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    memory = {key: int(value.split()[0]) << 10 for key, _, value in
              (line.partition(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
              if key in ("MemTotal", "MemAvailable")}
    query = output_of("nvidia-smi", "-q")
    quota = pathlib.Path("/sys/fs/cgroup/cpu.max")
    return {"processor": of_cpu.get("Model name", ""), "cores": len(os.sched_getaffinity(0)),
            "threads_per_core": of_cpu.get("Thread(s) per core", ""), "numa_nodes": of_cpu.get("NUMA node(s)", ""),
            "l3": of_cpu.get("L3 cache", ""), "cpu_max": quota.read_text().strip() if quota.exists() else "",
            "memory_bytes": memory, "load": os.getloadavg()[0],
            "gpu_memory": first(r"FB Memory Usage\s+Total\s*:\s*(.+)", query), "vbios": first(r"VBIOS Version\s*:\s*(.+)", query),
            "ecc": first(r"ECC Mode\s+Current\s*:\s*(.+)", query), "clocks_max_sm": first(r"Max Clocks[\s\S]*?SM\s*:\s*(.+)", query),
            "pcie_max": first(r"PCIe Generation\s+Max\s*:\s*(.+)", query), "clocks": clocks()}


def first(pattern, text):
    found = re.search(pattern, text)
    return found[1].strip() if found else ""


if __name__ == "__main__":
    print(json.dumps(facts()), flush=True)
