"""A watchdog thread that ends a program that hangs in MPI.

It ends the program if other ranks do not enter a collective call of the library within a timeout,
and if the program does not reach a resize point within a timeout after SIGTERM: Python runs no
signal handlers while the main thread blocks in MPI. The thread uses MPI only while the main thread
has blocked in a collective call of the library for more than two intervals.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import stat
import sys
import termios
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

DRAIN_S = 2.0
"""Timeout for the launcher to read the output of a rank before MPI_Abort."""

POINTS = 5.0
"""The timeout after SIGTERM is at least this many mean intervals of resize points."""

MAX_NAMED = 8
"""Number of ranks that an error message names."""

Record = Callable[[Any, int, str], None]
"""Called with the final state of the job, the exit status and the error message."""


class Call:
    """A collective call of the library: the main thread is in it within a ``with`` block.

    A call within a patient one is part of it. A call can be entered again once it has been left.
    The arguments are those of :meth:`Watch.within`.
    """

    __slots__ = ("_outer", "_watch", "alone", "patient", "peers", "place")

    def __init__(
        self, watch: Watch, place: str, peers: Collection[int], *, patient: bool, alone: bool
    ) -> None:
        self._watch, self._outer = watch, watch.call
        self.place, self.peers, self.patient, self.alone = place, peers, patient, alone

    def __enter__(self) -> None:
        watch = self._watch
        outer = self._outer = watch.call
        watch.call = outer if outer is not None and outer.patient else self
        watch.serial += 1

    def __exit__(self, *_: object) -> None:
        self._watch.call = self._outer
        self._watch.serial += 1


class Watch:
    """The watchdog of a process (:data:`WATCH`).

    Attributes:
        call: the collective call of the library that the main thread is in, None for none.
        serial: a number that changes where the timeout of the call restarts.
        left: whether this rank has left the job.
        resizes: whether a resize is in progress, which has timeouts of its own.
        between_s: returns the mean time between resize points.
    """

    call: Call | None = None
    serial = 0
    left = resizes = False
    between_s: Callable[[], float] = staticmethod(lambda: 0.0)

    def __init__(self) -> None:
        self._rank = 0
        self._tag: Any = 0  # of queries; one less is that of replies
        self._lock = threading.Lock()
        self._comm: MPI.Intracomm | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._wakes = -1
        self._limit_s = self._sigterm_s = 0.0
        self._sigterm_at: float | None = None
        self._record: Record = lambda *_: None
        self._leave: Callable[[], None] = lambda: None
        self._requests: list[MPI.Request] = []

    # --- main thread -------------------------------------------------------------------

    def restart(self) -> None:
        """Restart the timeout: the main thread has come to another part of a call."""
        self.serial += 1

    def within(
        self,
        place: str,
        peers: Collection[int] = (),
        *,
        patient: bool = False,
        alone: bool = False,
    ) -> Call:
        """Return a collective call, for a ``with`` block.

        Args:
            place: its name in messages.
            peers: the ranks that this rank exchanges messages with; all, if empty.
            patient: whether the timeout applies only until all ranks have entered the call, and
                the one after SIGTERM not at all.
            alone: whether the call is MPI_Comm_disconnect, after which no rank can be queried.
        """
        return Call(self, place, peers, patient=patient, alone=alone)

    def on_end(self, record: Record, leave: Callable[[], None]) -> None:
        """Set the callbacks that record the end of the job, and end a rank that has left it."""
        self._record, self._leave = record, leave

    def query_on(self, comm: MPI.Intracomm | None) -> None:
        """Set the communicator for queries; None before the previous one is freed.

        While ranks enter the block, it is the one of the program: messages have the two largest
        tags, apart from those of the program, and none is left on it.
        """
        from mpi4py import MPI

        with self._lock:
            if comm is not None and self._comm is not None:
                for tag in (self._tag, self._tag - 1):
                    while _receive(self._comm, tag) is not None:
                        pass  # of before this rank has entered
            if comm is not None:
                self._rank, self._tag = comm.rank, MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
            self._comm = comm

    def terminates(self) -> None:
        """Restart the timeout after SIGTERM, as the program begins to end at a resize point."""
        if self._sigterm_at is not None:
            self._sigterm_at, self._sigterm_s = time.monotonic(), self._limit_s

    @contextlib.contextmanager
    def running(self, limit_s: float, sigterm_s: float, received: list[int]) -> Iterator[None]:
        """Run the thread within the ``with`` block, if it does not run already.

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
        self._stopped.clear()
        self._wakes = writes
        self._thread = threading.Thread(
            target=self._check, args=(reads, usual, received), name="dmr-watch", daemon=True
        )
        self._thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(usual, warn_on_full_buffer=False)
            self.stop()
            self._thread, self.between_s = None, Watch.between_s
            self.on_end(lambda *_: None, lambda: None)  # drop references to the run
            os.close(reads)
            os.close(writes)

    def stop(self) -> None:
        """End the thread before the block of :meth:`running` ends: MPI is to be finalised."""
        if self._thread is not None:
            self._stopped.set()
            os.write(self._wakes, b"\0")
            self._thread.join()

    def forked(self) -> None:
        """Restore the default action of SIGTERM in a forked process, which has no such thread."""
        if self._thread is not None:
            self._thread = None
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # --- watchdog thread --------------------------------------------------------------------

    def _check(self, reads: int, usual: int, received: list[int]) -> None:
        serial, since = -1, 0.0
        poller = select.poll()  # select() refuses file descriptors above 1,023
        poller.register(reads, select.POLLIN)
        while not self._stopped.is_set():
            before = time.monotonic()
            terminated = bool(received) or self._sigterm_at is not None
            if poller.poll(1000 * TICK_S):
                signals = os.read(reads, 64)
                if usual >= 0:
                    with contextlib.suppress(OSError):
                        os.write(usual, signals)
                terminated |= signal.SIGTERM in signals
            now, call = time.monotonic(), self.call
            if now - before > PAUSE_S:
                since += now - before
            if terminated and (self._sigterm_at is None or (call is not None and call.patient)):
                self._sigterm_at = now
            if self._sigterm_at is not None:
                self._check_sigterm(now - self._sigterm_at, call)
            if call is None or self.serial != serial:
                serial, since = self.serial, now
                continue
            if now - since > 2 * TICK_S:
                self._reply()
            if now - since > self._limit_s:
                self._overdue(call, serial)
                since = time.monotonic()

    def _check_sigterm(self, waited_s: float, call: Call | None) -> None:
        grace_s = max(self._sigterm_s, POINTS * self.between_s())
        if self.resizes:
            grace_s = max(grace_s, self._limit_s)
        if waited_s > grace_s:
            where = "" if call is None else f", it is in {call.place}"
            self._end(
                f"rank {self._rank} has not ended within {grace_s:g} s of SIGTERM{where}: expected "
                "a resize point (DMR_SIGTERM_S sets this limit)",
                128 + signal.SIGTERM,
            )

    def _overdue(self, call: Call, serial: int, *, again: bool = False) -> None:
        """End the program, unless all ranks have entered a patient call.

        Args:
            again: whether the rank that reports for all had :data:`ABORT_S` to do so.
        """
        limit = f"within {self._limit_s:g} s (DMR_COLLECTIVE_S sets this limit)"
        if call.alone:
            self._end(
                f"{call.place} has not returned on rank {self._rank} {limit}: expected all "
                "messages of the program to be received"
            )
        with self._lock:
            places = self._query(call.place)
        if self.serial != serial:
            return
        absent = [rank for rank, other in enumerate(places) if other is None]
        absent = [rank for rank in absent if rank in call.peers] or absent
        who = [f"rank {rank}, which has not entered it" for rank in absent] + [
            f"rank {rank}, which is in {other}"
            for rank, other in enumerate(places)
            if other not in (None, call.place)
        ]
        if not places:
            who = ["a rank that has not entered it"]
        elif not who and call.patient:
            return
        elif not who:
            who = ["messages, though all ranks are in it: expected matching arguments on all ranks"]
        if not again and any(places[: self._rank]):  # the lowest waiting rank reports for all
            until = time.monotonic() + ABORT_S
            while self.serial == serial and time.monotonic() < until:
                self._reply()
                time.sleep(TICK_S / 10)
            if self.serial == serial:
                self._overdue(call, serial, again=True)
            return
        if len(who) > MAX_NAMED:
            who[MAX_NAMED:] = [f"{len(who) - MAX_NAMED} more"]
        missing = "; ".join(who)
        self._end(f"rank {self._rank} waits in {call.place} for {missing}: expected it {limit}")

    def _query(self, place: str) -> list[str | None]:
        """Return the place of each rank, None for no reply; [] if MPI cannot be used here.

        A rank replies only while it is in a collective call of the library.
        """
        comm = self._comm
        if comm is None or not _may_use_mpi():
            return []
        places: list[str | None] = [None] * comm.size
        places[comm.rank] = place
        self._requests = [
            comm.isend("", rank, self._tag) for rank in range(comm.size) if rank != comm.rank
        ]
        until = time.monotonic() + REPLY_S
        while time.monotonic() < until and None in places:
            self._reply_on(comm, place)
            while (message := _receive(comm, self._tag - 1)) is not None:
                places[message[0]] = message[1]
            time.sleep(TICK_S / 10)
        return places

    def _reply(self) -> None:
        """Reply to queries with the place of this rank."""
        with self._lock:
            comm, call = self._comm, self.call
            if comm is not None and call is not None and not call.alone and _may_use_mpi():
                self._reply_on(comm, call.place)

    def _reply_on(self, comm: MPI.Intracomm, place: str) -> None:
        while (message := _receive(comm, self._tag)) is not None:
            self._requests.append(comm.isend(place, message[0], self._tag - 1))

    def supersede(self, message: str) -> None:
        """End all ranks of a run that the RMS has given up; called on any thread."""
        self._end(message)

    def abandon(self, message: str) -> None:
        """End all ranks without a record, as a kill does; called on any thread."""
        self._record = lambda *_: None
        self._end(message)

    def _end(self, message: str, code: int = 1) -> None:
        """End all ranks; a status of 1 is a failure, any other a cancellation.

        A rank that has left the job ends alone, and leaves the record to the others.
        """
        from mpi4py import MPI

        def leave() -> None:
            if self.left:
                self._leave()
            os._exit(code)

        timer = threading.Timer(ABORT_S, leave)  # should a write or MPI_Abort not return
        timer.daemon = True
        timer.start()
        with contextlib.suppress(Exception):
            print(f"error: {message}", file=sys.stderr, flush=True)
        if self.left:
            leave()
        with contextlib.suppress(Exception):
            self._record("FAILED" if code == 1 else "CANCELLED", code, message)
        if MPI.Is_initialized() and not MPI.Is_finalized():
            abort(MPI.COMM_WORLD, code)
        os._exit(code)


def abort(comm: MPI.Intracomm, code: int) -> None:
    """Call MPI_Abort once the launcher has read the output of this process.

    Hydra's mpiexec exits at once on an abort, and with it goes the output that its proxy has not
    read from the pipes of the ranks.
    """
    until = time.monotonic() + DRAIN_S
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                continue
            while any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4))) and time.monotonic() < until:
                time.sleep(0.001)
    comm.Abort(code)


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


WATCH = Watch()
"""The watchdog of this process."""

os.register_at_fork(after_in_child=WATCH.forked)
