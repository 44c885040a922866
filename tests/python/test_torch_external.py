"""Models that the sites bring: adapters on a frozen base, tied weights, bfloat16 beside float32, W and its export."""

import ctypes
import unittest

import torch
from torch import nn

import causeway.torch as causeway
from harness import DONE, EndToEndTest, eventually
from test_mixed import needs_library
from torch_site import TOKENS, Tiny

WIDTH, RANK, STEPS = 256, 2, 30


def external_config(**sections):
    return {"run_id": "external", "model": {"kind": "external"}, "run": {"steps": STEPS},
            "sync": {"sync_every": 10, "num_fragments": 1}, "codec": {"up": "float32", "down": "float32"},
            "checkpoint": {"every_rounds": 0}} | sections


class Adapted(nn.Module):
    def __init__(self, base_seed):
        super().__init__()
        generator = torch.Generator().manual_seed(base_seed)
        self.base = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator), requires_grad=False)
        self.a = nn.Parameter(torch.randn(RANK, WIDTH, generator=torch.Generator().manual_seed(1)))
        self.b = nn.Parameter(torch.zeros(WIDTH, RANK))

    def forward(self, x):
        return x @ self.base.T + x @ self.a.T @ self.b.T


@needs_library
class ExternalTest(EndToEndTest):
    def start_run(self, **sections):
        run = self.new_run(external_config(**sections))
        checked = run.program("check", "causewayctl", "config-check", str(run.config_path))
        if checked.wait() != DONE and "external" in checked.log():
            self.skipTest("these programs know no model.kind external yet")
        self.assertEqual(checked.wait(), DONE, checked.log())
        run.start_coordinator()
        return run

    def diloco(self, run, model, site="a", **settings):
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        diloco = causeway.DiLoCo(model, optimizer, coordinator=run.grpc, site=site, **settings)
        self.addCleanup(diloco.close)
        return diloco, optimizer

    def train(self, run, model, loss, **settings):
        diloco, optimizer = self.diloco(run, model, **settings)
        with diloco:
            while not diloco.over:
                loss(model).backward()
                optimizer.step()
                optimizer.zero_grad()
        return diloco

    def test_adapters_cross_and_the_base_does_not(self):
        run = self.start_run()
        self.train(run, Adapted(1), lambda model: 1e-3 * model(torch.ones(3, WIDTH)).square().mean())
        adapters = 2 * RANK * WIDTH * 4
        rounds = STEPS // 10
        # /status is made anew a few times a second.
        eventually(lambda: run.site("a").get("contributions_sent") == rounds, "the status has what the site said last")
        site = run.site("a")
        self.assertEqual(run.status()["parameters"], 2 * RANK * WIDTH)
        self.assertGreaterEqual(site["up_bytes"], adapters * rounds)
        self.assertLess(site["up_bytes"], 2 * adapters * (rounds + 1))

    def test_another_base_is_refused_by_name(self):
        run = self.start_run(membership={"min_sites": 2})
        first, _ = self.diloco(run, Adapted(1), "a")
        second, _ = self.diloco(run, Adapted(2), "b")
        step = ctypes.c_int64()
        first._site._handle.library.site_join(first._site._handle.handle, 100, ctypes.byref(step))  # goes on joining beside the second
        eventually(lambda: run.site("a"), "the first site joins")
        with self.assertRaisesRegex(causeway.RefusedError, "base") as caught:
            second.join()
        self.assertEqual(caught.exception.code, 3)

    def test_a_tied_weight_crosses_once(self):
        run = self.start_run()
        model = Tiny()
        self.train(run, model, lambda model: model.loss(TOKENS))
        expected = sum(parameter.numel() for parameter in model.parameters())
        eventually(lambda: run.status()["parameters"] == expected, "the status has the model's size, the tie once")
        self.assertIs(model.head.weight, model.embed.weight)

    def test_the_anchor_is_what_the_coordinator_exports(self):
        run = self.start_run()
        model = Tiny()
        diloco, optimizer = self.diloco(run, model)
        with diloco:
            while not diloco.over:
                model.loss(TOKENS).backward()
                optimizer.step()
                if diloco.step == 25:
                    with diloco.anchor_parameters():
                        loss = model.loss(TOKENS).item()
                        diloco.report_eval(loss)
                    diloco.export(run.folder / "model")
        saved = torch.load(run.folder / "model" / "model.pt")
        self.assertEqual(sorted(saved), sorted(model.state_dict()))
        exported = run.export()
        self.assertIn("embed.weight", exported)
        eventually(lambda: run.status()["eval_loss_by_site"], "the status has the evaluation")
        self.assertAlmostEqual(run.status()["eval_loss_by_site"]["a"]["loss"], loss, places=6)


if __name__ == "__main__":
    unittest.main()
