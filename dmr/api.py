"""The two ways to run a malleable program: with the library's loop, or with loops of its own."""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from mpi4py import MPI

from dmr.application import Application, Program, Run
from dmr.boot.environment import Runtime
from dmr.data.distributed import Spec
from dmr.errors import CollectiveError, UsageError
from dmr.loop.driver import note_variables
from dmr.loop.session import running
from dmr.loop.termination import TerminatedError
from dmr.plan import Plan
from dmr.state.progress import PerRank
from dmr.state.values import (
    ValuesError,
    adopt,
    digest,
    parts_of,
    pickle_digest,
    round_trip,
    unfillable_types,
)
from dmr.system.watch import WATCH
from rms.wire.messages import LAUNCHES_VARIABLE, PER_NODE

Fields = Mapping[str, Spec] | Callable[[], Mapping[str, Spec]]


def run(app: Application, runtime: Runtime, plan: Plan | None = None) -> Run:
    """Run an application to its last step through any number of worlds.

    Returns in the last world only; the ranks of earlier worlds leave by a normal exit.

    Raises:
        UsageError: on all ranks together, for arguments or environment variables that cannot be
            used. Uncaught, it ends the program with one message and status 2.
    """
    _report_errors(runtime.comm.rank)
    with running(app, runtime, plan or Plan()) as (state, driver):
        for _ in driver.loop(lambda: app.steps(state), single=True):
            app.step(state)
        app.finish(state)
        if runtime.check is not None:
            note_variables(state, app)
    return state


