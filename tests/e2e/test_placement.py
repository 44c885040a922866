"""A run whose coordinator is spread over its sites, from the files that `causewayctl init` writes."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import unittest
import urllib.request

from harness import BAD_INPUT, BIN_DIR, DONE, EndToEndTest, eventually, read_safetensors, synthetic, yaml_text

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
CONFIG = synthetic(SITES, [[3, 5000], [9000], [100]], run={"steps": 160},
                   model={"step_ms": 10, "init": "seeded", "gradient": {"kind": "noise"}},
                   sync={"sync_every": 10, "num_fragments": 2, "fragment_assignment": "balanced",
                         "fragment_sync_delay": 1, "fragment_update_alpha": 0.5},
                   codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1},
                   membership={"min_sites": 3, "lease_ms": 120000}, checkpoint={"every_rounds": 2})
PLACED = CONFIG | {"placement": "sites"}


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def family(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return [pid, *(each for child in map(int, children.read().split()) for each in family(child))]


def name_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as command:  # it may have ended
        return pathlib.PurePath(command.read().split(b"\0")[0].decode()).name


class PlacementTest(EndToEndTest):
    def init(self, *flags, expected=DONE):
        program = self.program(self.folder, "init", "causewayctl", "init", "--placement=sites", *flags)
        self.assertEqual(program.wait(), expected, program.log())
        return program

    def start(self, site):
        environment = {"PATH": f"{BIN_DIR}:{os.environ['PATH']}", "LISTEN": f"127.0.0.1:{self.ports[site]}",
                       "HTTP": f"127.0.0.1:{self.http[site]}"}
        return self.program(self.folder, f"site-{site}", self.folder / "run" / site / f"start-{site}",
                            f"--dump_local={self.folder / site}.safetensors", environment=environment)

    def status(self, site):
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http[site]}/status", timeout=5) as answer:
                return json.loads(answer.read())
        return {"fragments": [], "sites": []}

    def prepare(self, *flags, standby_of="", steps=400):
        (self.folder / "run.yaml").write_text(yaml_text(PLACED | {"run": CONFIG["run"] | {"steps": steps}}))
        names = [*SITES, f"{standby_of}-standby"]
        ports = free_ports(2 * len(names))
        self.ports, self.http = (dict(zip(names, part)) for part in (ports[:len(names)], ports[len(names):]))
        second = {standby_of: f"|127.0.0.1:{ports[len(SITES)]}"}
        at = ",".join(f"{site}=127.0.0.1:{self.ports[site]}{second.get(site, '')}" for site in SITES)
        said = self.init(f"--shards_at={at}", f"--config={self.folder / 'run.yaml'}", f"--out={self.folder / 'run'}", *flags).output()
        return at, said

    def certify(self, said):
        """Runs the command that init prints."""
        command = re.search(r"^  (deploy/certs (?:.*\\\n)*.*)$", said, re.MULTILINE)[1]
        subprocess.run(["bash", "-c", command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    def operate(self, *command):
        done = subprocess.run([self.folder / "run" / "operator" / "ctl", *command], text=True, capture_output=True,
                              env=os.environ | {"PATH": f"{BIN_DIR}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, DONE, done.stderr)
        return done.stdout

    def undisturbed(self):
        """One coordinator, with the same parts."""
        run = self.new_run(CONFIG | {"sync": CONFIG["sync"] | {"parts": len(SITES)}})
        run.start_coordinator()
        for site in SITES:
            run.start_worker(site)
        run.await_done(120)
        result = {site: run.local(site) for site in SITES}
        run.stop_coordinator()
        return result

    def test_one_command_a_site_runs_it_and_a_site_that_is_lost_and_back_changes_no_bit(self):
        expected = self.undisturbed()
        self.prepare("--insecure", steps=CONFIG["run"]["steps"])
        programs = {site: self.start(site) for site in SITES}
        eventually(lambda: len(f := self.status("asia")["fragments"]) == 6 and min(one["version"] for one in f) >= 3,
                   "the first site's page shows all parts")
        status = self.status("asia")
        sizes = [one["parameters"] for one in status["fragments"]]
        self.assertLessEqual(max(sizes) - min(sizes), 2 * 4096)
        others = self.status("us")
        self.assertGreater(status["sites"][0]["up_bytes"], 2 * others["sites"][0]["up_bytes"])  # of three shards
        self.kill(programs["us"])
        eventually(lambda: any("shard 2 has not been heard of for" in one["reason"]
                               for one in self.status("asia")["fragments"]), "the page says whose parts wait")
        programs["us"] = self.start("us")
        for site, program in programs.items():
            self.assertEqual(program.wait(120), DONE, program.log()[-3000:])
        for site in SITES:
            self.assert_same_bits(expected[site], read_safetensors(self.folder / f"{site}.safetensors"), site)

    @staticmethod
    def kill(program):
        """The site's command with its shard and its worker, as when the machine is lost."""
        for each in family(program.process.pid):
            os.kill(each, signal.SIGKILL)
        program.process.wait()

    def worker_of(self, program):
        [worker] = [pid for pid in family(program.process.pid) if name_of(pid) == "causeway-worker"]
        return worker

    def test_by_the_printed_words_with_certificates_and_a_worker_that_is_killed_is_back_while_its_shard_goes_on(self):
        _, said = self.prepare()
        refused = self.start("us")
        self.assertEqual(refused.wait(), BAD_INPUT)
        self.assertRegex(refused.log(), r"expected \S+/run/us/certs/ca.pem and the files beside it, .* INSECURE=true starts without")
        self.certify(said)
        self.check_keys()
        programs = {site: self.start(site) for site in SITES}
        eventually(lambda: len(f := self.status("asia")["fragments"]) == 6 and min(one["version"] for one in f) >= 2, "rounds")
        self.assertIn("training", self.operate("status"))
        os.kill(self.worker_of(programs["us"]), signal.SIGKILL)
        eventually(lambda: "the worker has ended with 137, and is started again" in programs["us"].log(), "it is started again")
        before = min(one["version"] for one in self.status("asia")["fragments"])
        eventually(lambda: min(one["version"] for one in self.status("asia")["fragments"]) > before, "rounds go on")
        self.operate("pause")
        eventually(lambda: self.status("asia")["state"] == "paused", "it pauses")
        self.operate("resume")
        for site, program in programs.items():
            self.assertEqual(program.wait(120), DONE, program.log()[-3000:])

    def test_a_shard_whose_machine_is_gone_goes_on_at_its_standby_by_the_printed_words(self):
        _, said = self.prepare(standby_of="asia")
        self.assertIn("\n  ./start-asia-standby\n", said)
        self.certify(said)
        programs = {name: self.start(name) for name in (*SITES, "asia-standby")}
        eventually(lambda: len(f := self.status("asia")["fragments"]) == 6 and min(one["version"] for one in f) >= 2 and
                   any(one["whole"] for one in self.status("asia")["standbys"]), "rounds, and a first copy")
        for pid in family(programs["asia"].process.pid)[::-1]:  # its shard, and who would start that again
            if "causeway-worker" not in map(name_of, family(pid)):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder / "run" / "asia" / "state" / "shard")
        at = f"--at=127.0.0.1:{self.ports['asia-standby']}"
        eventually(lambda: subprocess.run([self.folder / "run" / "operator" / "ctl", "promote", at, "--leader_is_stopped"],
                                          env=os.environ | {"PATH": f"{BIN_DIR}:{os.environ['PATH']}"},
                                          capture_output=True).returncode == DONE, "it is promoted")
        for site in ("eu", "us"):
            self.assertEqual(programs[site].wait(120), DONE, programs[site].log()[-3000:])
        self.assertEqual(programs["asia-standby"].wait(120), DONE, programs["asia-standby"].log()[-3000:])
        eventually(lambda: (self.folder / "asia.safetensors").exists(), "asia's worker ends")

    def check_keys(self):
        """Each folder has its owner's keys and tokens, and no one else's."""
        run = self.folder / "run"
        made = {path.read_bytes(): path.name for path in (run / "ca").iterdir() if path.suffix in (".key", ".token")}
        self.assertEqual(len(made), 1 + 5 * len(SITES) + 2)
        for owner in (*SITES, "operator"):
            found = {made[path.read_bytes()] for path in (run / owner).rglob("*") if path.is_file() and path.read_bytes() in made}
            if owner == "operator":
                self.assertEqual(found, {"operator.key", "operator.token"})
            else:
                self.assertEqual(found, {f"{owner}.key", f"{owner}.token", f"shard-{owner}.key", f"shard-{owner}.token",
                                         f"coordinator-{owner}.key"})
            for path in (run / owner).rglob("*"):
                if path.suffix in (".key", ".token"):
                    self.assertEqual(path.stat().st_mode & 0o077, 0, path)

    def check_move(self, folder):
        """The documented command moves a shard in all that says where it is."""
        [command] = re.findall(r"^    (sed -i .* addresses site\.env)$", (ROOT / "docs" / "operating.md").read_text(), re.MULTILINE)
        command = command.replace("us.example.org:7077", f"127.0.0.1:{self.ports['us']}")
        subprocess.run(["bash", "-c", command], cwd=folder, check=True)
        moved = [line.split()[1] for line in (folder / "addresses").read_text().splitlines() if line[0] != "#"]
        self.assertEqual(moved[list(SITES).index("us")], "new.example.org:7077")
        self.assertIn(f"\nCOORDINATOR={','.join(moved)}\n", (folder / "site.env").read_text())

    def test_files_that_are_there_stay_and_bad_flags_say_why(self):
        at, _ = self.prepare()
        run = self.folder / "run"

        def files():
            return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}

        before = files()
        self.assertEqual(sorted(before), sorted(["operator/addresses", "operator/ctl", *(
            f"{site}/{name}" for site in SITES for name in ("run.yaml", "addresses", f"start-{site}", "site.env"))]))
        self.check_move(run / "us")
        for name, contents in before.items():
            (run / name).write_bytes(contents)
        again = self.init(f"--shards_at={at}", f"--out={self.folder / 'run'}", expected=1)
        self.assertIn("exists; init writes", again.log())
        self.assertEqual(before, files())
        for flags, words in (([], "expected --out"), (["--out=x"], "expected at least 2 sites"),
                             (["--out=x", "--shards_at=a=h:1,a=h:2"], "each site's name once, got 'a=h:2'"),
                             (["--out=x", "--shards_at=a=h:1,b"], "NAME=HOST:PORT"),
                             (["--out=x", "--shards_at=a=h:1,b=$(id):2"], "expected a host of letters, digits, '.', '-', '_' and ':' and at most one standby, got 'b=$(id):2'"),
                             (["--out=x", "--shards_at=a=h:1,b=`id`:2"], "expected a host of letters"),
                             (["--out=x", "--shards_at=a=h:1,operator=h:2"], "expected names of sites, got 'operator'"),
                             (["--out=x", "--placement=hub", f"--shards_at={at}"], "--placement: expected sites")):
            self.assertIn(words, self.init(*flags, expected=BAD_INPUT).log())


if __name__ == "__main__":
    unittest.main()
