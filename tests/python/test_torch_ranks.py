"""Sites of several ranks beside sites of one, in real runs: the same digests, the same bytes, the same bits of θ."""

import collections
import json
import os
import re
import signal
import sys
import unittest

import numpy
import torch
from transformers import LlamaForCausalLM

from harness import DONE, eventually
from llama_runs import HERE, UNIT, LlamaTest, llama_config

STEPS = 60
RANKS_OF_A_CARD = 2  # with NCCL 2.32 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1


def ranked_config(codec, tied=True, **sections):
    config = llama_config(codec, **({"run": {"steps": STEPS}} | sections))
    config["model"] = config["model"] | {"num_key_value_heads": 2, "tie_word_embeddings": tied}
    config["inner"] = config["inner"] | {"batch_size": 12}
    return config


class RankedTest(LlamaTest):
    def start_ranked(self, run, site, kind, world, *flags, script="ranked_site.py", again=""):
        """Processes of a site's ranks, without a launcher, which ends all when one fails. `again`: of a later start."""
        inner = json.dumps(run.config["inner"])
        store = run.folder / f"{site}{again}.store"
        ranks = [self.program(run.folder, f"{site}-{rank}{again}", sys.executable, HERE / script, run.grpc, site, self.text,
                              f"--model={self.base}", f"--inner={inner}", f"--kind={kind}", f"--rendezvous={store}",
                              f"--rank={rank}", f"--world={world}", *flags) for rank in range(world)]
        run.workers[site] = ranks[0]
        run.torch_sites.add(site)
        run.ranks[site] = ranks
        return ranks

    def start_ranked_run(self, config):
        """A run whose base has the heads of these tests."""
        self.make_base(3, config["model"])
        run = self.start_run(config)
        run.ranks = {}
        return run

    def finish_ranked(self, run):
        self.finish(run)
        for site, ranks in run.ranks.items():
            for number, rank in enumerate(ranks):
                self.assertEqual(rank.wait(60), DONE, f"{site} rank {number}: {rank.log()[-3000:]}")

    def check_digests(self, run, site):
        """Each version that the site had between two steps has the coordinator's digest; returns how many there were."""
        seen = {(int(fragment), held["version"]): held["digest"] for line in run.workers[site].lines()
                for fragment, held in line.get("digests", {}).items()}
        committed = {key: run.book.committed[key] for key in seen if key[1] > 0}
        self.assertEqual({key: seen[key] for key in committed}, committed)
        self.assertGreaterEqual(len(committed), (STEPS // 10 - 1) * run.config["sync"]["num_fragments"])
        return len(committed)

    def check_moves(self, run, site):
        said = run.workers[site].lines()[-1]
        self.assertGreater(said["moves"], 10)
        self.assertEqual(said["differ"], 0)


class KindsTest(RankedTest):
    def check(self, kind, world, codec="int4", native=False, tied=True):
        """A site of several ranks beside one of a process, and the one that gives the run its first values."""
        device = os.environ.get("CAUSEWAY_RANKS_DEVICE", "cpu")  # or cuda: one for each rank; cuda:0: that one for all
        if device == "cuda" and torch.cuda.device_count() < world:
            self.skipTest(f"{world} GPUs, one for each rank")
        if device.startswith("cuda:") and world > RANKS_OF_A_CARD:
            self.skipTest(f"{world} ranks on one card")
        config = ranked_config(codec, tied, membership={"min_sites": 3})
        run = self.start_ranked_run(config)
        self.start_ranked(run, "first", "single", 1)
        eventually(lambda: run.status()["sites"], "the first site gives its values")
        self.start_ranked(run, "ranks", kind, world, *(["--check"] if device == "cpu" else []), f"--device={device}")
        if native:
            run.start_worker("process", f"--data={self.text}")
        else:
            self.start_ranked(run, "process", "single", 1)
        self.finish_ranked(run)
        if device == "cpu":
            self.check_moves(run, "ranks")
        exchanged = {site["name"]: site["up_bytes"] + site["down_bytes"] for site in run.book.last["sites"]}
        self.assertLessEqual(exchanged["ranks"] / exchanged["process"], 1.01)
        compared = self.check_digests(run, "ranks")
        print(f"{kind} {world} {codec}: bytes {exchanged['ranks'] / exchanged['process']:.4f} of one process's, "
              f"{compared} versions with equal digests", file=sys.stderr)

    def test_ddp_of_two(self):
        self.check("ddp", 2)

    def test_ddp_of_two_beside_a_native_site(self):
        self.check("ddp", 2, native=True)

    def test_fsdp_of_three_beside_a_native_site(self):
        self.check("fsdp", 3, native=True)

    def test_ddp_of_two_and_fsdp_of_three_with_other_codecs(self):
        for codec in ("sign", "float32"):
            self.check("ddp", 2, codec)
            self.check("fsdp", 3, codec)

    def test_plain_replicas_of_two(self):
        self.check("plain", 2)

    def test_fsdp_of_two(self):
        self.check("fsdp", 2)

    def test_fsdp_of_three_with_uneven_shards(self):
        self.check("fsdp", 3)

    def test_hybrid_shards_of_two_by_two(self):
        self.check("hsdp", 4)

    def test_tensor_parallel_of_two(self):
        self.check("tp", 2)

    def test_pipeline_of_two(self):
        self.check("pp", 2, tied=False)


class VariantsTest(RankedTest):
    """Models that are not float32 all over, or not trained all over."""

    def check(self, kind, world, variant="", dtype="float32", export=False):
        config = ranked_config("int4", membership={"min_sites": 2})
        config["sync"] = config["sync"] | {"num_fragments": 2 if variant == "lora" else 3}
        self.make_base(3, config["model"])
        run = self.new_run({key: value for key, value in config.items() if key != "inner"} | {"model": {"kind": "external"}})
        run.config, run.torch_sites, run.training, run.ranks = config, set(), {}, {}
        run.start_coordinator()
        flags = [f"--dtype={dtype}", *([f"--variant={variant}"] if variant else [])]
        ranks = self.start_ranked(run, "ranks", kind, world, "--check", *flags, f"--export={run.folder / 'ranks'}")
        self.start_ranked(run, "process", "single", 1, *flags, f"--export={run.folder / 'process'}")
        self.finish_ranked(run)
        self.check_moves(run, "ranks")
        self.check_digests(run, "ranks")
        exported = [{path.name: path.read_bytes() for path in sorted((run.folder / name).iterdir())
                     if path.suffix in (".safetensors", ".pt")} for name in ("ranks", "process")]
        self.assertEqual(*exported)
        return ranks

    def test_adapters_on_fsdp(self):
        self.check("fsdp", 2, "lora")

    def test_frozen_shards(self):
        self.check("fsdp", 3, "frozen")

    def test_bfloat16(self):
        self.check("fsdp", 2, dtype="bfloat16")

    def test_masters_of_bfloat16_shards(self):
        self.check("fsdp", 2, "masters", dtype="bfloat16")

    def test_bfloat16_replicas(self):
        self.check("ddp", 2, dtype="bfloat16")


class WorldsTest(RankedTest):
    """Sites of one, two and three ranks in one run, of which the last is killed and goes on with four."""

    def test_what_was_sent_and_what_is_left_over_is_all_that_was_trained(self):
        config = ranked_config("int4", membership={"min_sites": 3, "lease_ms": 120000})
        config["codec"] = {"up": "int4", "down": "float32"}
        config["outer"] = {"optimizer": "sgd", "lr": 1.0}  # so that W moves by the mean of what came
        run = self.start_ranked_run(config)
        saved = run.folder / "checkpoint"
        sites = {"one": ("single", 1), "two": ("ddp", 2), "three": ("fsdp", 3)}
        for site, (kind, world) in sites.items():
            flags = [f"--checkpoint={saved}", "--save_at=33"] if site == "three" else []
            self.start_ranked(run, site, kind, world, f"--ledger={run.folder / site}", *flags)
        for rank in run.ranks["three"]:
            self.assertEqual(rank.wait(120), -signal.SIGKILL, rank.log()[-3000:])
        self.start_ranked(run, "three", "fsdp", 4, f"--ledger={run.folder / 'three'}", f"--checkpoint={saved}", again="again")
        self.finish_ranked(run)
        self.assertEqual(run.workers["three"].lines()[0], {"entered": 33})
        self.assertEqual(len(re.findall("site three: is out of the run", run.coordinator.log())), 1)
        self.check_sums(run, sites)

    def check_sums(self, run, sites):
        """For each tensor, the sites' sums of W − θ, less what their residuals hold, are all that W has moved by."""
        begin = LlamaForCausalLM.from_pretrained(self.base).state_dict()
        names = [name for name in begin if name != "lm_head.weight"]
        ledgers = {site: numpy.load(run.folder / site) for site in sites}
        parts = {site: torch.load(run.folder / f"{site}.parts") for site in sites}
        last = run.config["sync"]["num_fragments"] - 1
        places = collections.Counter()
        worst = 0.0
        for index, name in enumerate(names):
            fragment = int(name.split(".")[2]) if ".layers." in name else last
            count = begin[name].numel()
            at, places[fragment] = places[fragment], places[fragment] + -(-count // UNIT) * UNIT
            trained = sum(ledger[f"sums.{index}"] for ledger in ledgers.values())
            # While a contribution is under way, the residual is the next one.
            left = sum(part.get(f"{fragment}.next_residual", part[f"{fragment}.residual"]).numpy().view(numpy.float32)[at:at + count].astype(float)
                       for part in parts.values())
            moved = (begin[name].double().flatten().numpy() - run.exported[name].astype(float).flatten()) * len(sites)
            scale = numpy.abs(trained).max()
            rounding = 2.0**-24 * len(sites) * (STEPS // 10) * numpy.abs(run.exported[name]).max()  # of W in each round
            worst = max(worst, numpy.abs(trained - left - moved).max() / rounding)
            self.assertLess(numpy.abs(left).max(), scale, name)
        print(f"sums of {len(names)} tensors: the largest difference is {worst:.2f} of what float32 rounds", file=sys.stderr)
        self.assertLess(worst, 4)


class LifeTest(RankedTest):
    """Each rank hears of all that reaches one of them."""

    def start(self, steps, lease_ms, *flags):
        config = ranked_config("int4", run={"steps": steps}, membership={"min_sites": 2, "lease_ms": lease_ms})
        run = self.start_ranked_run(config)
        ranks = self.start_ranked(run, "a", "ddp", 2, *flags)
        self.start_ranked(run, "b", "single", 1, "--step_ms=10")
        return run, ranks

    def test_sigterm_on_a_follower_ends_all_ranks_after_the_same_step(self):
        run, ranks = self.start(STEPS, 10000, "--term=1:20")
        self.finish_ranked(run)
        last = [max(self.steps_of(rank)) for rank in ranks]
        self.assertEqual(last[0], last[1])
        self.assertIn(last[0], range(20, 24))
        self.assertIn("site a: is out of the run: drained", run.coordinator.log())

    def test_a_site_that_was_stopped_beyond_its_lease_rejoins_on_all_ranks(self):
        run, ranks = self.start(400, 3000, "--step_ms=10", "--rank_timeout_s=2")
        eventually(lambda: len(self.steps_of(ranks[0])) >= 20, "a trains", 120)
        for rank in ranks:
            rank.send(signal.SIGSTOP)
        eventually(lambda: "site a: is out of the run: not heard of" in run.coordinator.log(), "its lease ends", 30)
        for rank in ranks:
            rank.send(signal.SIGCONT)
        self.finish_ranked(run)
        rejoined = [[line["rejoined"] for line in rank.lines() if "rejoined" in line] for rank in ranks]
        self.assertEqual(len(rejoined[0]), 1)
        self.assertEqual(rejoined[0], rejoined[1])
        self.assertEqual([max(self.steps_of(rank)) for rank in ranks], [400, 400])


if __name__ == "__main__":
    unittest.main()
