"""Native sites whose ranks are a pipeline: real processes, schedules of causewayctl, beside sites of one rank."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys

from harness import BAD_INPUT, BIN_DIR, DONE, DigestBook, eventually, merged
from test_ranks import RanksTest, llama, rank_process

MICRO_BATCHES = 4
RANK_TIMEOUT_S, LEASE_S = 2, 2
FRAGMENTS = 2


class PipelinesTest(RanksTest):
    def config(self, sites, **sections):
        return merged(llama(model={"num_hidden_layers": 4}, inner={"micro_batches": MICRO_BATCHES},
                            membership={"min_sites": sites}), sections)

    def schedule(self, name, devices, width=None, micro_batches=MICRO_BATCHES):
        """The file of this schedule; `width`: such as "2 shards"."""
        path = self.folder / f"{name}-{devices}-{width}-{micro_batches}.schedule"
        subprocess.run([BIN_DIR / "causewayctl", "plan", "pipeline", f"--schedule={name}", f"--devices={devices}",
                        f"--micro_batches={micro_batches}", "--costs=unit", f"--out={path}"], check=True,
                       capture_output=True)
        if width:
            path.write_text(re.sub(r"^(devices .*\n)", rf"\1width {width}\n", path.read_text(), flags=re.MULTILINE))
        return path

    def pipeline(self, name, devices, width=None):
        ranks = devices * int(width.split()[0] if width else 1)
        return f"--pipeline={self.schedule(name, devices, width)}", f"--nproc={ranks}"

    def data(self):
        return f"--data={self.text()}"


class BesideOthersTest(PipelinesTest):
    def trained(self, first, least=4, **sections):
        """The export of a run of a site with these flags and one of one rank, what each held at its end, and the last
        status. Fragments get beyond version `least`."""
        run = self.new_run(self.config(2, **sections))
        run.start_coordinator()
        for site, flags in (("a", first), ("b", ())):
            run.start_worker(site, self.data(), *flags)
        book = DigestBook()
        status = book.until_done(run)
        for site, fragment in itertools.product("ab", range(FRAGMENTS)):
            self.assertGreaterEqual(book.agreed(site, fragment), least)
        print(f"{' '.join(map(str, first))[:60]}: {len(book.reported)} digests equal", file=sys.stderr)
        return run.export(), run.local("a"), {site["name"]: site for site in status["sites"]}

    def test_a_pipeline_of_four_ranks_trains_with_the_bits_of_one_rank(self):
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        self.addCleanup(os.environ.pop, "OPENBLAS_NUM_THREADS")
        alone, local, sites = self.trained(())
        trace = self.folder / "trace.json"
        for tied_name in ("1f1b", "zb_h1"):
            with self.subTest(tied_name):
                export, pipelined, with_pipeline = self.trained(
                    (*self.pipeline(tied_name, 4), f"--trace={trace}"))
                self.assert_same_bits(alone, export, "export")
                self.assert_same_bits(local, pipelined, "the site's own parameters")
                self.assertAlmostEqual(sites["a"]["loss"], with_pipeline["a"]["loss"], delta=1e-5)
                self.assertEqual(with_pipeline["a"]["ranks"]["ranks"], 4)
        events = json.loads(trace.read_text().rstrip().rstrip(",") + "]")
        self.assertEqual({event["tid"] for event in events}, set(range(4)))
        self.assertEqual(len([event for event in events if event["args"]["step"] == 1]), 3 * 4 * MICRO_BATCHES)

    def test_pipelines_of_places_and_copies_or_shards_and_on_a_device_hold_the_coordinators_anchors(self):
        offloaded = ("--device=fake", "--recompute=block", "--compute_dtype=bfloat16", "--offload_k=2", "--resident_share=0")
        for name, width, device in (("dualpipe", "2 copies", ()), ("zeropp", "2 shards", ()), ("zb_v", None, offloaded)):
            with self.subTest(name):
                flags = (*self.pipeline(name, 2, width), *device)
                _, _, sites = self.trained(flags, least=2, run={"steps": 40})
                self.assertEqual(sites["a"]["ranks"]["ranks"], 4 if width else 2)
                self.assertLess(abs(sites["a"]["loss"] - sites["b"]["loss"]), 1)


class RestoreTest(PipelinesTest):
    def test_a_rank_is_killed_and_the_site_comes_back_with_another_number_of_devices(self):
        run = self.new_run(self.config(2, run={"steps": 0}, checkpoint={"every_rounds": 1},
                                       membership={"min_sites": 1, "lease_ms": 1000 * LEASE_S}))
        run.start_coordinator()
        shared = (self.data(), f"--checkpoint_dir={self.folder / 'checkpoints'}", f"--rank_timeout_s={RANK_TIMEOUT_S}")
        first = run.start_worker("a", *shared, *self.pipeline("1f1b", 4))
        run.start_worker("b", self.data())
        eventually(lambda: run.site("a").get("step", 0) > 30 and "checkpoint" in first.log(), "a has a checkpoint")
        os.kill(rank_process(first, 2), signal.SIGKILL)
        self.assertNotEqual(first.wait(), DONE)
        self.assertRegex(first.log(), r"rank \d of 4 \(.*\) has (ended|said nothing)")
        step = run.site("b")["step"]
        eventually(lambda: run.site("b").get("step", 0) > step + 20, "b's rounds go on")
        again = run.start_worker("a", *shared, *self.pipeline("interleaved", 2))
        eventually(lambda: run.site("a").get("ranks", {}).get("ranks") == 2, "a is back")
        DigestBook().await_agreement(run, "ab", beyond=run.newest())
        self.assertIn("pipeline: device 0 of 2", again.log())
        run.stop_all()


class RefusalsTest(PipelinesTest):
    def test_a_schedule_that_does_not_fit_ends_the_site_with_a_sentence(self):
        run = self.new_run(self.config(1))
        run.start_coordinator()
        not_a_schedule = self.folder / "not"
        not_a_schedule.write_text("hello\n")
        two = self.schedule("1f1b", 2)
        cases = {
            "ranks": ((f"--pipeline={two}", "--nproc=3"), r"expected 2 ranks, 1 for each of 2 devices, got 3"),
            "micro-batches": ((f"--pipeline={self.schedule('1f1b', 2, micro_batches=8)}", "--nproc=2"),
                              r"expected inner.micro_batches of the run, 4, got 8"),
            "layers": ((f"--pipeline={self.schedule('interleaved', 4)}", "--nproc=4"),
                       r"expected at most 4 stages, one for each layer of the run, got 8"),
            "shards": ((f"--pipeline={self.schedule('1f1b', 2, '2 shards')}", "--nproc=4"),
                       r"expected with width N shards a schedule that gathers each stage"),
            "text": ((f"--pipeline={not_a_schedule}", "--nproc=2"), r"not:1:1: expected causeway-schedule, got hello"),
            "absent": ((f"--pipeline={self.folder / 'absent'}", "--nproc=2"), r"absent: No such file"),
            "offload": ((f"--pipeline={two}", "--nproc=2", "--device=fake", "--offload_k=2"),
                        r"offload.k: expected auto or resident on a device that computes in float32"),
            "trace": (("--trace=x",), r"--trace: expected --pipeline=FILE with it"),
        }
        for label, (flags, sentence) in cases.items():
            with self.subTest(label):
                worker = run.program(label, "causeway-worker", f"--coordinator={run.grpc}", "--site=a", self.data(), *flags)
                self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
                self.assertRegex(worker.log().splitlines()[-1], sentence)
                self.assertEqual(len([line for line in worker.log().splitlines() if " error " in line]), 1, worker.log())
        self.assertNotIn("joins", run.coordinator.log())
