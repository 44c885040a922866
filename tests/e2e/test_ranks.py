"""Native sites of several ranks: real processes, over Gloo; what fails says which rank it was, and others go on."""

import itertools
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

from harness import DONE, DigestBook, EndToEndTest, eventually, merged, synthetic

BAD_INPUT = 2
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
RANK_TIMEOUT_S, LEASE_S = 2, 2
SMALL_LLAMA = {"kind": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
               "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 16}


def llama(**sections):
    return merged({"run_id": "e2e", "run": {"steps": 60}, "model": SMALL_LLAMA,
                   "inner": {"warmup_steps": 5, "batch_size": 8}, "data": {"mode": "shared"},
                   "sync": {"sync_every": 10, "num_fragments": 2, "fragment_sync_delay": 1},
                   "codec": {"up": "int4", "down": "int4"}, "eval": {"every_rounds": 0}}, sections)


def noise(sites, step_ms=0, **sections):
    return synthetic(dict.fromkeys(sites, 0.5), [[100, 50], [40]], model={"step_ms": step_ms, "gradient": {"kind": "noise"}},
                     sync={"sync_every": 10, "num_fragments": 2}, **sections)


def rank_process(worker, rank):
    """The process of a rank of a worker that was started with --nproc."""
    children = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(worker.process.pid)], capture_output=True,
                              text=True, check=True).stdout.splitlines()
    return next(int(line.split()[0]) for line in children if f"--rank={rank} " in line + " ")


class RanksTest(EndToEndTest):
    def start(self, config, sites):
        """A run with these sites: {name: flags}."""
        run = self.new_run(config)
        run.start_coordinator()
        for site, flags in sites.items():
            run.start_worker(site, *flags)
        return run

    def text(self):
        path = self.folder / "text.txt"
        if not path.exists():
            path.write_bytes(b"".join(file.read_bytes() for file in sorted(DOCS.glob("*.md"))))
        return path


class WorldsTest(RanksTest):
    def bytes_of(self, ranks_of_sites):
        """Trains with a site of each number of ranks; all must hold the coordinator's anchors. Their bytes, in ascending order:
        one of them, whichever came first, has supplied the initial parameters."""
        sites = {f"{site}{ranks}": (f"--data={self.text()}", f"--nproc={ranks}")
                 for site, ranks in enumerate(ranks_of_sites)}
        run = self.start(llama(run={"steps": 150}, membership={"min_sites": len(sites)}), sites)
        book = DigestBook()
        status = book.until_done(run)
        for site, fragment in itertools.product(sites, range(2)):
            self.assertGreaterEqual(book.agreed(site, fragment), 14)
        self.assertEqual([site["ranks"]["ranks"] for site in status["sites"]], list(ranks_of_sites))
        print(f"ranks {ranks_of_sites}: {len(book.reported)} digests equal", file=sys.stderr)
        return [sorted(site[way] for site in status["sites"]) for way in ("up_bytes", "down_bytes")]

    def test_sites_of_four_ranks_two_and_one_hold_the_same_anchors_and_send_the_bytes_of_one_rank(self):
        alone = self.bytes_of((1, 1, 1))
        for way, way_alone in zip(self.bytes_of((4, 2, 1)), alone):
            print(f"bytes {way}, with one rank each {way_alone}", file=sys.stderr)
            for ranked, single in zip(way, way_alone):
                self.assertAlmostEqual(ranked / single, 1, delta=0.01)

    def test_a_site_goes_on_from_its_checkpoint_with_another_number_of_ranks(self):
        config = noise("ab", run={"steps": 200}, membership={"min_sites": 2, "lease_ms": 30_000},
                       step_ms=10, checkpoint={"every_rounds": 1})
        checkpoints = f"--checkpoint_dir={self.folder / 'checkpoints'}"
        run = self.start(config, {"a": ("--nproc=2", checkpoints), "b": ()})
        run.await_rounds(3)
        os.kill(rank_process(run.workers["a"], 0), signal.SIGKILL)
        self.assertNotEqual(run.workers["a"].wait(), DONE)
        again = run.start_worker("a", "--nproc=4", checkpoints)
        run.await_done()
        self.assertIn("4 ranks on 1 hosts", again.log())
        self.assertEqual(run.coordinator.log().count("site a: joins"), 1)  # and not anew
        self.assertIn("goes on from the checkpoint", again.log())

    def test_sigterm_to_a_follower_alone_lets_the_whole_site_leave(self):
        run = self.start(noise("ab", run={"steps": 0}, step_ms=5), {"a": ("--nproc=2",), "b": ()})
        run.await_rounds(1)
        os.kill(rank_process(run.workers["a"], 1), signal.SIGTERM)
        self.assertEqual(run.workers["a"].wait(), DONE, run.workers["a"].log())
        self.assertIn("drained", run.workers["a"].log())


