"""Parameters on a device: what is read and moved there, and what counts as a step.

On a GPU where PyTorch sees one. Without, the store takes the CPU for a device, with a stand-in for streams and events:
that shows its blocks and its arithmetic, and nothing of CUDA; what needs a GPU is skipped.
"""

import contextlib
import types
from unittest import mock, skipUnless

import causeway
from causeway._library import ADD, BEFORE_CHANGE, KEEP, MIX
from causeway.torch import _store
from llama_runs import LlamaTest, llama_config
from torch_site import OK, READ, TOKENS, WORK, WRITE, FakeSiteTest, Tiny, torch, unittest

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
needs_gpu = skipUnless(GPU, "no GPU that PyTorch sees")


class Marker:
    """A stream or an event of the stand-in: all its work is done already."""

    def __init__(self, device=None):
        pass

    def wait_stream(self, stream):
        pass

    wait_event = record = wait_stream

    def synchronize(self):
        pass

    cuda_stream = 0


def stand_in():
    """Has the store take the CPU for a device."""
    cuda = types.SimpleNamespace(Stream=Marker, Event=lambda: mock.Mock(spec=Marker), stream=contextlib.nullcontext,
                                 current_stream=Marker)
    patches = contextlib.ExitStack()
    for name, value in (("_cuda", cuda), ("_on_host", lambda tensor: False), ("_has_streams", lambda tensor: True),
                        ("_pinned", lambda values: torch.empty(values))):
        patches.enter_context(mock.patch.object(_store, name, value))
    return patches


class DeviceTest(FakeSiteTest):
    def setUp(self):
        super().setUp()
        if not GPU:
            self.enterContext(stand_in())
        self.enterContext(mock.patch.object(_store, "BLOCK_VALUES", 3))
        self.model = Tiny().to(DEVICE)

    def train(self, optimizer, steps=1):
        for _ in range(steps):
            self.model.loss(TOKENS.to(DEVICE)).backward()
            optimizer.step()
            optimizer.zero_grad()

    def moved(self, kind, theta, values, factor, dtype):
        """θ of one tensor after one piece of work."""
        self.model = Tiny(dtype).to(DEVICE)
        weight = self.model.layers[0].weight
        diloco = self.diloco(optimizer=self.sgd(lr=0.0))
        with diloco, torch.no_grad():
            weight.copy_(theta.view_as(weight))
            self.fake.give(kind, tensor=self.indices()["layers.0.weight"], count=16, values=values.tolist(),
                           factor=factor)
            self.fake.answers["site_after_step"] = [WORK, OK]
            diloco.after_step()
            return weight.detach().cpu().flatten()

    def test_what_is_moved_in_blocks_is_what_the_host_computes(self):
        theta, values = torch.randn(16), torch.randn(16)
        for dtype in (torch.float32, torch.bfloat16):
            held = theta.to(dtype)
            for kind, factor, expected in ((WRITE, 0.0, values), (MIX, 0.25, 0.25 * held.float() + 0.75 * values),
                                           (ADD, 0.5, held.float() - 0.5 * values)):
                got = self.moved(kind, held, values, factor, dtype)
                self.assertEqual(got.dtype, dtype)
                if kind == WRITE:
                    self.assertTrue(torch.equal(got, values.to(dtype)))
                torch.testing.assert_close(got, expected.to(dtype))

    def test_a_mix_of_bfloat16_is_rounded_as_on_the_host(self):
        mixed = torch.tensor([0.1, 0.3, -0.7, 3.14159274, 0.1, float("nan"), float("inf")], device=DEVICE)
        theta = torch.tensor([8, 8, 8, 8, 0.25, 8, 8], dtype=torch.bfloat16, device=DEVICE)
        anchor = torch.tensor([1, 1, 1, 1, 0.2501, 1, 1], device=DEVICE)  # the fifth θ is its anchor, rounded
        rounded = _store._round_mix(anchor, theta, mixed).float().tolist()
        self.assertEqual(rounded[:5] + rounded[6:], [0.099609375, 0.298828125, -0.69921875, 3.140625, 0.25, float("inf")])
        self.assertNotEqual(rounded[5], rounded[5])  # NaN

    def test_a_late_read_is_of_the_step_that_asked_for_it(self):
        optimizer, expected = self.sgd(), []
        with self.diloco(optimizer=optimizer) as diloco:
            for _ in range(3):
                self.after_step_gives((READ, "layers.0.weight", 16), flags=BEFORE_CHANGE)
                if GPU:
                    torch.cuda._sleep(10**8)  # cycles: the step is still computed when the read is queued
                self.train(optimizer)
                diloco.next_batch()
                expected.append(self.model.layers[0].weight.detach().clone().cpu().flatten().tolist())
                with torch.no_grad():
                    self.model.layers[0].weight.data.fill_(7.0)  # as an evaluation of averaged weights does
                self.train(optimizer)
                diloco.next_batch()
        self.assertEqual([values for _, _, _, values, _ in self.fake.done], expected)

    def test_theta_is_kept_where_it_lies(self):
        with mock.patch.object(_store, "_cuda_index", lambda device: 3):
            with self.diloco() as diloco:
                self.assertEqual(self.fake.calls.count("site_encode_on"), 1)
                weight = self.model.layers[0].weight
                self.fake.give(KEEP, tensor=self.indices()["layers.0.weight"], first=5, count=11)
                self.fake.answers["site_after_step"] = [WORK, OK]
                diloco.after_step()
                self.assertEqual([theta for theta, _ in self.fake.kept], [weight.data_ptr() + 5 * weight.element_size()])

    def test_parameters_of_fewer_bits_are_encoded_on_the_host(self):
        self.model = Tiny(torch.bfloat16).to(DEVICE)
        with mock.patch.object(_store, "_cuda_index", lambda device: 3), self.diloco():
            self.assertNotIn("site_encode_on", self.fake.calls)

    @needs_gpu
    def test_steps_of_gradient_scaling_count_as_on_the_host(self):
        for fused, counted in ((False, 2), (True, 3)):
            optimizer = torch.optim.AdamW(self.model.parameters(), fused=fused)
            scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
            with self.diloco(optimizer=optimizer) as diloco:
                for spoilt in (False, True, False):
                    with torch.autocast("cuda", torch.float16):
                        loss = self.model.loss(TOKENS.to(DEVICE))
                    scaler.scale(loss).backward()
                    if spoilt:
                        self.model.norm.bias.grad.fill_(float("inf"))
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                self.assertEqual(diloco.step, counted, f"fused {fused}")

    @needs_gpu
    def test_a_compiled_model_is_moved_where_it_lies(self):
        compiled = torch.compile(self.model)
        optimizer = self.sgd()
        with self.diloco(compiled, optimizer) as diloco:
            for _ in range(2):
                torch.nn.functional.cross_entropy(compiled(TOKENS.to(DEVICE)).flatten(0, 1),
                                                  TOKENS.to(DEVICE).flatten()).backward()
                self.after_step_gives((WRITE, "layers.0.weight", [0.5] * 16))
                optimizer.step()
            self.assertEqual(diloco.step, 2)
            self.assertTrue(torch.all(self.model.layers[0].weight == 0.5))