@contextlib.contextmanager
def malleable(
    comm: MPI.Intracomm | Runtime,
    fields: Fields | None = None,
    plan: Plan | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    build: Callable[[Run], None] | None = None,
    save: Callable[[Run], None] | None = None,
    load: Callable[[Run], None] | None = None,
    backends: tuple[str, ...] = (),
) -> Iterator[Run]:
    """Make loops of a program malleable::

        with dmr.malleable(comm, {"u": dmr.adapt(u, (N, M), halo=1)}, state={"time": 0.0}) as run:
            for step in run.loop(1000):
                ...

    Every world enters the block, and its loops go on at the very step. In a world that was
    replaced ``run.loop`` raises a ``SystemExit``, so only the last world executes the code after
    the loop. Code of the block before the loop sets up the present world: neighbours, scratch.
    Strategy merge keeps ranks in their loop, so it needs that code in ``build`` instead.
    ``run.resize_point()`` does the same in a loop that is not one of ``run.loop``.

    Args:
        comm: all ranks of the program (``MPI.COMM_WORLD``, or a communicator over the same
            ranks), or the :class:`~dmr.Runtime` of a program that needs it before the block.
        fields: the distributed arrays, or a function that returns them.
        plan: when the library may act.
        state: initial values of ``run.state``, the same on all ranks, and each :class:`~dmr.File`.
            Arrays, random generators, lists, dicts and objects are filled in place at any depth in
            a world that goes on (:func:`dmr.state.values.adopt`); read other values as
            ``run.state.NAME``. A :class:`~dmr.PerRank` differs from rank to rank.
        build: sets up a world, within the resize: if it raises :class:`dmr.UsageError` on all
            ranks, the resize is rolled back.
        save: ``save(run)`` brings the declared data up to date, on all ranks, before a resize, a
            checkpoint and a copy in memory: :meth:`dmr.Application.save`.
        load: ``load(run)`` takes it, on all ranks of a world that goes on, as the block is entered:
            :meth:`dmr.Application.load`.
        backends: as :attr:`dmr.Application.backends`.

    SIGTERM ends the program at a resize point with status 143, after a checkpoint if the plan has
    a folder for them.

    Raises:
        UsageError: on all ranks together, for arguments or environment variables that cannot be
            used. Uncaught, it ends the program with one message and status 2.
    """
    own = comm.comm if isinstance(comm, Runtime) else comm
    _report_errors(own.rank if MPI.Is_initialized() else 0)
    runtime = comm if isinstance(comm, Runtime) else _runtime_of(comm)
    files = {name: value for name, value in (state or {}).items() if isinstance(value, Spec)}
    values = {name: value for name, value in (state or {}).items() if name not in files}
    program = _Block(fields or {}, files, build, save, load, backends)
    try:
        with running(program, runtime, plan or Plan()) as (run, driver):
            run.internal.loops = driver
            if runtime.parent is not None and runtime.rendezvous is None:
                run.note(
                    "note: another program has spawned this one; ranks that replace these have "
                    "no MPI_Comm_get_parent to it"
                )
            if runtime.rendezvous is None:
                _check_state(run, values)
            _take_state(run, values)
            driver.start()
            try:
                yield run
            except (Exception, SystemExit):
                if not driver.has_left:
                    raise
                if not isinstance(sys.exception(), SystemExit):  # the job goes on elsewhere
                    traceback.print_exc()
            driver.finish()
            if runtime.check is not None:
                note_variables(run)
    except TerminatedError as error:
        if runtime.comm.rank == 0:
            print(error, file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None


class _Block(Program):
    """The arguments of a block as a program."""

    def __init__(
        self,
        fields: Fields,
        files: Mapping[str, Spec],
        build: Callable[[Run], None] | None,
        save: Callable[[Run], None] | None,
        load: Callable[[Run], None] | None,
        backends: tuple[str, ...],
    ) -> None:
        self._files = files
        self._fields, self._build, self._save, self._load = fields, build, save, load
        self.supports_merge, self.backends = build is not None, backends

    def fields(self) -> Mapping[str, Spec]:
        fields = self._fields() if callable(self._fields) else self._fields
        if both := [name for name in fields if name in self._files]:
            raise UsageError(f"expected a name each for fields and files, got {both[0]} for both")
        return {**fields, **self._files}

    def build(self, run: Run) -> None:
        if self._build is not None:
            self._build(run)

    def save(self, run: Run) -> None:
        if self._save is not None:
            self._save(run)

    def load(self, run: Run) -> None:
        if self._load is not None:
            self._load(run)


@functools.cache
def _report_errors(rank: int) -> None:
    """Let an uncaught CollectiveError end the program with one message, of rank 0, and its status.

    All ranks raise it, and each would print a traceback.
    """
    usual = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, CollectiveError):
            usual(kind, error, trace)
            return
        if rank == 0:
            print(f"dmr: error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code)

    sys.excepthook = report


def _runtime_of(comm: MPI.Intracomm) -> Runtime:
    if getattr(sys.modules.get("mpi4py.futures._core"), "SharedPool", None) is not None:
        raise UsageError(
            "expected every rank to run the program, got python -m mpi4py.futures, under which "
            "rank 0 does alone: start it without, and use MPICommExecutor(run.comm)"
        )
    if not MPI.Is_initialized():
        raise UsageError(
            "expected MPI to be initialised, got a session only: leave mpi4py.rc.initialize as it "
            "is, resizes need MPI_Comm_spawn or MPI_Comm_accept"
        )
    if comm.size != MPI.COMM_WORLD.size:
        raise UsageError(
            f"expected a communicator of all {MPI.COMM_WORLD.size} ranks, got one of {comm.size}: "
            "a resize replaces all of them"
        )
    runtime = Runtime.here(comm)
    if runtime.launches:
        raise UsageError(
            f"expected all ranks in one launch, got {len(runtime.launches)} ({LAUNCHES_VARIABLE}="
            f"{PER_NODE}): runtime = dmr.Runtime.here(comm) gives runtime.comm, all of them; "
            "hand dmr.malleable that runtime"
        )
    return runtime


def _check_state(run: Run, state: Mapping[str, Any]) -> None:
    """Refuse state that cannot be transferred; note state that differs by rank (collective)."""
    problem, digests = None, dict[str, str]()
    try:
        for name, value in state.items():
            pickled = pickle_digest(name, _initial(value))
            digests[name] = "" if isinstance(value, PerRank) else pickled
    except ValuesError as error:
        problem = str(error)
    for name in digests if run.world.rank == 0 else ():
        kinds = unfillable_types(_initial(state[name]))
        if kinds:
            run.note(
                f"note: run.state[{name!r}] holds {', '.join(kinds)}, which a resize cannot fill "
                f"in place: after a resize read run.state[{name!r}], not your own reference to it"
            )
    with WATCH.within("dmr.malleable"):
        ranks = run.world.internal_comm.allgather((problem, digests))
    problem = next((text for text, _ in ranks if text is not None), None)
    if problem is not None:
        raise UsageError(problem)
    for name in dict.fromkeys(name for _, theirs in ranks for name in theirs):
        values: set[str | None] = {theirs.get(name) for _, theirs in ranks}
        if len(values) > 1:  # the pickles differ; perhaps the values do not
            with WATCH.within("dmr.malleable"):
                values = set(run.world.internal_comm.allgather(_round_trip_digest(name, state)))
        if len(values) > 1:
            run.note(
                f"note: run.state[{name!r}] differs from rank to rank, and a resize gives all "
                "ranks the value of rank 0: declare values that differ by rank as "
                "dmr.PerRank(value, merge, split)"
            )


def _round_trip_digest(name: str, state: Mapping[str, Any]) -> str | None:
    try:
        return digest(name, round_trip(name, state[name]))
    except (KeyError, ValuesError):  # missing here, or a PerRank
        return None


def _initial(value: Any) -> Any:
    return value.value if isinstance(value, PerRank) else value


def _take_state(run: Run, state: Mapping[str, Any]) -> None:
    """Fill the program's values with the received ones; add the others to ``run.state``."""
    values = {name: _initial(value) for name, value in state.items()}
    for name, value in values.items():
        per_rank = state[name]
        if isinstance(per_rank, PerRank):
            run.internal.per_rank[name] = per_rank
        run.internal.parts[name] = parts_of(value)
        if name not in run.state:
            run.state[name] = value
            continue
        received = run.state[name]
        if isinstance(per_rank, PerRank):
            try:
                received = per_rank.part(name, received, run.world.rank, run.world.size)
            except ValuesError as error:
                raise UsageError(str(error)) from None  # as on all ranks: they have one value
        replaced = run.progress.replaced.get(name, ())
        others = [other for key, other in values.items() if key != name]
        fields = [block.storage for block in run.fields.values()]
        run.state[name] = adopt(value, received, replaced, others=others, fields=fields)
