"""Scripts of users, run twice: as sites of a real run, and by plain PyTorch with DiLoCo's arithmetic in thirty lines.

    def script(site):                                       # one site; threads of this process
        model = site.model(lambda: nn.Linear(4, 3))         # the same values at each site and in each run
        with site.diloco(model, optimizer) as diloco:
            for batch in diloco.loop(site.batches):
                …; optimizer.step(); site.done()            # done() is for the replay alone

The run has to export what the replay ends with. Outer SGD with learning rate 1, so that W is the mean.
"""

import contextlib
import threading

import torch

import causeway.torch as causeway
from causeway import names
from harness import EndToEndTest
from test_mixed import needs_library

CLOSE = 1e-6  # float32 codecs, and sums of another order
LIMIT_S = 60  # for a thread
_MAKING = threading.Lock()  # PyTorch has one seed for all threads


class Site:
    """The part that is alike in both runs."""

    def __init__(self, index):
        self.index = index
        generator = torch.Generator().manual_seed(100 + index)
        self.batches = [torch.randn(8, 6, generator=generator) for _ in range(5)]
        self.error = None

    def model(self, make, seed=1):
        with _MAKING:
            torch.manual_seed(seed)
            return make()

    def run(self, script):
        try:
            script(self)
        except BaseException as error:
            self.error = error
            self.failed()

    def failed(self):
        pass


class RealSite(Site):
    def __init__(self, index, coordinator):
        super().__init__(index)
        self.coordinator = coordinator

    def diloco(self, model, optimizer, replayed=None, **settings):
        return causeway.DiLoCo(model, optimizer, coordinator=self.coordinator, site=f"s{self.index}", **settings)

    def done(self):
        pass


class Replay:
    """The run of all replayed sites. Syncs at multiples of `every`; what was sent at step t is applied at t + delay."""

    def __init__(self, sites, steps, every, delay, alpha):
        self.steps, self.every, self.delay, self.alpha = steps, every, delay, alpha
        self.barrier = threading.Barrier(sites, self.sync)
        self.sites = [ReplayedSite(index, self) for index in range(sites)]
        self.step, self.sent, self.anchor = 0, {}, {}

    @torch.no_grad()
    def sync(self):
        self.step += 1
        if self.step % self.every == 0:
            of_sites = [dict(site.crossing()) for site in self.sites]
            self.sent[self.step] = {name: torch.stack([each[name].detach() for each in of_sites]).double().mean(0).float()
                                    for name in of_sites[0]}
            self.anchor = self.sent[self.step]
        for name, value in self.sent.get(self.step - self.delay, {}).items():
            for site in self.sites:
                theta = dict(site.crossing())[name]
                theta.data.copy_(self.alpha * theta.data + (1 - self.alpha) * value)
                if name in site.model_parameters:
                    site.model_parameters[name].data.copy_(theta.data)


class ReplayedSite(Site):
    def __init__(self, index, replay):
        super().__init__(index)
        self.replay, self.step = replay, 0

    @contextlib.contextmanager
    def diloco(self, model, optimizer, replayed=None, **settings):
        """`replayed`: the names that cross; None: all. Settings are the product's alone."""
        self.model_parameters = {names.plain(name): each for name, each in model.named_parameters()}
        trained = self.model_parameters
        if isinstance(optimizer, causeway.OffloadedAdamW):
            trained = optimizer.masters(trained.items(), settings.get("trained_later", ()))
        named = [(name, each) for name, each in trained.items() if replayed is None or name in replayed]
        means = settings.get("buffers") == "mean"
        self.model_parameters |= dict(model.named_buffers())
        self.crossing = lambda: named + [each for each in model.named_buffers() if means and each[1].is_floating_point()]
        self.replay.anchor = self.replay.anchor or {name: each.detach().clone() for name, each in self.crossing()}
        yield self

    def loop(self, batches):
        while True:
            for batch in batches:
                if self.step >= self.replay.steps:
                    return
                yield batch

    def report(self, **_):
        pass

    def done(self):
        self.step += 1
        self.replay.barrier.wait(60)

    def failed(self):
        self.replay.barrier.abort()


def run_threads(sites, script):
    threads = [threading.Thread(target=site.run, args=(script,), daemon=True) for site in sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return [thread.is_alive() for thread in threads]


@needs_library
class ReplayTest(EndToEndTest):
    """Attributes: run, the latest."""

    def config(self, steps=12, every=4, delay=0, alpha=0.0, sites=2, **sections):
        return {"run_id": "script", "run": {"steps": steps}, "model": {"kind": "external"},
                "sync": {"sync_every": every, "num_fragments": 1, "fragment_sync_delay": delay,
                         "fragment_update_alpha": alpha},
                "outer": {"optimizer": "sgd", "lr": 1.0}, "codec": {"up": "float32", "down": "float32"},
                "membership": {"min_sites": sites}} | sections

    def real(self, script, sites=2, config=None, **options):
        """The sites of a real run, after it. Their errors are in them."""
        self.run = self.new_run(config or self.config(sites=sites, **options))
        self.run.start_coordinator()
        real = [RealSite(index, self.run.grpc) for index in range(sites)]
        self.assertEqual([False] * sites, run_threads(real, script), "some sites have not ended")
        return real

    def replayed(self, script, sites=2, steps=12, every=4, delay=0, alpha=0.0):
        """{name: W} at the end."""
        replay = Replay(sites, steps, every, delay, alpha)
        run_threads(replay.sites, script)
        for site in replay.sites:
            if site.error is not None:
                raise site.error
        return {name: value.numpy() for name, value in replay.anchor.items()}

    def check(self, script, sites=2, **options):
        """W of the run is that of the replay."""
        for site in self.real(script, sites, **options):
            if site.error is not None:
                raise site.error
        expected, got = self.replayed(script, sites, **options), self.run.export()
        self.assertEqual(expected.keys(), got.keys())
        for name, value in expected.items():
            self.assertLess(float(abs(value - got[name]).max()), CLOSE, f"{name}: not what the replay ends with")
        self.run.stop_coordinator()

    def check_refused(self, script, error, sentence, sites=2, **options):
        """Each site ends with this error."""
        for site in self.real(script, sites, **options):
            self.assertIsInstance(site.error, error)
            self.assertRegex(str(site.error), sentence)