@needs_gpu
class RealRunTest(LlamaTest):
    def test_a_site_on_a_gpu_and_one_on_the_host_hold_the_same_anchor_and_learn(self):
        for codec in ("float32", "int4"):
            run = self.start_run(llama_config(codec))
            self.start_torch(run, "a", "--device=cuda")
            self.start_torch(run, "b")
            self.finish(run)  # fails where digests of two sites differ
            self.assertLess(run.training["a", 200], 0.7 * run.training["a", 1], codec)


class SideCopiesTest(unittest.TestCase):
    """How shards that other ranks have sent to the leader's device come to its host."""

    def setUp(self):
        self.said = []
        self.inside = False
        if not GPU:
            self.enterContext(stand_in())
            self.enterContext(mock.patch.object(_store._cuda, "stream", self.stream))
        self.enterContext(mock.patch.object(_store, "BLOCK_VALUES", 3))

    @contextlib.contextmanager
    def stream(self, side):
        self.inside = True
        yield
        self.inside = False

    def wait(self):
        self.said.append(self.inside or GPU)

    def test_values_come_block_by_block_with_their_bits_after_what_is_waited_for(self):
        data = torch.randn(10, device=DEVICE)
        data[3] = -0.0
        side = _store.SideCopies.where_needed(data)
        side.after(self.wait)
        self.assertEqual(self.said, [True])  # on the stream of the copies
        places = torch.zeros(4), torch.zeros(2, 5)[:, 1:4]  # the library's memory, of rows and of columns
        side.bring(data[:4], places[0])
        side.bring(data[4:], places[1])
        self.assertEqual(places[0].view(torch.int32).tolist(), data[:4].cpu().view(torch.int32).tolist())
        self.assertTrue(torch.equal(places[1], data[4:].cpu().view(2, 3)))

    def test_the_pinned_block_is_the_only_one_and_none_is_needed_on_the_host(self):
        made = []
        with mock.patch.object(_store, "_pinned", lambda values: made.append(values) or torch.empty(values)):
            side = _store.SideCopies.where_needed(torch.randn(10, device=DEVICE))
            for _ in range(2):
                side.bring(torch.ones(10, device=DEVICE), torch.empty(10))
        self.assertEqual(made, [3])
        with mock.patch.object(_store, "_has_streams", lambda tensor: False):
            self.assertIsNone(_store.SideCopies.where_needed(torch.empty(4)))


def capturing():
    """As inside `with torch.cuda.graph(…)`."""
    return mock.patch.multiple(torch.cuda, is_initialized=lambda: True, is_current_stream_capturing=lambda: True)


class CaptureTest(FakeSiteTest):
    def test_a_step_inside_a_graphs_capture_is_refused_and_the_next_one_outside_is_taken(self):
        optimizer = self.sgd(lr=0.1)
        with self.diloco(optimizer=optimizer) as diloco:
            self.model.loss(TOKENS).backward()
            before = self.model.layers[0].weight.clone()
            with capturing():
                with self.assertRaisesRegex(causeway.FailedError, "outside of a CUDA graph's capture, got one inside"):
                    optimizer.step()
            self.assertTrue(torch.equal(self.model.layers[0].weight, before))
            optimizer.step()
            self.assertEqual(diloco.step, 1)

    def test_a_call_of_after_step_inside_a_graphs_capture_is_refused(self):
        with self.diloco(optimizer=None) as diloco:
            with capturing():
                with self.assertRaisesRegex(causeway.FailedError, "a sync cannot be captured"):
                    diloco.after_step()
            diloco.after_step()
            self.assertEqual(diloco.step, 1)


if __name__ == "__main__":
    unittest.main()
