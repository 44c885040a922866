"""With H = 1, one fragment, no delay and outer SGD(1), the run is gradient averaging at every step: several sites
together do what one process does on the mean of their gradients.
"""

import json
import random
import subprocess
import unittest

import numpy

from harness import BIN_DIR, DEADLINE_S, DONE, EndToEndTest, synthetic

EVERY_STEP = {
    "sync": {"sync_every": 1, "num_fragments": 1, "fragment_sync_delay": 0, "fragment_update_alpha": 0},
    "outer": {"optimizer": "sgd", "lr": 1},
    "codec": {"up": "float32", "down": "float32", "feedback_up": 0, "feedback_down": 0},
}

# The learning rate is small on purpose: at ten times as much, training amplifies the last bit of a sum, in which the
# two must differ, until their losses have nothing in common.
LLAMA = {
    "run_id": "e2e",
    "run": {"steps": 500},
    "model": {"kind": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 32},
    "inner": {"optimizer": "sgd", "lr": 0.02, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0, "clip": 0,
              "batch_size": 2},
    "data": {"mode": "shared"},
    "membership": {"min_sites": 2},
    "eval": {"every_rounds": 0},
    "checkpoint": {"every_rounds": 0},
    **EVERY_STEP,
}


class AveragingTest(EndToEndTest):
    def test_dyadic_gradients_give_the_bits_of_one_process_on_their_mean(self):
        steps, lr = 64, 2.0**-4
        for ks in ({"a": 3, "b": -7}, {"a": 5, "b": -3, "c": 1, "d": 9}):
            exported = []
            mean = sum(ks.values()) / len(ks)
            for sites in (ks, {"alone": mean}):
                config = synthetic({site: k * 2.0**-8 for site, k in sites.items()}, [[300], [2, 5]],
                                   run={"steps": steps}, inner={"lr": lr}, **EVERY_STEP)
                run = self.new_run(config)
                run.start_coordinator()
                run.start_workers(*sites)
                run.await_done()
                exported.append(run.export())
                run.stop_coordinator()
            self.assert_same_bits(exported[1], exported[0], f"{len(ks)} sites against one")
            end = numpy.float32(0.25 - steps * lr * mean * 2.0**-8)  # exact: all of it is dyadic
            self.assertEqual(set(exported[0]["t0"].flat), {end})

    def evaluate(self, model, data):
        evaluator = self.program(self.folder, f"evaluate-{model.parent.name}", "causeway-worker", f"--evaluate={model}",
                                 f"--data={data}", "--sample_bytes=0")
        self.assertEqual(evaluator.wait(), DONE, evaluator.log())
        return json.loads(evaluator.output())["eval_loss"]

    def test_llama_ends_at_the_loss_of_one_process_on_the_mean_gradient(self):
        data = self.folder / "text"
        words = ["the", "causeway", "joins", "two", "islands", "at", "low", "tide", "and", "no", "site", "waits\n"]
        data.write_text(" ".join(random.Random(1).choices(words, k=6000)))
        run = self.new_run(LLAMA)
        run.start_coordinator()
        for site in ("a", "b"):
            run.start_worker(site, f"--data={data}")
        run.await_done()
        run.export()
        run.stop_coordinator()

        one = self.folder / "one" / "model"
        subprocess.run([BIN_DIR / "tests" / "e2e" / "averaged_llama", run.config_path, data, one, "a", "b"], check=True,
                       timeout=DEADLINE_S)
        expected = self.evaluate(one, data)
        self.assertLess(expected, 3.0, "the model has learnt something: log(256) is 5.5")
        self.assertAlmostEqual(self.evaluate(run.folder / "export", data) / expected, 1, delta=1e-5)


if __name__ == "__main__":
    unittest.main()
