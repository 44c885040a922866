"""Sites of several ranks beside sites of one, in real runs: the same digests, the same bytes, the same bits of θ."""

import json
import sys
import unittest

from harness import DONE, eventually
from llama_runs import HERE, LlamaTest, llama_config

STEPS = 60


def ranked_config(codec, tied=True, **sections):
    config = llama_config(codec, **({"run": {"steps": STEPS}} | sections))
    config["model"] = config["model"] | {"num_key_value_heads": 2, "tie_word_embeddings": tied}
    config["inner"] = config["inner"] | {"batch_size": 12}
    return config


class RankedTest(LlamaTest):
    def start_ranked(self, run, site, kind, world, *flags, script="ranked_site.py"):
        """Processes of a site's ranks, without a launcher, which ends all when one fails."""
        inner = json.dumps(run.config["inner"])
        store = run.folder / f"{site}.store"
        ranks = [self.program(run.folder, f"{site}-{rank}", sys.executable, HERE / script, run.grpc, site, self.text,
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
        config = ranked_config(codec, tied, membership={"min_sites": 3})
        run = self.start_ranked_run(config)
        self.start_ranked(run, "first", "single", 1)
        eventually(lambda: run.status()["sites"], "the first site gives its values")
        self.start_ranked(run, "ranks", kind, world, "--check")
        if native:
            run.start_worker("process", f"--data={self.text}")
        else:
            self.start_ranked(run, "process", "single", 1)
        self.finish_ranked(run)
        self.check_moves(run, "ranks")
        exchanged = {site["name"]: site["up_bytes"] + site["down_bytes"] for site in run.book.last["sites"]}
        self.assertLessEqual(exchanged["ranks"] / exchanged["process"], 1.01)
        compared = self.check_digests(run, "ranks")
        print(f"{kind} {world} {codec}: bytes {exchanged['ranks'] / exchanged['process']:.4f} of one process's, "
              f"{compared} versions with equal digests", file=sys.stderr)

    def test_ddp_of_two(self):
        self.check("ddp", 2)

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


if __name__ == "__main__":
    unittest.main()
