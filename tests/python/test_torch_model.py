"""Which tensors of a PyTorch model become part of a run, and which are refused by name."""

import os
import tempfile
import types

from causeway.torch import _anchor
from torch_site import FakeSiteTest, Tiny, causeway, nn, torch, unittest


class Lora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.zeros(2, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


class ListedTest(FakeSiteTest):
    def test_names_shapes_and_dtypes_in_the_models_order(self):
        self.diloco(optimizer=self.sgd())
        self.assertEqual(list(self.listed()), ["embed.weight", "layers.0.weight", "layers.0.bias", "layers.1.weight",
                                               "layers.1.bias", "norm.weight", "norm.bias", "head.weight"])
        self.assertEqual(self.listed()["embed.weight"], {"name": "embed.weight", "shape": [7, 4], "dtype": "float32"})

    def test_a_tied_weight_is_one_tensor(self):
        self.diloco(optimizer=self.sgd())
        self.assertEqual(self.listed()["head.weight"], {"name": "head.weight", "shape": [7, 4], "dtype": "float32",
                                                        "alias_of": "embed.weight"})

    def test_wrappers_change_no_name(self):
        plain = list(name for name, _ in self.model.named_parameters(remove_duplicate=False))
        self.model.layers[0] = torch.compile(self.model.layers[0], backend="eager")
        wrapper = torch.distributed.algorithms._checkpoint.checkpoint_wrapper.checkpoint_wrapper
        self.model.layers[1] = wrapper(self.model.layers[1])
        self.diloco(torch.compile(self.model, backend="eager"), self.sgd())
        self.assertEqual(list(self.listed()), plain)

    def test_adapters_alone_are_synced_and_the_base_is_compared(self):
        model = nn.Sequential(Lora(nn.Linear(5, 3, dtype=torch.float64)), nn.Linear(3, 1).to(torch.bfloat16))
        model[1].requires_grad_(False)
        self.diloco(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad]))
        self.assertEqual([name for name, tensor in self.listed().items() if not tensor.get("frozen")], ["0.a", "0.b"])
        base = self.listed()["0.base.weight"]
        self.assertEqual((base["dtype"], base["frozen"]), ("float64", True))
        self.assertEqual(base["values_digest"], f"{0xC0FFEE + 15 * 8:016x}")
        self.assertEqual(self.listed()["1.weight"]["values_digest"], f"{0xC0FFEE + 3 * 2:016x}")

    def test_without_an_optimizer_what_requires_gradients_is_synced(self):
        self.model.norm.requires_grad_(False)
        self.diloco()
        self.assertEqual([name for name, tensor in self.listed().items() if tensor.get("frozen")],
                         ["norm.weight", "norm.bias"])

    def test_what_no_optimizer_has_is_taken_for_frozen_and_said(self):
        with self.assertLogs("causeway", "WARNING") as logs:
            self.diloco(optimizer=torch.optim.SGD(self.model.layers.parameters()))
        self.assertIn("3 parameters have requires_grad but are in no optimizer that was passed: taken for frozen; the "
                      "first is embed.weight", logs.output[0])
        self.assertTrue(self.listed()["norm.bias"]["frozen"])

    def test_masters_are_synced_in_place_of_the_models_parameters(self):
        model = Tiny(torch.bfloat16)
        masters = {name: p.detach().float() for name, p in model.named_parameters()}
        self.diloco(model, torch.optim.SGD(masters.values()), params=masters)
        self.assertEqual({tensor["dtype"] for tensor in self.listed().values() if "alias_of" not in tensor},
                         {"float32"})

    def test_kinds_are_passed_on(self):
        self.diloco(optimizer=self.sgd(), kinds={"layers.0.weight": "expert"})
        self.assertEqual(self.listed()["layers.0.weight"]["kind"], "expert")
        self.assertNotIn("kind", self.listed()["layers.1.weight"])

    def test_wrappers_names_are_stripped_and_a_module_that_is_in_it_twice_counts_once(self):
        fabric = nn.Module()
        fabric._forward_module = fabric._original_module = self.model
        self.diloco(fabric, self.sgd(fabric))
        self.assertEqual(list(self.listed()), [name for name, _ in self.model.named_parameters(remove_duplicate=False)])

    def test_what_saves_itself_is_found_in_its_wrappers(self):
        class Saved(nn.Linear):
            def save_pretrained(self, folder):
                (folder / "saved").write_text("")
        for wrap in (lambda model: model, nn.DataParallel, torch.compile):
            with tempfile.TemporaryDirectory() as folder:
                _anchor.export(wrap(Saved(2, 2)), folder, None, types.SimpleNamespace(world=1, leads=True), None)
                self.assertEqual(["saved"], os.listdir(folder))

    def test_parameters_without_values_are_left_out(self):
        model = nn.ParameterDict({"a": nn.Parameter(torch.ones(3)), "none": nn.Parameter(torch.ones(0, 4))})
        optimizer = self.sgd(model)
        with self.diloco(model, optimizer):
            self.assertEqual(list(self.listed()), ["a"])
            model["a"].sum().backward()
            optimizer.step()

    def test_parameters_of_one_storage_are_one_tensor_and_parts_of_one_are_not(self):
        flat = torch.zeros(8)
        model = nn.ParameterDict({"a": nn.Parameter(flat[:4]), "b": nn.Parameter(flat[4:]), "c": nn.Parameter(flat[:4])})
        self.diloco(model, self.sgd(model))
        self.assertEqual(self.listed()["c"]["alias_of"], "a")
        self.assertNotIn("alias_of", self.listed()["b"])

    def test_what_is_trained_later_is_synced_from_the_start(self):
        self.model.layers.requires_grad_(False)
        self.diloco(optimizer=self.sgd(), trained_later=["layers.1", "layers.0.bias"])
        frozen = {name for name, tensor in self.listed().items() if tensor.get("frozen")}
        self.assertEqual(frozen, {"layers.0.weight"})

    def test_batch_norms_and_low_precision_mixes_are_said(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(torch.bfloat16)
        with self.assertLogs("causeway", "WARNING") as logs:
            self.diloco(model, self.sgd(model))
        self.assertIn("running statistics of 1 normalisations, the first 1, stay this site's own", logs.output[0])
        self.assertIn("fragment_update_alpha is 0.3", logs.output[1])


class RefusedTest(FakeSiteTest):
    """Each is refused before anything is sent, with what was expected and what came."""

    def check(self, sentence, model=None, optimizer=None, **settings):
        with self.assertRaisesRegex(causeway.ConfigError, sentence) as caught:
            self.diloco(model, optimizer, **settings)
        self.assertTrue(caught.exception.expected and caught.exception.got)
        self.assertNotIn("run_open", self.fake.calls)

    def test_dtypes_that_cannot_be_synced(self):
        for dtype in (torch.float64, torch.complex64):
            model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(3, dtype=dtype))})
            self.check(f"parameter w: expected float32, bfloat16 or float16 .* got {str(dtype)[6:]}", model,
                       torch.optim.SGD(model.parameters()))

    def test_a_model_without_values(self):
        with torch.device("meta"):
            model = Tiny()
        self.check("parameter embed.weight: expected values, got a tensor on the device meta", model, self.sgd(model))

    def test_nothing_that_is_trained(self):
        self.check("model: expected a parameter that is trained, got none", self.model.requires_grad_(False))

    def test_an_optimizer_of_other_parameters(self):
        self.check("optimizer: expected the model's own parameters, got 7 others.*params=", optimizer=self.sgd(Tiny()))

    def test_masters_in_the_optimizers_state(self):
        optimizer = self.sgd()
        optimizer.state[self.model.norm.weight]["master_param"] = torch.zeros(4)
        self.check('got masters of its own in state."master_param".: pass params=', optimizer=optimizer)

    def test_masters_that_do_not_fit(self):
        self.check("params: expected names of the model's parameters, got nonsense", params={"nonsense": torch.ones(1)})
        self.check(r"params\['norm.bias'\]: expected shape \[4\], got \[5\]", params={"norm.bias": torch.ones(5)})
        self.check("expected a tensor, got list", params={"norm.bias": [1]})

    def test_kinds_of_no_parameter(self):
        self.check("kinds: expected names of the model's parameters, got nonsense", kinds={"nonsense": "head"})

    def test_what_is_trained_later_and_is_no_parameter(self):
        self.check("trained_later: expected names of the model's parameters or modules, got 'layer'", trained_later=["layer"])
        self.check("trained_later: expected a list of names of parameters or modules, got the string 'layers'",
                   trained_later="layers")

    def test_a_loss_with_parameters_beside_the_model(self):
        optimizer = torch.optim.SGD([*self.model.parameters(), nn.Parameter(torch.ones(2))])
        self.check(r"got 1 others, the first of shape \[2\]: of a loss .* pass nn.ModuleList", optimizer=optimizer)

    def test_lazy_modules(self):
        model = nn.Sequential(nn.LazyLinear(3))
        self.check("parameter 0.weight: expected values, got those of a lazy module, .*: run one batch", model)

    def test_parameters_that_share_some_of_their_values(self):
        flat = torch.zeros(8)
        model = nn.ParameterDict({"a": nn.Parameter(flat[:5]), "b": nn.Parameter(flat[3:])})
        self.check("parameter b: expected values of its own, got some that are also those of a: tie them", model, self.sgd(model))
        table = torch.zeros(4, 3)
        model = nn.ParameterDict({"a": nn.Parameter(table), "b": nn.Parameter(table.T)})
        self.check("parameter b: expected values of its own, got some that are also those of a: tie them", model, self.sgd(model))

    def test_engines_that_hide_their_parameters(self):
        engine = type("DeepSpeedEngine", (nn.Module,), {"__module__": "deepspeed.runtime.engine"})()
        self.check("got DeepSpeedEngine: pass engine.module, and params=", engine)
        self.model.layers[0] = type("FullyShardedDataParallel", (nn.Module,), {})()
        self.check("got FullyShardedDataParallel at layers.0: shard with torch.distributed.fsdp.fully_shard")

    def test_things_that_are_no_model_optimizer_or_scheduler(self):
        self.check("model: expected a torch.nn.Module, got list", [1])
        self.check("optimizer: expected a torch.optim.Optimizer or several, got str", optimizer="adamw")
        self.check("schedulers: expected learning-rate schedulers of torch.optim, got int", schedulers=[3])

    def test_arguments_of_another_type(self):
        for wrong, sentence in (({"params": [1]}, r"params: expected \{name: master\}, got \[1\]"),
                                ({"kinds": ["a"]}, "kinds: expected"), ({"data": 5}, "data: expected"),
                                ({"after_apply": 5}, "after_apply: expected a function, got 5"),
                                ({"on_rejoin": "x"}, "on_rejoin: expected a function, got 'x'"),
                                ({"process_group": 3}, "process_group: expected a torch.distributed.ProcessGroup, got 3")):
            self.check(sentence, **wrong)

    def test_several_ranks_without_a_process_group(self):
        sentence = "expected a process group of the 2 ranks that WORLD_SIZE says, got none: call .*init_process_group first"
        with unittest.mock.patch.dict("os.environ", {"WORLD_SIZE": "2"}):
            self.check(sentence, optimizer=self.sgd())

    def test_a_host_with_less_memory_than_the_run_takes(self):
        sentence = "memory: expected 0.00 GB on the host of rank 0, for 0.0 M parameters, got 0.00 GB available"
        with unittest.mock.patch("causeway._memory.available_bytes", lambda: 1000), self.assertRaisesRegex(
                causeway.ConfigError, sentence):
            self.diloco(optimizer=self.sgd())
        self.assertNotIn("site_join", self.fake.calls)

    def test_an_old_pytorch(self):
        with unittest.mock.patch.object(torch, "__version__", "2.3.1+cpu"):
            self.check(r"torch: expected 2.4 or newer, got 2.3.1\+cpu", optimizer=self.sgd())

    def test_names_that_only_wrappers_tell_apart(self):
        model = nn.ModuleDict({"module": nn.ModuleDict({"a": nn.Linear(1, 1)}), "a": nn.Linear(1, 1)})
        self.check(r"expected names that differ without .*module\.", model, self.sgd(model))


if __name__ == "__main__":
    unittest.main()