class DevicesTest(RanksTest):
    def test_a_site_on_the_cpu_and_sites_on_the_fake_device_hold_the_same_anchors_and_train_alike(self):
        data = f"--data={self.text()}"
        sites = {"cpu": (data,), "fake": (data, "--device=fake"), "ranks": (data, "--device=fake", "--nproc=2"),
                 "hosted": (data, "--device=fake", "--compute_dtype=bfloat16", "--offload_k=2", "--resident_share=0.3")}
        run = self.start(llama(run={"steps": 100}, membership={"min_sites": 4}, offload={"subgroup": 1000}), sites)
        book = DigestBook()
        status = book.until_done(run)
        for site, fragment in itertools.product(sites, range(2)):
            self.assertGreaterEqual(book.agreed(site, fragment), 9)
        self.assertIn("trains on fake: ", run.workers["fake"].log())
        encoded = {site["name"]: {fragment["encoded_on"] for fragment in site["fragments"]} for site in status["sites"]}
        self.assertEqual({"cpu": {"host"}, "fake": {"device"}, "ranks": {"device"}, "hosted": {"host"}}, encoded)
        self.assertRegex(run.workers["hosted"].log(), r"optimizer state: \d+ % on the device, of the others in \d+ subgroups k 2")
        offload = {site["name"]: site["offload"] for site in status["sites"]}
        self.assertEqual(("cpu", "resident", "2"), tuple(offload[name]["k"] for name in ("cpu", "fake", "hosted")))
        device = offload["hosted"]["device"]
        self.assertGreater(device["early_gradient_bytes"], 0)
        self.assertEqual(12 * device["resident"], 12 * offload["hosted"]["subgroup"] * (device["resident"] // 1000))
        self.assertGreater(device["device_subgroups"], 1)
        losses = [site["loss"] for site in status["sites"]]
        self.assertLess(max(losses) - min(losses), 1, losses)  # each of its last batch alone
        self.assertLess(max(losses), 5)  # it began at ln 256

    def test_a_device_encodes_the_largest_values_alone_by_either_way_as_a_cpu_does(self):
        data = f"--data={self.text()}"
        config = llama(run={"steps": 60}, membership={"min_sites": 3}, codec={"up": "topk", "down": "int4"},
                       sync={"device_memory": "fragment"})
        run = self.start(config, {"cpu": (data,), "mapped": (data, "--device=fake", "--encode=mapped"),
                                  "copied": (data, "--device=fake", "--encode=copied")})
        book = DigestBook()
        status = book.until_done(run)
        encoded = {site["name"]: {fragment["encoded_on"] for fragment in site["fragments"]} for site in status["sites"]}
        self.assertEqual({"cpu": {"host"}, "mapped": {"device"}, "copied": {"device"}}, encoded)
        for site, fragment in itertools.product(encoded, range(2)):
            self.assertGreaterEqual(book.agreed(site, fragment), 5)
        self.assertIn("come fragment by fragment on the device", run.workers["mapped"].log())

    def test_a_device_that_is_not_there_is_named(self):
        cases = {"tpu": r"--device: expected auto, cpu, cuda or cuda:INDEX, got tpu",
                 "cuda:1": r"--device=cuda:1: this causeway-worker was built without CUDA; expected a build of the cuda preset"}
        cases |= {"fake --compute_dtype=int8": r"--compute_dtype: expected auto, float32 or bfloat16, got int8",
                  "fake --attention=flash": r"--attention: expected auto, cudnn or own, got flash",
                  "fake --attention=cudnn": r"--attention=cudnn: expected a GPU, got --device=fake",
                  "fake --products=best": r"--products: expected auto, timed or first, got best",
                  "fake --encode=gpu": r"--encode: expected auto, mapped, copied or host, got gpu",
                 "fake --offload_k=gpu": r"--offload_k: expected auto \| resident \| cpu \| 1 to 1000000, got gpu",
                  "fake --resident_share=2": r"--resident_share: expected auto \| 0 to 1, got 2",
                  "fake --recompute=all": r"--recompute: expected auto, none, norm_swiglu or block, got all",
                  "cpu --compute_dtype=bfloat16": r"--compute_dtype=bfloat16: expected a device with it, got --device=cpu"}
        for number, (device, sentence) in enumerate(cases.items()):
            flags = f"--device={device}".split()
            worker = self.program(self.folder, f"wrong-{number}", "causeway-worker", "--site=a", *flags)
            self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
            self.assertRegex(worker.log(), sentence)

    def test_a_device_refuses_a_run_that_it_cannot_train(self):
        run = self.new_run(noise("a"))
        run.start_coordinator()
        worker = run.start_worker("a", "--device=fake")
        self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
        self.assertIn("--device=fake: expected a run of model.kind llama, got synthetic", worker.log())

    def test_ranks_on_devices_of_two_kinds_end_with_both_named(self):
        run = self.new_run(llama())
        run.start_coordinator()
        ranks = [run.program(f"rank-{rank}", "causeway-worker", f"--coordinator={run.grpc}", "--site=a",
                             f"--data={self.text()}", f"--device={device}", f"--rank={rank}", "--world=2",
                             f"--rendezvous=unix:{self.folder / 'meet'}")
                 for rank, device in enumerate(("auto", "fake"))]
        for rank in ranks:
            self.assertEqual(rank.wait(), BAD_INPUT, rank.log())
            self.assertRegex(rank.log(), r"rank 1 of 2 \(.*\): expected the processor, as rank 0 has, got an added device")
        self.assertRegex(ranks[0].log(), r"--device=auto trains on the processor: .* without CUDA")


class LaunchersTest(RanksTest):
    def test_the_environment_of_torchrun_slurm_and_open_mpi_makes_ranks(self):
        launchers = {
            "torchrun": lambda rank: {"RANK": str(rank), "WORLD_SIZE": "2"},
            "slurm": lambda rank: {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "x"},
            "mpi": lambda rank: {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"},
        }
        run = self.new_run(noise(launchers, run={"steps": 20}))
        run.start_coordinator()
        followers = []
        for site, environment in launchers.items():
            for rank in range(2):
                flags = (f"--coordinator={run.grpc}", f"--site={site}", f"--rendezvous=unix:{self.folder / site}")
                started = run.program(f"{site}-{rank}", "causeway-worker", *flags, environment=environment(rank))
                (followers if rank else run.workers.setdefault(site, started) and []).append(started)
        run.await_done()
        for follower in followers:
            self.assertEqual(follower.wait(), DONE, follower.log())

    def test_ranks_meet_at_an_ipv6_address(self):
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
            port = listener.getsockname()[1]
        given = [((f"--rank={rank}", "--world=2", f"--rendezvous=[::1]:{port}"), {}) for rank in range(2)]
        by_launcher = [((), {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": str(port)})
                       for rank in range(2)]
        for label, ranks in (("flags", given), ("variables", by_launcher)):
            with self.subTest(label):
                run = self.new_run(noise("a", run={"steps": 20}))
                run.start_coordinator()
                started = [run.program(f"{label}-{rank}", "causeway-worker", f"--coordinator={run.grpc}", "--site=a", *flags,
                                       environment=environment) for rank, (flags, environment) in enumerate(ranks)]
                for rank in started:
                    self.assertEqual(rank.wait(), DONE, rank.log())

    def test_in_the_shell_of_salloc_a_worker_is_alone_and_says_so(self):
        run = self.new_run(noise("a", run={"steps": 20}))
        run.start_coordinator()
        shell = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "x", "SLURM_STEP_NUM_TASKS": "1",
                 "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_LOCALID": "0"}
        worker = run.start_worker("a", environment=shell)
        self.assertEqual(worker.wait(), DONE, worker.log())
        self.assertIn("this step of Slurm has 1 task of the job's 4", worker.log())

    def test_wrong_flags_and_worlds_end_with_a_sentence(self):
        run = self.new_run(noise("a"))
        run.start_coordinator()
        coordinator = f"--coordinator={run.grpc}"
        meet = f"--rendezvous=unix:{self.folder / 'meet'}"
        cases = {
            "no ranks": (("--nproc=-1",), {}, r"--nproc: expected 1 to 1024 ranks, got -1"),
            "rank alone": (("--rank=0",), {}, r"--rank, --world, --rendezvous: expected all three, got --rank=0"),
            "beyond": (("--rank=2", "--world=2", meet), {}, r"expected a rank below the world's size, got rank 2 of 2"),
            "two launchers": ((), {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "SLURM_PROCID": "0",
                                   "SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "x"},
                              r"got rank 1 of 2 \(RANK, WORLD_SIZE\) and rank 0 of 1 \(SLURM_PROCID, SLURM_NTASKS\)"),
            "no address": ((), {"RANK": "1", "WORLD_SIZE": "2"}, r"MASTER_ADDR: expected the host of rank 0, got none"),
            "batch": (("--nproc=3",), {}, r"expected a multiple of the site's 3 ranks, got 8 rows"),
        }
        for label, (flags, environment, sentence) in cases.items():
            with self.subTest(label):
                worker = run.program(label.replace(" ", "-"), "causeway-worker", coordinator, "--site=a", *flags,
                                     environment=environment)
                self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
                self.assertRegex(worker.log(), sentence)

    def test_ranks_that_do_not_fit_end_all_of_them_and_nothing_has_joined(self):
        run = self.new_run(noise("a"))
        run.start_coordinator()
        for label, second, sentence in (
            ("world", ("--rank=1", "--world=3", "--site=a"), r"a world of 2 ranks, as rank 0 has, got rank 1 of 3"),
            ("site", ("--rank=1", "--world=2", "--site=b"), r"all ranks alike, got .* with site a and .* with site b"),
            ("absent", None, r"expected 2 ranks within 1\.\d s, got 1: rank 1 has not come"),
        ):
            with self.subTest(label):
                flags = (f"--coordinator={run.grpc}", f"--rendezvous=unix:{self.folder / label}",
                         "--rank_timeout_s=" + ("20" if second else "1"))
                ranks = [run.program(f"{label}-0", "causeway-worker", *flags, "--rank=0", "--world=2", "--site=a")]
                if second:
                    ranks.append(run.program(f"{label}-1", "causeway-worker", *flags, *second))
                for rank in ranks:
                    self.assertNotEqual(rank.wait(), DONE)
                    self.assertRegex(rank.log(), sentence)
        self.assertNotIn("joins", run.coordinator.log())

    def test_other_data_on_one_rank_is_found_before_anything_has_joined(self):
        run = self.new_run(llama())
        run.start_coordinator()
        other = self.folder / "other.txt"
        other.write_bytes(self.text().read_bytes()[:-100])
        ranks = [run.program(f"rank-{rank}", "causeway-worker", f"--coordinator={run.grpc}", "--site=a", f"--data={data}",
                             f"--rank={rank}", "--world=2", f"--rendezvous=unix:{self.folder / 'meet'}")
                 for rank, data in enumerate((self.text(), other))]
        for rank in ranks:
            self.assertNotEqual(rank.wait(), DONE)
            self.assertRegex(rank.log(), r"rank 1 of 2 \(.*\) differs: expected data with digest \w{16}, as rank 0, got \w{16}")
        self.assertNotIn("joins", run.coordinator.log())


class FailuresTest(RanksTest):
    """Site a of two ranks in which something happens, beside site b of one."""

    def start_pair(self):
        config = noise("ab", run={"steps": 300}, membership={"min_sites": 2, "lease_ms": 1000 * LEASE_S},
                       step_ms=10)
        run = self.start(config, {"a": ("--nproc=2", f"--rank_timeout_s={RANK_TIMEOUT_S}"),
                                  "b": (f"--metrics_file={self.folder / 'b.jsonl'}",)})
        run.await_rounds(1)
        return run

    def fail(self, number, rank):
        """The log of site a after the signal, and why the coordinator lost it, once site b has trained to the end."""
        run = self.start_pair()
        a, b = run.workers["a"], run.workers["b"]
        os.kill(rank_process(a, rank), number)
        begin = time.monotonic()
        eventually(lambda: re.search(f"error rank {rank} of 2 \\(.*\\)", a.log()), "a rank says what it has seen")
        noticed = time.monotonic() - begin
        stalls = []
        seen = run.site("b").get("step", 0), time.monotonic()
        while b.running():
            step, now = run.site("b").get("step", 0), time.monotonic()
            if step != seen[0]:
                stalls.append(now - seen[1])
                seen = step, now
            time.sleep(0.02)
        self.assertEqual(b.wait(), DONE, b.log()[-2000:])
        self.assertNotEqual(a.wait(), DONE)
        reasons = re.findall("site a: is out of the run: (.*)", run.coordinator.log())
        print(f"signal {number} to rank {rank}: noticed after {noticed:.1f} s, b's longest pause {max(stalls):.1f} s, "
              f"a exits {a.process.returncode}; coordinator: {reasons[:1]}", file=sys.stderr)
        self.assertLess(max(stalls), RANK_TIMEOUT_S + LEASE_S + 2)
        return a.log(), reasons

    # A kill is noticed at once, or, where the connection's end is missed on a busy machine, when the time is over.
    def test_a_follower_is_killed(self):
        log, reasons = self.fail(signal.SIGKILL, 1)
        self.assertRegex(log, r"error rank 1 of 2 \(.*\) has (ended|said nothing for 2\.0 s)")
        self.assertRegex(reasons[0], r"rank 1 of 2 \(.*\) has (ended|said nothing)")

    def test_the_leader_is_killed(self):
        log, _ = self.fail(signal.SIGKILL, 0)
        self.assertRegex(log, r"error rank 0 of 2 \(.*\) has (ended|said nothing for 2\.0 s)")

    def test_a_follower_is_stopped(self):
        log, reasons = self.fail(signal.SIGSTOP, 1)
        self.assertRegex(log, r"error rank 1 of 2 \(.*\) has said nothing for 2\.0 s")
        self.assertRegex(reasons[0], r"rank 1 of 2 \(.*\) has said nothing")

    def test_the_leader_is_stopped(self):
        log, _ = self.fail(signal.SIGSTOP, 0)
        self.assertRegex(log, r"error rank 0 of 2 \(.*\) has said nothing for 2\.0 s")

    def test_the_coordinator_is_gone_for_a_while_and_the_ranks_wait(self):
        config = noise("a", run={"steps": 100}, step_ms=5)
        run = self.start(config, {"a": ("--nproc=2", f"--rank_timeout_s={RANK_TIMEOUT_S}")})
        run.await_rounds(1)
        run.coordinator.kill()
        time.sleep(2 * RANK_TIMEOUT_S)  # longer than a rank may be silent
        run.start_coordinator()
        run.await_done()
        self.assertNotIn("has said nothing", run.workers["a"].log())
