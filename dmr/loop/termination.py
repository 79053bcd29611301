"""The end of a world: one message, one exit status, one completion record.

Abnormal ends go through MPI_Abort, because mpiexec's status does not cover a spawned world that
ends in any other way.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

from mpi4py import MPI

from dmr.boot.environment import Runtime
from dmr.boot.mpiexec import leave_launcher
from dmr.errors import CollectiveError, Left, described
from dmr.state.progress import Progress
from dmr.system.watch import WATCH, abort
from rms.wire.messages import (
    SUPERVISOR_VARIABLE,
    CompletionRecord,
    EndState,
    write_completion,
)

ABORT_CODE = 1
SIGTERM_CODE = 143
SIGINT_CODE = 130


class TerminatedError(CollectiveError):
    """All ranks saw SIGTERM at a resize point and have saved what they could."""

    exit_code = SIGTERM_CODE


class Ending:
    """Ends a world, and writes the completion record with the progress of the job."""

    def __init__(self, runtime: Runtime, comm: MPI.Intracomm) -> None:
        self._runtime = runtime
        self.comm = comm
        self._progress = Progress()

    def watch(self, progress: Progress, comm: MPI.Intracomm) -> None:
        """Set the progress and the ranks that a record states."""
        self._progress, self.comm = progress, comm
        WATCH.query_on(comm)

    def completed(self) -> None:
        """Record that all ranks have come to the end (collective).

        Raises:
            CollectiveError: the completion record cannot be written.
        """
        with WATCH.within("the end of the block"):
            self.comm.Barrier()
        problem = None
        with WATCH.within("the end of the block", patient=True):
            if self.comm.rank == 0:
                try:
                    self.record("COMPLETED", 0, "")
                except OSError as error:
                    problem = f"cannot write {self._runtime.completion}: {error.strerror}"
            problem = self.comm.bcast(problem)
        if problem is not None:
            raise CollectiveError(problem)

    def record(self, state: EndState, exit_code: int, message: str) -> None:
        """Write the completion record, if the runtime has a file for it."""
        if self._runtime.completion is None:
            return
        write_completion(
            self._runtime.completion,
            CompletionRecord(
                state=state,
                exit_code=exit_code,
                message=message,
                step=self._progress.step,
                generation=self._progress.generation,
                ranks=self.comm.size,
                answer=str(self._progress.values.get("answer", "")) if state == "COMPLETED" else "",
            ),
        )

    def collective(self, error: CollectiveError) -> None:
        """End after an error of all ranks: rank 0 reports it (collective)."""
        if self.comm.rank == 0:
            state: EndState = "CANCELLED" if isinstance(error, TerminatedError) else "FAILED"
            with contextlib.suppress(OSError):
                self.record(state, error.exit_code, str(error))
        with WATCH.within("the end of the block"):
            spawned = self.comm.allreduce(self._runtime.parent is not None, MPI.LOR)
        if spawned:
            # No process receives a spawned rank's exit status, so its world must end by MPI_Abort.
            if self.comm.rank == 0:
                print(f"error: {error}", file=sys.stderr, flush=True)
            abort(self.comm, error.exit_code)

    def alone(self, error: BaseException) -> NoReturn:
        """End all ranks after an error of this rank.

        Under a supervisor an error of MPI leaves no record: another rank may have died.
        """
        message = f"rank {self.comm.rank} of {self.comm.size}: {described(error)}"
        died = isinstance(error, MPI.Exception) and SUPERVISOR_VARIABLE in self._runtime.env
        with contextlib.suppress(OSError):
            if not died:
                self.record("FAILED", ABORT_CODE, message)
        trace = "".join(traceback.format_exception(error))
        print(f"{trace}error: {message}", file=sys.stderr, flush=True)
        abort(self.comm, ABORT_CODE)
        raise AssertionError("MPI_Abort returned")


@contextlib.contextmanager
def ending(runtime: Runtime, comm: MPI.Intracomm) -> Iterator[Ending]:
    """End the world as the block ends.

    A normal end is COMPLETED. A :class:`CollectiveError` is recorded and passes on; a rank that
    leaves its world passes on. Any other exception ends all ranks with this rank's message.
    """
    end = Ending(runtime, comm)
    WATCH.on_end(end.record, leave_launcher)
    try:
        yield end
        end.completed()
    except CollectiveError as error:
        end.collective(error)
        raise
    except Left:
        raise
    except KeyboardInterrupt:
        abort(end.comm, SIGINT_CODE)
    except BaseException as error:
        end.alone(error)
