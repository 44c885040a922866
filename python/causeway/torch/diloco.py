"""A PyTorch script as a site of a run.

    with causeway.DiLoCo(model, optimizer, coordinator="hub:7077", site="eu") as diloco:     # joined: θ is the run's
        for batch in diloco.loop(loader):
            loss = …; loss.backward(); optimizer.step(); optimizer.zero_grad()               # step() counts, and syncs
            diloco.report(loss=loss, tokens=batch.numel())

    optimizer.step ─► pre-hook ─► θ changes ─► post-hook: a step is done ─► the script's next forward, or batch, or step:
    pieces of θ are taken, or move
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import distributed, nn

from causeway import _memory, _options, names
from causeway._handles import DRAIN_S
from causeway._log import LOGGER
from causeway._participant import OpenedSite, Participant
from causeway.errors import ConfigError, Error, FailedError, RestoreError, mismatch
from causeway.torch import (_alone, _anchor, _arguments, _assets, _capture, _model, _optimizers, _reported, _shards,
                            _sites, _world)
from causeway.torch._anchor import Export
from causeway.torch._deferred_step import DeferredStep
from causeway.torch._hidden_masters import HiddenMasters
from causeway.torch._missing_steps import MissingSteps
from causeway.torch._own_values import OwnValues
from causeway.torch._ranks import Ranks
from causeway.torch._schedulers import Schedulers
from causeway.torch._state import SiteState
from causeway.torch._trained import TrainedTensors

RANK_TIMEOUT_S = 600.0
_LOOK_S = 1.0  # between two readings of the loss, each of which waits for the device

Batch = TypeVar("Batch")
Loss = float | torch.Tensor


class DiLoCo(Participant):
    """Takes part in a run with the parameters of a PyTorch model.

    A context manager: entering joins, leaving leaves. All calls from the thread that made it, but `stop` and `progress`,
    and on all ranks of the site in the same order.
    """

    def __init__(self, model: nn.Module, optimizer: Any = None, *, coordinator: str | None = None,
                 site: str | None = None, process_group: distributed.ProcessGroup | None = None,
                 params: Mapping[str, torch.Tensor] | None = None, kinds: Mapping[str, str] | None = None,
                 after_apply: Callable[[], None] | None = None,
                 trained_later: Sequence[str] = (), local: Sequence[str] = (), buffers: str = "local",
                 schedulers: Iterable[Any] | Schedulers = (),
                 on_rejoin: Callable[[int], None] | None = None, data: Mapping[str, object] | None = None,
                 assets: Any = None, alone: bool = False, **settings: Any) -> None:
        """Asks the coordinator for the run's description, and declares the model. On all ranks of the site alike.

        Args:
            model: any module, also compiled, with activation checkpointing, replicated (DDP), sharded (fully_shard,
                tensor parallelism), or a stage of a pipeline.
            optimizer: what trains it, or several: a step is done when each has stepped. None: the script calls
                `after_step`.
            coordinator, site: HOST:PORT (several shards, with commas) and this site's name; else the environment
                variables CAUSEWAY_COORDINATOR and CAUSEWAY_SITE.
            process_group: of this site's ranks; None: all that there are. Its rank 0 leads.
            params: {name: master}: float32 tensors of the parameter's shape that the optimizer trains in place of it.
                Those of OffloadedAdamW are found.
            kinds: {name: kind} of tensors whose kind (matrix, embedding, norm, head, expert, buffer) does not follow from name
                and shape by the rules of docs/python.md.
            after_apply: called when the run has changed θ; with `params` it rounds masters into the model, which is
                done for it if it is None.
            trained_later: names of parameters, or of modules with all of theirs, that are frozen now and will be trained
                in this run: they are synced from the start.
            local: names of parameters, or of modules with all of theirs, that are each site's own: neither synced nor
                compared, as the average of others that a script keeps. The same at each site.
            buffers: "mean": of buffers of floating point, such as running statistics and codebooks, each sync makes the mean
                of the sites', with the round's weights; a late site gets it. "local": they are each site's own.
            schedulers: of the learning rate; moved to the step at which the site enters. One that the script does not step
                after each inner step: (scheduler, inner steps between two of its own).
            on_rejoin: called with the step to go on from when the coordinator had dropped the site and it joined anew.
            data: {"tokens": number, "digest": 16 hexadecimal digits} of what the site trains on.
            assets: what a loader needs beside weights and the model's own configuration: a tokenizer or another object with
                save_pretrained, a folder with its files, or a list of these. The first site's are in the run's exports.
            alone: True: in no run, without a coordinator, whatever the environment says: outer Nesterov steps every
                sync_every steps (30) with outer_lr (0.7) and outer_momentum (0.5), to the end of the loader, or for `steps`.
            settings: of the connection (tls_ca, tls_cert, tls_key, token_file, insecure, use_proxy, connect_timeout_s,
                max_up_mbit, max_down_mbit, rank_timeout_s: how long a rank may stand still in no known wait, 600), and what the script takes the run to be (sync_every, fragment_sync_delay,
                fragment_update_alpha, num_fragments, fragments, outer_lr, outer_momentum, steps): a difference raises ConfigError.

        Raises: ConfigError, RefusedError, UnreachableError.
        """
        _world.check_version()
        _world.warn_of_processes()
        _arguments.check(buffers=buffers, params=params, kinds=kinds, data=data, after_apply=after_apply, on_rejoin=on_rejoin,
                         process_group=process_group)
        connection, expectations = _options.split(settings)
        self._module = _model.check_unsupported(model)
        self._optimizers = _optimizers.unwrapped(optimizer)
        self._wrappers = list(_optimizers.wrappers(optimizer))
        self._schedulers = schedulers if isinstance(schedulers, Schedulers) else Schedulers(schedulers)
        self._hooks: _optimizers.StepHooks | None = None
        self._after_apply = after_apply
        self._on_rejoin = on_rejoin
        self._anchors = 0  # blocks of anchor_parameters
        self._stepped = self._loops = False
        self._loaded: SiteState | None = None
        self._terminate: Any = None  # handles SIGTERM
        self._tokens, self._latest_loss = 0, float("nan")
        self._loss: Loss | None = None
        self._waits: list[str] = []
        self._ranks = Ranks(process_group, float(connection.get("rank_timeout_s", RANK_TIMEOUT_S)))
        try:
            found = _optimizers.masters_of(self._optimizers, model, trained_later)
            self._found = set(found) - set(map(names.plain, params or {}))
            collected = _model.collect(model, self._optimizers, {**found, **(params or {})}, kinds or {}, trained_later,
                                       local, "alone" if alone else buffers)
            _optimizers.check_own_masters(self._optimizers, collected.copies.values())
            self._trained = TrainedTensors(model, collected, self._optimizers)
            options = (_alone.options if alone else _options.of_rank)(self._ranks.leads, coordinator, site, connection)
            files = _assets.files_of(model, assets) if self._ranks.leads and not alone else {}
            super().__init__(self._open(collected, options, expectations, data, files))
        except BaseException as error:
            self._ranks.fail(error)
            self._ranks.close()
            raise
        self._busy_s, self._looked, self._returned = 0.0, 0.0, time.monotonic()
        if self._ranks.leads:
            self._warn_of_rounding()

    def _open(self, collected: _model.Model, options: Mapping[str, object], expectations: Mapping[str, Any],
              data: Mapping[str, object] | None, files: Mapping[str, bytes]) -> OpenedSite:
        own = _shards.listing(self._module, collected)
        opened, self._carrier = _sites.open_ranks(self._ranks, own, collected, options, expectations, data, files)
        self._model = collected.numbered(self._carrier.table)
        self._frozen_digests = {self._carrier.table.index(str(collected.tensors[index]["name"])): digest
                                for index, digest in own.digests.items()}
        trained = self._model.trained()
        self._hidden_masters = HiddenMasters({index: tensor for index, tensor in trained.items()
                                              if index not in self._model.copies}, may_end=bool(self._optimizers))
        self._missing_steps = MissingSteps(trained.values())
        self._own_values = OwnValues(self._module, self._model, bool(opened.run_id))
        self._carrier.settle = functools.partial(_optimizers.settle, self._optimizers)
        self._deferred = DeferredStep(self._module, trained.values(), self._end_step, self._carrier.settle)
        return opened

    def _warn_of_rounding(self) -> None:
        alpha = self.config["sync"]["fragment_update_alpha"]
        low = [self._model.tensors[i]["name"] for i in self._model.synced
               if self._model.tensors[i]["dtype"] != "float32"]
        if low and alpha > 0:
            LOGGER.warning("sync.fragment_update_alpha is %g, and %d parameters have fewer bits than float32, the first "
                           "%s: each mix rounds them", alpha, len(low), low[0])

    # ---- Entering ----

    def join(self) -> None:
        """Takes part. The first site of a new run gives θ to the run; for all others θ becomes the run's.

        Raises RefusedError, RestoreError, NonFiniteError. `with` does it.
        """
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._terminate = lambda *_: self.stop()
            signal.signal(signal.SIGTERM, self._terminate)
        self._hidden_masters.joins()
        self._step = self._site.join()
        self._hidden_masters.moved()
        self._joined, self._stays = True, 1
        self._hooks = _optimizers.StepHooks(self._optimizers, self._wrappers, self._step_begins, self._has_stepped)
        self._applied()
        if self._loaded is not None and self._loaded.pending and self._loaded.step == self._step + 1:
            self._deferred.begin()
        self._loaded = None
        self._schedulers.move_to(self.step)
        self._missing_steps.joined()
        self._own_values.joined()
        self._returned = time.monotonic()

    # ---- Training ----

    @property
    def step(self) -> int:
        """The site's current inner step, as if just done."""
        return self._step + self._deferred.pending

    def loop(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The loader's batches, from its beginning again whenever it is exhausted, until the run is over for the site.

        Ends after run.yaml's `run.steps`, and when the site has to stop. While the run is paused, the step waits.
        """
        if not self._joined:
            raise FailedError("expected a site that has joined, got a loop before it: write `with diloco:` around the loop")
        self._loops = True
        self._deferred.next_batch()
        while not self.over:
            batches = 0
            for batch in loader:
                yield batch
                self._deferred.next_batch()
                batches += 1
                if self.over:
                    return
                self._missing_steps.batch()
            if batches == 0:
                raise mismatch("loader", "batches, each time it is iterated", "none",
                               "an iterator gives them only once: pass a DataLoader or a list")
            _shuffle_anew(loader)
            if not self.run_id and not self._site.run_steps:  # alone
                return

    def after_step(self) -> None:
        """An inner step is done: sends and applies what is due. For scripts without an optimizer; with one, its steps count
        (_deferred_step.py).

        Raises NonFiniteError, RefusedError, FailedError, also for failures since the last step.
        """
        if not self._optimizers:
            _capture.refuse()
            self._trained.check()
        self._deferred.end()
        self._look_at_step()
        self._end_step()

    def _has_stepped(self) -> None:
        """The optimizers' hook calls it. A site of several ranks ends the step at once, as at the only place where all of
        them are for certain."""
        self._deferred.end()
        self._look_at_step()
        if self._ranks.world > 1:
            self._end_step()
        else:
            self._deferred.begin()

    def _look_at_step(self) -> None:
        if self._anchors:
            raise FailedError("expected no optimizer step inside anchor_parameters(), got one: θ is not the site's own")
        self._carrier.raise_failure()
        self._check_masters()
        self._schedulers.look(self._step)
        done = self._step + 1
        if done == self._site.run_steps + 1 and done > 1:
            LOGGER.warning("the run's %d steps are done: step %d and those after it are this site's own, and are not synced; "
                           "diloco.loop ends in time, and diloco.over says so", done - 1, done)
        self._missing_steps.stepped()

    def _end_step(self) -> None:
        done = self._step + 1
        if self._hooks is not None:
            self._hooks.taken()
        self._own_values.stepped()
        self._model.take_buffers()
        spent = time.monotonic() - self._returned - self._busy_s
        tokens, loss = self._tokens, self._read_loss()
        self._tokens, busy_s, self._busy_s = 0, self._busy_s, 0.0
        self._step = self._site.after_step(done, tokens=tokens, loss=loss,
                                           step_s=max(spent, 0.0) if busy_s else float("nan"))
        moved = self._site.moved
        if moved:
            self._hidden_masters.moved()
            self._applied()
        if moved or self._step != done:
            self._note_rejoin()
        self._returned = time.monotonic()

    def _note_rejoin(self) -> None:
        stays = int(self._site.progress().get("stays", self._stays))
        if stays > self._stays:
            self._stays = stays
            self._hidden_masters.forget()
            self._schedulers.rejoin(self._step)
            if self._on_rejoin is not None:
                with self.busy("on_rejoin"):
                    self._on_rejoin(self._step)

    def _check_masters(self) -> None:
        if not self._stepped:  # the state is made in an optimizer's first step
            _optimizers.check_own_masters(self._optimizers, self._model.copies.values())
            self._stepped = True
        self._hidden_masters.check(lambda index: str(self._model.tensors[index]["name"]))

    def _applied(self) -> None:
        """θ was changed by the run."""
        for index, parameter in self._model.copies.items():
            if self._after_apply is None or self._model.tensors[index]["name"] in self._found:
                _model.local(parameter).copy_(_model.local(self._model.synced[index]))
        if self._after_apply is not None:
            with self.busy("after_apply"):
                self._after_apply()

    def next_batch(self) -> None:
        """The last step is done with: what the script does to θ from here on belongs to the next. `loop` calls it, and a
        framework whose loop it is; in loops of your own the next forward in training mode does as much."""
        self._deferred.next_batch()

    def pause(self) -> None:
        """Something other than training begins. `busy` calls it, and frameworks ahead of an evaluation."""
        self._deferred.pause()

    def before_change(self) -> None:
        """Raises what has failed since the last step. θ is taken at its step: code that changes it between two steps needs
        no call."""
        self._carrier.settle()
        self._carrier.raise_failure()

    def _step_begins(self, again: bool, with_closure: bool) -> None:
        """The optimizers' hook calls it before θ changes; `again`: it is none of the pending step's. Raises ConfigError where
        the script trains other tensors than are synced, FailedError in a CUDA graph's capture, and what has failed since the
        last step."""
        _capture.refuse()
        if again:
            self._deferred.next_step(with_closure)
        self.before_change()
        self._trained.check()
        self._hidden_masters.begins()

    def report(self, *, loss: Loss | None = None, tokens: int = 0) -> None:
        """Reports the last step; sent with it, or with the next one.

        Args:
            loss: mean of the step, nats per token; a tensor of one value is read once a second.
            tokens: the number that the step trained on.
        """
        if not self._loops:  # a loop of the script's own, or of a framework
            self._missing_steps.batch()
        self._tokens += _reported.tokens(tokens)
        if loss is not None:
            self._loss = _reported.loss("report: loss", loss)

    def _read_loss(self) -> float:
        if self._loss is not None and time.monotonic() - self._looked >= _LOOK_S:
            self._looked = time.monotonic()
            self._latest_loss, self._loss = float(self._loss), None
        return self._latest_loss

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Time that is not training, such as "evaluation": it does not count as part of a step, and may take longer
        than rank_timeout_s."""
        self.pause()
        begin = time.monotonic()
        LOGGER.debug("%s begins", what)
        self._waits.append(what)
        self._site.waits(self._waits[0])
        try:
            with self._ranks.known_wait(what):
                yield
        finally:
            self._waits.pop()
            self._site.waits(self._waits[0] if self._waits else "")
            self.was_busy(time.monotonic() - begin)
            LOGGER.debug("%s has taken %.1f s", what, time.monotonic() - begin)

    def was_busy(self, seconds: float) -> None:
        """Like `busy`, but afterwards, for this much of the time since the last step."""
        self._busy_s += seconds

    # ---- The anchor ----

    @contextlib.contextmanager
    def anchor_parameters(self) -> Iterator[None]:
        """W, which all sites hold alike, in place of θ, to evaluate or export it; afterwards θ again. Between steps.

        Takes 4 bytes of memory a parameter, and no optimizer step inside.
        """
        with self.busy("work on the anchor"):
            self._deferred.end()
            self.before_change()
            values = _anchor.read(self._model, self._carrier.store, self._site.read_anchor)
            self._swap(values)
            self._anchors += 1
            try:
                yield
            finally:
                self._swap(values)
                self._anchors -= 1

    def _swap(self, values: dict[int, torch.Tensor]) -> None:
        _anchor.swap(self._model, values)
        self._applied()

    def report_eval(self, loss: float) -> None:
        """The mean loss on held-out data, nats per token, under the latest `anchor_parameters`."""
        self._site.report_eval(float(_reported.loss("report_eval: loss", loss)))

    def export(self, directory: str | os.PathLike[str], tokenizer: Any = None) -> None:
        """Writes the model with W: Hugging Face's by its save_pretrained, others' state_dict as model.pt."""
        initial = [fragment for fragment, anchor in self.progress()["digests"].items() if anchor["version"] == 0]
        if initial:
            LOGGER.warning("export: fragments %s are in no round yet: their values are the initial ones", ", ".join(initial))
        if self._model.own:
            LOGGER.warning("export: %d parameters are this site's own, the first %s", len(self._model.own),
                           next(iter(self._model.own)))
        with self.anchor_parameters():
            _anchor.export(self._module, directory, tokenizer, self._ranks, self._carrier.table)

    def keep_anchor(self) -> Export | None:
        """W as it is once the open rounds are done, for an export after the site has left. None where it is not at hand, which
        a line says: with several ranks, with too little memory, or after a failure."""
        need, available = 8 * self._model.values(), _memory.available_bytes()
        why = ("the site has several ranks" if self._ranks.world > 1 else
               f"W takes {need / 1e9:.1f} GB" if available is not None and need > available else "")
        values: dict[int, torch.Tensor] = {}
        try:
            if not why:
                if self.over and not self.should_stop:
                    self.complete()
                with self.busy("work on the anchor"):
                    self._deferred.end()
                    values = _anchor.read(self._model, self._carrier.store, self._site.read_anchor)
        except Error as error:
            why = str(error)
        if why:
            LOGGER.info("W is not kept for an export after training, but causewayctl export writes it: %s", why)
            return None

        def export(folder: str | os.PathLike[str], tokenizer: Any) -> None:
            self._swap(values)
            try:
                _anchor.write(self._module, folder, tokenizer, None)
            finally:
                self._swap(values)
        return export

    # ---- Checkpoints ----

    def state_dict(self) -> dict[str, SiteState]:
        """The state to save beside model and optimizer, after a step and before the next: for
        torch.distributed.checkpoint or torch.save. Called on all ranks alike; only rank 0's result needs to be saved,
        whatever the number of ranks. Before joining it is empty, or the loaded state."""
        if not self._joined:
            return {"state": self._loaded or SiteState()} if self._ranks.leads else {}
        if self._anchors:
            raise FailedError("expected no state_dict() inside anchor_parameters(), got one: θ is not the site's own")
        self.before_change()
        parts = {name: torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
                 for name, data in self._site.capture().items()}
        return {"state": SiteState(self.step, parts, self._deferred.pending)} if self._ranks.leads else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resumes from a saved state; before `with`, with model and optimizer loaded from the same checkpoint.

        Raises RestoreError: from `join` if θ is another step's.
        """
        if self._joined:
            raise RestoreError("expected load_state_dict before the site has joined, got it afterwards: load before "
                               "`with`", expected="before joining", got="after joining")
        if not self._ranks.leads:
            return  # the state is rank 0's
        state = state_dict.get("state")
        if not isinstance(state, SiteState) or not state.parts:
            got = "an empty one" if isinstance(state, SiteState) else type(state).__name__
            raise RestoreError(f"expected the state of a site that had joined, got {got}",
                               expected="the state of a site that had joined", got=got)
        self._site.restore({name: (ctypes.c_char * values.numel()).from_address(values.data_ptr())
                            for name, values in state.parts.items()})
        self._loaded = state

    # ---- Leaving ----

    def complete(self) -> None:
        """Waits for the rounds that are open, after the last step; θ stays as it is."""
        self._deferred.end()
        self.before_change()
        self._site.complete()

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Waits until nothing that was sent can be lost. False: not in time."""
        self._deferred.end()
        self.before_change()
        return self._site.drain(timeout_s)

    def leave(self, finished: bool = False, reason: str = "the script leaves", timeout_s: float = DRAIN_S) -> None:
        """Leaves the run and closes the site. A second call does nothing. `with` does it."""
        super().leave(finished, reason, timeout_s)

    def _before_leaving(self) -> None:
        self._deferred.end()
        self._carrier.close()
        _shards.warn_of_changes(self._model, self._frozen_digests)

    def close(self) -> None:
        """Ends the site, whatever it waits for, and removes its hooks. The coordinator learns that the program ends."""
        self._deferred.drop()
        if self._hooks is not None:
            self._hooks.remove()
        if self._terminate is not None and signal.getsignal(signal.SIGTERM) is self._terminate:  # the script has no other
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._terminate = None
        self._carrier.close()
        super().close()
        self._ranks.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        if error is not None:
            self._deferred.drop()
            self._ranks.fail(error)  # before anything else: no rank waits for this one any more
        super().__exit__(kind, error, trace)


def _shuffle_anew(loader: Any) -> None:
    """A DistributedSampler has the same order in each epoch unless a script says which one begins."""
    batches = getattr(loader, "batch_sampler", None)
    samplers: list[Any] = [getattr(loader, "sampler", None), getattr(batches, "sampler", None)]
    for each in samplers:
        if callable(getattr(each, "set_epoch", None)) and isinstance(getattr(each, "epoch", None), int):
            each.set_epoch(each.epoch + 1)
            return
