"""Reads of θ that are late: copied while the next step computes, by a helper thread.

    the site's thread   add(job) ─► the next step … ─► await_copies ─► θ changes
    helper              copy (of θ on this rank) ─► carry (over the ranks, into the library's memory)
"""

from __future__ import annotations

import queue
import threading

import torch

from causeway.torch._ranks import Ranks


class Job:
    """A read in two halves: `copy`, before θ changes, and `carry`."""

    def copy(self) -> None:
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
        self._changed = threading.Condition()
        self._copies = 0  # that are not made
        self._open: list[Job] = []
        self._failure: BaseException | None = None

    def add(self, job: Job) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="causeway-copy", daemon=True)
            self._thread.start()
        with self._changed:
            self._copies += 1
            self._open.append(job)
        self._queue.put(job)

    def await_copies(self) -> None:
        with self._changed:
            while self._copies > 0 and not self.ranks.failure:
                self._changed.wait(0.1)  # in between, Python's signal handlers run
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        if self._thread is None:
            return
        self._queue.put(None)
        if self.ranks.failure:  # a rank that is gone sends nothing, and the thread may wait for it
            for job in list(self._open):
                job.abandon()
        else:
            self._thread.join()
        self._thread = None

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            failure: BaseException | None = None
            copied = False
            try:
                with torch.no_grad():
                    job.copy()
                    copied = True
                    with self._changed:
                        self._copies -= 1
                        self._changed.notify_all()
                    job.carry()
            except BaseException as error:
                failure = error
                job.abandon()
            with self._changed:
                self._copies -= not copied
                self._open.remove(job)
                self._failure = self._failure or failure
                self._changed.notify_all()
