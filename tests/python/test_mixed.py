"""numpy sites and native workers in one run: the coordinator's digests at every version, the bits of an all-native run."""

import itertools
import os
import pathlib
import sys
import unittest

import numpy

import causeway
from harness import DONE, DigestBook, EndToEndTest, check_all, eventually, merged, synthetic

HERE = pathlib.Path(__file__).parent
LIBRARY = os.environ.get("CAUSEWAY_LIBRARY", "")
CODECS = ["float32", "bfloat16", "int8", "int4", "e3m0", "sign", "rotated_sign", "rotated_lm2", "rotated_lm4", "topk"]
SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
SHAPES = [[1], [257], [3, 1500], [4096]]  # one value, a block and one, a unit and more, exactly a unit
AT_ONCE = 2

needs_library = unittest.skipUnless(os.path.exists(LIBRARY), f"no library at {LIBRARY or '$CAUSEWAY_LIBRARY'}")


def config_of(up, down, feedback, **sections):
    config = synthetic(SITES, SHAPES, run={"steps": 61}, model={"gradient": {"kind": "noise"}},
                       sync={"sync_every": 6, "num_fragments": 4, "fragment_update_alpha": 0.5},
                       codec={"up": up, "down": down, "feedback_up": feedback, "feedback_down": feedback})
    return merged(config, sections)


@needs_library
class MixedTest(EndToEndTest):
    def start_numpy(self, run, site):
        out = run.folder / f"local-{site}.npz"
        run.workers[site] = self.program(run.folder, f"numpy-{site}", sys.executable, HERE / "synthetic_site.py",
                                         run.grpc, site, out)
        return out

    def run_with(self, config, numpy_sites):
        """A whole run; {site: its parameters at the end}. Digests are the coordinator's all the time."""
        run = self.new_run(config)
        run.start_coordinator()
        outs = {site: self.start_numpy(run, site) for site in numpy_sites}
        run.start_workers(*(site for site in SITES if site not in numpy_sites))
        book = DigestBook()

        def over():
            status = run.status()
            book.note(status)
            return status["state"] == "done"

        eventually(over, f"the run is done; numpy sites: {numpy_sites}")
        for fragment, site in itertools.product(run.status()["fragments"], SITES):
            self.assertEqual(book.agreed(site, fragment["id"]), fragment["version"], f"site {site}")
        for worker in run.workers.values():
            self.assertEqual(worker.wait(), DONE, worker.log()[-2000:])
        run.stop_coordinator()
        return {site: dict(numpy.load(outs[site])) if site in outs else run.local(site) for site in SITES}

    def check(self, up, down, feedback, numpy_sites=("eu",), **sections):
        config = config_of(up, down, feedback, **sections)
        native = self.run_with(config, ())
        mixed = self.run_with(config, numpy_sites)
        for site in SITES:
            self.assert_same_bits(native[site], mixed[site], f"site {site}; up {up}, down {down}, feedback {feedback}")

    def test_every_codec_gives_the_bits_of_an_all_native_run(self):
        check_all(self.check, [(codec, codec, 1) for codec in CODECS], AT_ONCE)

    def test_codecs_of_two_kinds_without_feedback_and_on_every_seat(self):
        cases = [("onebit_adam_sign", "rotated_lm2", 1, ("asia",)), ("int4", "float32", 0, ("us",)),
                 ("sign", "bfloat16", 1, ("asia", "us")), ("int8", "int4", 1, tuple(SITES))]
        check_all(self.check, cases, AT_ONCE)

    def test_delays_and_mixes_of_every_kind(self):
        for delay, alpha in ((0, 0.0), (3, 1.0), (2, 0.3)):
            self.check("int4", "int4", 1, sync={"fragment_sync_delay": delay, "fragment_update_alpha": alpha})

    def test_a_site_knows_what_it_has_exchanged(self):
        run = self.new_run(config_of("int4", "int8", 1))
        run.start_coordinator()
        run.start_workers("asia", "us")
        parameters = {f"t{i}": numpy.zeros(shape, numpy.float32) for i, shape in enumerate(SHAPES)}
        with causeway.Site(parameters, coordinator=run.grpc, site="eu") as site:
            while not site.over:
                site.after_step()
            progress = site.progress()
        self.assertEqual((progress["codec_up"], progress["codec_down"]), ("int4", "int8"))
        self.assertAlmostEqual(progress["merged_weight"], 1 / 3, places=6)
        self.assertGreater(progress["up_bytes"], 1000)
        self.assertGreater(progress["down_bytes"], 1.5 * progress["up_bytes"])
        run.await_done()
        run.stop_coordinator()


if __name__ == "__main__":
    unittest.main()
