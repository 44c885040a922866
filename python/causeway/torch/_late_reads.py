"""Reads of θ whose values are taken at the step and carried while the next one computes, by a helper thread.

    the site's thread   take (θ as it is at the step) ─► add(job) ─► the next step …
    helper              carry (from the device, over the ranks, into the library's memory)

Changes of θ between two steps, such as the averaged weights of an evaluation in its place, change nothing in what was
taken.
"""

from __future__ import annotations

import queue
import threading

import torch

from causeway.torch._ranks import Ranks


class Job:
    """A read in two halves: `take`, at the step, and `carry`."""

    def take(self) -> bool:
        """In the site's thread. False: nothing is left to be carried."""
        raise NotImplementedError

    def carry(self) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        """It will not be carried."""


class LateReads:
    """One helper thread and its queue. It begins with the first job."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._open: list[Job] = []
        self._failure: BaseException | None = None

    def add(self, job: Job) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="causeway-copy", daemon=True)
            self._thread.start()
        with self._lock:
            self._open.append(job)
        self._queue.put(job)

    def raise_failure(self) -> None:
        """Raises an error of a job since the last call."""
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        if self._thread is None:
            return
        self._queue.put(None)
        if self.ranks.failure:  # a rank that is gone sends nothing, and the thread may wait for it
            with self._lock:
                left = list(self._open)
            for job in left:
                job.abandon()
        else:
            self._thread.join()
        self._thread = None

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            failure: BaseException | None = None
            try:
                with torch.no_grad():
                    job.carry()
            except BaseException as error:
                failure = error
                job.abandon()
            with self._lock:
                self._open.remove(job)
                self._failure = self._failure or failure
