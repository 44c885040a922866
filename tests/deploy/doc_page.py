"""A page of the documents, followed as its reader does: the commands of our programs that it prints, in its order, in one
folder, with the files that it says to write.

    blocks ─► run.yaml and scripts, as printed; commands ─► real coordinator, sites, certificates, plans

Commands of other machines and other people's programs (docker, systemctl, srun, …) are not followed here, nor a line with "…" or
a word in capitals, which the reader has to fill in. The addresses of a page become those of this machine.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from doc_blocks import OWN_PROGRAMS, blocks_of
from harness import eventually, merged

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = os.environ.get("CAUSEWAY_BIN_DIR", "")
OWN = re.compile(r"^(?:\w+=\S+ )*(?:(?:" + "|".join(OWN_PROGRAMS) + r"|deploy/certs|head|sed(?! -i))\s|cat >[\w.]+ <<)")
GAP = re.compile(r"…|(?<![\w$/<])[A-Z]{3,}(?![\w=.])")
OFFLINE = re.compile(r"causewayctl (plan|config-check|init|settings)\b")
ADDRESS = re.compile(r"(?:127\.0\.0\.1|0\.0\.0\.0|hub|eu\.example\.com):(70\d\d)")
PATIENCE_S = 120
RUN = """run_id: docs
run: {steps: 48}
model: {kind: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 8, num_attention_heads: 2,
        num_key_value_heads: 2, vocab_size: 256, max_position_embeddings: 32}
inner: {batch_size: 8}
sync: {sync_every: 8, num_fragments: 2}
membership: {min_sites: 1}
"""


def followed_of(block):
    """(command, whether an error is printed below it): whole, with the here-document of what it writes."""
    lines, at = block.text.replace("\\\n", " ").split("\n"), 0
    wanted = set(block.commands()) if block.kind == "commands" else set()
    while at < len(lines):
        command = lines[at].removeprefix("$ ")
        at += 1
        if command not in wanted:
            continue
        while "<<TEXT" in command and not command.endswith("\nTEXT") and at < len(lines):
            command, at = f"{command}\n{lines[at]}", at + 1
        shown = next(iter(lines[at:]), "")
        yield re.sub(r"\s+# .*$", "", command).strip(), shown.startswith("error ")


class Page:
    """`document` in `folder`, with a text to train on and a small run until the page prints one of its own."""

    def __init__(self, document, folder, run=RUN, own=OWN, **environment):
        self.document, self.folder, self.run, self.own = document, folder, yaml.safe_load(run), own
        self.environment = {**os.environ, "PATH": f"{BINARIES}:{os.environ['PATH']}", **environment}
        self.hub, self.coordinators, self.background = "", [], []
        (folder / "deploy").symlink_to(ROOT / "deploy")
        (folder / "text.txt").write_bytes((ROOT / "docs" / "operating.md").read_bytes())
        self.write_run({})

    def write_run(self, changes):
        self.run = changes if "run_id" in changes else merged(self.run, changes)
        (self.folder / "run.yaml").write_text(json.dumps(self.run))

    def follow(self, before=lambda page, command: None):
        """All of the page; how many commands that was. `before` hears of each one, to do what the page says in words."""
        followed = 0
        for block in blocks_of(self.document, (ROOT / self.document).read_text()):
            if block.kind == "yaml" and not block.untried:
                self.write_run(block.settings() or {})
            if block.kind == "python" and not block.undefined():
                (self.folder / "script.py").write_text(block.text)
            for command, fails in followed_of(block):
                if self.own.match(command) and not GAP.search(command.partition("\n")[0]):
                    before(self, command)
                    self.do(block.place, command, fails)
                    followed += 1
        return followed

    def do(self, place, command, fails=False):
        if re.match(r"(\w+=\S+ )*causeway-coordinator ", command):
            self.start_coordinator(command)
            return
        needs_hub = ADDRESS.search(command) or (command.startswith("causewayctl") and not OFFLINE.match(command))
        if needs_hub and not self.hub:
            self.start_coordinator("causeway-coordinator --config=run.yaml --state_dir=hub")
        command = ADDRESS.sub(self.hub, command).replace("/data/", f"{self.folder}/")
        if needs_hub and "--coordinator" not in command and command.startswith("causewayctl"):
            command += f" --coordinator={self.hub}"
        if command.endswith(" &"):
            self.background.append(command)
            return
        behind, self.background = " ".join(self.background), []
        if behind:
            command = f"{behind} {command}; code=$?; for job in $(jobs -p); do wait $job || code=$?; done; exit $code"
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False)
        if (done.returncode != 0) != fails:
            raise AssertionError(f"{place}: {command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")

    def start_coordinator(self, command):
        """On free ports, in place of the one before."""
        self.stop()
        words = [word for word in shlex.split(command.removesuffix(" &")) if not word.startswith(("--listen", "--http"))]
        state = self.folder / next(word.partition("=")[2] for word in words if word.startswith("--state_dir"))
        (state / "addresses.json").unlink(missing_ok=True)
        with open(self.folder / "coordinator.log", "ab") as log:
            self.coordinators.append(subprocess.Popen([*words, "--listen=127.0.0.1:0", "--http=127.0.0.1:0"], cwd=self.folder,
                                                      env=self.environment, stdout=log, stderr=log))
        eventually(lambda: (state / "addresses.json").exists() or self.coordinators[-1].poll() is not None, "it listens")
        if self.coordinators[-1].poll() is not None:
            raise AssertionError(f"{command}: {(self.folder / 'coordinator.log').read_text()}")
        self.hub = json.loads((state / "addresses.json").read_text())["grpc"]

    def stop(self):
        for process in self.coordinators:
            process.terminate()
            process.wait(60)
        self.coordinators.clear()
