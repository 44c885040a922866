"""Every site's anchors are the coordinator's, bit for bit, after every commit and with every codec."""

import itertools
import json
import unittest

import numpy

from harness import DONE, DigestBook, EndToEndTest, check_all, eventually, synthetic

CODECS = ["float32", "bfloat16", "int8", "int4", "e3m0", "sign", "rotated_sign", "rotated_lm2", "rotated_lm4", "topk"]
SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
SHAPES = [[1], [257], [3, 1500], [4096]]  # one value, a block and one, a unit and more, exactly a unit
AT_ONCE = 2


def config_of(up, down, feedback, **more):
    return synthetic(SITES, SHAPES, run={"steps": 61},
                     model={"step_ms": 2, "init": "seeded", "gradient": {"kind": "noise"}},
                     sync={"sync_every": 6, "num_fragments": 4, "fragment_sync_delay": 1, "fragment_update_alpha": 0.5},
                     codec={"up": up, "down": down, "feedback_up": feedback, "feedback_down": feedback, **more},
                     membership={"lease_ms": 2000})


def without_clocks(status):
    """A status without what changes while nothing happens: times, rates over the last seconds, the disk."""
    status["uptime_s"] = status["unix_ms"] = status["disk"] = 0
    for site in status["sites"]:
        site["up_bytes_per_s"] = site["down_bytes_per_s"] = 0
        site["up_mean_bytes_per_s"] = site["down_mean_bytes_per_s"] = 0
    return status


class DigestsTest(EndToEndTest):
    def check(self, up, down, feedback, **more):
        run = self.new_run(config_of(up, down, feedback, **more))
        run.start_coordinator()
        run.start_workers(*SITES)
        book = DigestBook()

        def over():
            status = run.status()
            book.note(status)
            return status["state"] == "done"

        what = f"up {up}, down {down}, feedback {feedback}"
        eventually(over, f"the run is done; {what}")
        status = run.status()
        self.assertEqual([fragment["version"] for fragment in status["fragments"]], [10, 9, 9, 10], what)
        for fragment in status["fragments"]:
            for site in status["sites"]:
                expected = {"version": fragment["version"], "digest": fragment["digest"]}
                self.assertEqual(site["digests"][str(fragment["id"])], expected, f"{what}: site {site['name']}")
        with_residual = feedback > 0 and up != "float32"
        for site in status["sites"]:
            self.assertEqual(site["residual_norm"] > 0, with_residual, f"{what}: {site}")
        run.await_done()
        run.stop_coordinator()

    def test_sites_report_the_coordinators_digests(self):
        cases = [(codec, codec, feedback) for codec, feedback in itertools.product(CODECS, [0, 1])]
        cases += [("sign", "bfloat16", 1), ("rotated_sign", "int8", 1), ("int4", "rotated_lm4", 1),
                  ("rotated_lm2", "rotated_sign", 1), ("onebit_adam_sign", "rotated_lm2", 1),
                  ("topk32", "sparse", 1), ("topk", "sparse", 0)]
        check_all(self.check, cases, AT_ONCE)

    def test_compressed_chunks_and_exempt_tensors_too(self):
        self.check("int4", "int8", 1, zstd=True)
        self.check("rotated_sign", "rotated_sign", 1, zstd=True, exempt=["matrix"])

    def test_without_a_delay_and_a_local_share_sites_end_on_the_exported_parameters(self):
        config = merge_at_once(config_of("int4", "int4", 1))
        run = self.new_run(config)
        run.start_coordinator()
        run.start_workers(*SITES)
        run.await_done()
        shown = run.program("status", "causewayctl", "status", "--json", f"--coordinator={run.grpc}")
        self.assertEqual(shown.wait(), DONE)
        self.assertEqual(without_clocks(json.loads(shown.output())), without_clocks(run.status()))
        exported = run.export()
        for site in SITES:
            self.assert_same_bits(exported, run.local(site), site)
        self.assertGreater(numpy.unique(exported["t2"]).size, 1000, "noise leaves no two values alike")


def merge_at_once(config):
    """The last step then ends with the updates of all fragments, and θ = W."""
    config["sync"] |= {"fragment_sync_delay": 0, "fragment_update_alpha": 0, "num_fragments": 1}
    config["run"]["steps"] = 60
    return config


if __name__ == "__main__":
    unittest.main()
