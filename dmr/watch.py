"""A watchdog thread that ends a program which hangs in MPI.

It ends the program if other ranks do not enter a collective call of the library within a timeout,
and if the program does not reach a resize point within a timeout after SIGTERM: Python runs no
signal handlers while the main thread blocks in MPI. The thread uses MPI only while the main thread
has blocked in a collective call of the library for more than two intervals.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

TICK_S = 0.5
"""Interval of the checks."""

PAUSE_S = 4 * TICK_S
"""A later check shows that the process was stopped (SIGSTOP); that time does not count."""

REPLY_S = 2.5
"""Timeout for replies of other ranks, which check for queries every :data:`TICK_S`."""

ABORT_S = 5.0
"""Timeout of MPI_Abort, after which the process exits."""

POINTS = 5.0
"""The timeout after SIGTERM is at least this many mean intervals of resize points."""

MAX_NAMED = 8
"""Number of ranks that an error message names."""

QUERY, REPLY = 84, 85
"""Message tags (others: :mod:`dmr.wire.tags`)."""

Record = Callable[[Any, int, str], None]
"""Called with the final state of the job, the exit status and the error message."""


class Watch:
    """The watchdog of a process (:data:`WATCH`).

    Attributes:
        place: the collective call of the library that the main thread is in, "" for none.
        left: whether this rank has left the job.
        resizes: whether a resize is in progress, which has timeouts of its own.
        between_s: returns the mean time between resize points.
    """

    place = ""
    left = resizes = False
    between_s: Callable[[], float] = staticmethod(lambda: 0.0)

    def __init__(self) -> None:
        self._serial = 0
        self._peers: Collection[int] = ()
        self._patient = self._alone = False
        self._lock = threading.Lock()
        self._comm: MPI.Intracomm | None = None
        self._thread: threading.Thread | None = None
        self._limit_s = self._sigterm_s = 0.0
        self._sigterm_at: float | None = None
        self._record: Record = lambda *_: None
        self._leave: Callable[[], None] = lambda: None
        self._requests: list[MPI.Request] = []

    # --- main thread -------------------------------------------------------------------

    def begin(self, place: str, peers: Collection[int] = ()) -> None:
        """Enter a collective call; it is left by setting :attr:`place` to "".

        Args:
            peers: the ranks that this rank exchanges messages with; all, if empty.
        """
        self._serial += 1
        self._peers = peers
        self.place = place

    @contextlib.contextmanager
    def within(self, place: str, *, patient: bool = False, alone: bool = False) -> Iterator[None]:
        """Be in a collective call within the ``with`` block.

        Args:
            patient: whether the timeout applies only until all ranks have entered the call.
            alone: whether the call is MPI_Comm_disconnect, after which no rank can be queried.
        """
        before = self.place, self._patient, self._alone
        if (
            self._patient and self.place
        ):  # the wait within a call that may take any time is part of it
            place, patient = self.place, True
        self._patient, self._alone = patient, alone
        self.begin(place)
        try:
            yield
        finally:
            self._serial += 1
            self.place, self._patient, self._alone = before

    def on_end(self, record: Record, leave: Callable[[], None]) -> None:
        """Set the callbacks that record the end of the job, and end a rank that has left it."""
        self._record, self._leave = record, leave

    def query_on(self, comm: MPI.Intracomm | None) -> None:
        """Set the communicator for queries; None before the previous one is freed."""
        with self._lock:
            self._comm = comm

    def terminates(self) -> None:
        """Restart the timeout after SIGTERM, as the program begins to write its checkpoint."""
        if self._sigterm_at is not None:
            self._sigterm_at, self._sigterm_s = time.monotonic(), self._limit_s

    @contextlib.contextmanager
    def running(self, limit_s: float, sigterm_s: float, received: list[int]) -> Iterator[None]:
        """Run the thread within the ``with`` block; do nothing if it runs already.

        Args:
            limit_s: timeout of collective calls.
            sigterm_s: timeout from SIGTERM to a resize point.
            received: signals that the Python signal handler has appended.
        """
        if self._thread is not None:
            yield
            return
        self._limit_s, self._sigterm_s, self._sigterm_at = limit_s, sigterm_s, None
        self.left = self.resizes = False
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        usual = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        stopped = threading.Event()
        thread = threading.Thread(
            target=self._check,
            args=(reads, usual, received, stopped),
            name="dmr-watch",
            daemon=True,
        )
        self._thread = thread
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(usual, warn_on_full_buffer=False)
            stopped.set()
            os.write(writes, b"\0")
            thread.join()
            self._thread, self.between_s = None, Watch.between_s
            self.on_end(lambda *_: None, lambda: None)  # drop references to the run
            os.close(reads)
            os.close(writes)

    def forked(self) -> None:
        """Restore the default action of SIGTERM in a forked process, which has no such thread."""
        if self._thread is not None:
            self._thread = None
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # --- watchdog thread --------------------------------------------------------------------

    def _check(self, reads: int, usual: int, received: list[int], stopped: threading.Event) -> None:
        serial, since = -1, 0.0
        poller = select.poll()  # select() refuses file descriptors above 1,023
        poller.register(reads, select.POLLIN)
        while not stopped.is_set():
            before, terminated = time.monotonic(), bool(received)
            if poller.poll(1000 * TICK_S):
                signals = os.read(reads, 64)
                if usual >= 0:
                    with contextlib.suppress(OSError):
                        os.write(usual, signals)
                terminated |= signal.SIGTERM in signals
            now = time.monotonic()
            if now - before > PAUSE_S:
                since += now - before
            if terminated and self._sigterm_at is None:
                self._sigterm_at = now
            if self._sigterm_at is not None:
                self._check_sigterm(now - self._sigterm_at)
            if not self.place or self._serial != serial:
                serial, since = self._serial, now
                continue
            if now - since > 2 * TICK_S:
                self._reply()
            if now - since > self._limit_s:
                self._overdue(serial)
                since = time.monotonic()

    def _check_sigterm(self, waited_s: float) -> None:
        grace_s = max(self._sigterm_s, POINTS * self.between_s())
        if self.resizes:
            grace_s = max(grace_s, self._limit_s)
        if waited_s > grace_s:
            where = f", it is in {self.place}" if self.place else ""
            self._end(
                f"rank {_rank()} has not ended within {grace_s:g} s of SIGTERM{where}: expected a "
                "resize point (DMR_SIGTERM_S sets this limit)",
                128 + signal.SIGTERM,
            )

    def _overdue(self, serial: int) -> None:
        """End the program, unless all ranks have entered a patient call."""
        limit = f"within {self._limit_s:g} s (DMR_COLLECTIVE_S sets this limit)"
        if self._alone:
            self._end(
                f"{self.place} has not returned on rank {_rank()} {limit}: expected all messages "
                "of the program to be received"
            )
        with self._lock:
            places = self._query()
        if self._serial != serial:
            return
        absent = [rank for rank, place in enumerate(places) if place is None]
        absent = [rank for rank in absent if rank in self._peers] or absent
        who = [f"rank {rank}, which has not entered it" for rank in absent] + [
            f"rank {rank}, which is in {place}"
            for rank, place in enumerate(places)
            if place not in (None, self.place)
        ]
        if not places:
            who = ["a rank that has not entered it"]
        elif not who and self._patient:
            return
        elif not who:
            who = ["messages, though all ranks are in it: expected matching arguments on all ranks"]
        if any(places) and places.index(next(filter(None, places))) != _rank():
            time.sleep(ABORT_S)  # the lowest waiting rank reports for all
        if len(who) > MAX_NAMED:
            who[MAX_NAMED:] = [f"{len(who) - MAX_NAMED} more"]
        self._end(f"rank {_rank()} waits in {self.place} for {'; '.join(who)}: expected it {limit}")

    def _query(self) -> list[str | None]:
        """Return the place of each rank, None for no reply; [] if MPI cannot be used here.

        A rank replies only while it is in a collective call of the library.
        """
        comm = self._comm
        if comm is None or not _may_use_mpi():
            return []
        places: list[str | None] = [None] * comm.size
        places[comm.rank] = self.place
        self._requests = [
            comm.isend("", rank, QUERY) for rank in range(comm.size) if rank != comm.rank
        ]
        until = time.monotonic() + REPLY_S
        while time.monotonic() < until and None in places:
            self._reply_on(comm)
            while (message := _receive(comm, REPLY)) is not None:
                places[message[0]] = message[1]
            time.sleep(TICK_S / 10)
        return places

    def _reply(self) -> None:
        """Reply to queries with the place of this rank."""
        with self._lock:
            if self._comm is not None and self.place and not self._alone and _may_use_mpi():
                self._reply_on(self._comm)

    def _reply_on(self, comm: MPI.Intracomm) -> None:
        while (message := _receive(comm, QUERY)) is not None:
            self._requests.append(comm.isend(self.place, message[0], REPLY))

    def _end(self, message: str, code: int = 1) -> None:
        """End all ranks; a status of 1 is a failure, any other a cancellation."""
        from mpi4py import MPI

        state = "FAILED" if code == 1 else "CANCELLED"
        with contextlib.suppress(Exception):
            self._record(state, code, message)
        print(f"error: {message}", file=sys.stderr, flush=True)
        if self.left:
            self._leave()
            os._exit(code)
        timer = threading.Timer(ABORT_S, os._exit, (code,))
        timer.daemon = True
        timer.start()
        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.COMM_WORLD.Abort(code)
        os._exit(code)


def _receive(comm: MPI.Intracomm, tag: int) -> tuple[int, Any] | None:
    """Return the source and content of a pending message, None if there is none."""
    from mpi4py import MPI

    status = MPI.Status()
    if not comm.Iprobe(MPI.ANY_SOURCE, tag, status):
        return None
    return status.source, comm.recv(source=status.source, tag=tag)


def _may_use_mpi() -> bool:
    from mpi4py import MPI

    return MPI.Is_initialized() and MPI.Query_thread() == MPI.THREAD_MULTIPLE


def _rank() -> int:
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.rank)


WATCH = Watch()
"""The watchdog of this process."""

os.register_at_fork(after_in_child=WATCH.forked)
