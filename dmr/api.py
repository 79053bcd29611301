"""The two ways to run a malleable program: the library's loop, or one of the caller's own."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from mpi4py import MPI

from dmr.application import Application, Run
from dmr.boot.environment import Runtime
from dmr.data.distributed import Spec
from dmr.errors import CollectiveError, UsageError
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
from rms.wire.messages import LAUNCHES_VARIABLE, PER_NODE, ResizeReport

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
        for _ in driver.loop(lambda: app.steps(state), only=True):
            app.step(state)
        app.finish(state)
    return state


@contextlib.contextmanager
def malleable(
    comm: MPI.Intracomm | Runtime,
    fields: Fields | None = None,
    plan: Plan | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    build: Callable[[Run], None] | None = None,
    before: Callable[[Run, int], None] | None = None,
    after: Callable[[Run, ResizeReport | None], None] | None = None,
    backends: tuple[str, ...] = (),
) -> Iterator[Run]:
    """Make loops of one's own malleable::

        with dmr.malleable(comm, {"u": dmr.adapt(u, (N, M), halo=1)}, state={"time": 0.0}) as run:
            for step in run.loop(1000):
                ...

    Every world enters the block and its loops go on at the very step; in a world that was
    replaced ``run.loop`` raises a ``SystemExit``, so what follows the loop is reached by the last
    world alone. What the block does before the loop belongs to the present world: neighbours,
    scratch. Strategy merge keeps ranks in their loop, so it needs that in ``build`` instead.
    Where a loop is none of the library's, ``run.resize_point()`` in it does the same.

    Args:
        comm: all ranks of the program (``MPI.COMM_WORLD``, or a communicator over the same ranks);
            or a :class:`~dmr.Runtime`, where the program needs to know of it before.
        fields: the distributed arrays, or a function that states them.
        plan: when the library may act.
        state: what ``run.state`` holds in the beginning, the same on all ranks. Arrays, random
            generators, lists, dicts and objects are filled in place at any depth in a world that
            goes on (:func:`dmr.state.values.adopt`); read other values as ``run.state.NAME``. A
            :class:`~dmr.PerRank` differs from rank to rank.
        build: builds what belongs to a world, within the resize: if it raises
            :class:`dmr.UsageError` on all ranks, that is rolled back.
        before, after: called around a resize and a checkpoint, as
            :meth:`dmr.Application.before_resize` and :meth:`~dmr.Application.after_resize`.
        backends: as :attr:`dmr.Application.backends`.

    SIGTERM ends it at a resize point, with a checkpoint where the plan has a place for them, by a
    ``SystemExit`` of status 143.

    Raises:
        UsageError: on all ranks together, for arguments or environment variables that cannot be
            used. Uncaught, it ends the program with one message and status 2.
    """
    own = comm.comm if isinstance(comm, Runtime) else comm
    _report_errors(own.rank if MPI.Is_initialized() else 0)
    app = _Block({} if fields is None else fields, build, before, after)
    app.backends = backends
    runtime = comm if isinstance(comm, Runtime) else _runtime_of(comm)
    try:
        with running(app, runtime, plan or Plan()) as (run, driver):
            run.internal.loops = driver
            if runtime.parent is not None and runtime.rendezvous is None:
                run.note(
                    "note: another program has spawned this one; ranks that replace these have "
                    "no MPI_Comm_get_parent to it"
                )
            if runtime.rendezvous is None:
                _check_state(run, state or {})
            _take_state(run, state or {})
            driver.enter()
            yield run
            driver.finish()
    except TerminatedError as error:
        if runtime.comm.rank == 0:
            print(error, file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None


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
    """Return what surrounds a program, whose ranks are those of a communicator.

    Raises:
        UsageError: there are others, which would know nothing of a resize, or MPI is not
            initialised.
    """
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
    """Refuse state that cannot be transferred; note state that differs by rank (collective).

    Raises:
        UsageError: a value cannot be pickled, unpickled or filled.
    """
    problem, mine = None, dict[str, str]()
    try:
        for name, value in state.items():
            per_rank = isinstance(value, PerRank)
            pickled = pickle_digest(name, value.value if per_rank else value)
            mine[name] = "" if per_rank else pickled
    except ValuesError as error:
        problem = str(error)
    for name in mine if run.world.rank == 0 else ():
        value = state[name]
        kinds = unfillable_types(value.value if isinstance(value, PerRank) else value)
        if kinds:
            run.note(
                f"note: run.state[{name!r}] holds {', '.join(kinds)}, which a resize cannot fill "
                f"in place: after a resize read run.state[{name!r}], not your own reference to it"
            )
    with WATCH.within("dmr.malleable"):
        ranks = run.world.internal_comm.allgather((problem, mine))
    problem = next((text for text, _ in ranks if text is not None), None)
    if problem is not None:
        raise UsageError(problem)
    for name in dict.fromkeys(name for _, each in ranks for name in each):
        digests: set[str | None] = {each.get(name) for _, each in ranks}
        if len(digests) > 1:
            with WATCH.within("dmr.malleable"):
                digests = set(run.world.internal_comm.allgather(_round_trip_digest(name, state)))
        if len(digests) > 1:
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


def _take_state(run: Run, state: Mapping[str, Any]) -> None:
    """Have in ``run.state`` what has arrived, and of the rest what the program gives."""
    values = {
        name: given.value if isinstance(given, PerRank) else given for name, given in state.items()
    }
    for name, given in state.items():
        value = values[name]
        if isinstance(given, PerRank):
            run.internal.per_rank[name] = given
        run.internal.parts[name] = parts_of(value)
        if name not in run.state:
            run.state[name] = value
            continue
        arrived = run.state[name]
        if isinstance(given, PerRank):
            try:
                arrived = given.part(name, arrived, run.world.rank, run.world.size)
            except ValuesError as error:
                raise UsageError(str(error)) from None  # as on all ranks: they have one value
        replaced = run.progress.replaced.get(name, ())
        others = [other for key, other in values.items() if key != name]
        fields = [block.storage for block in run.fields.values()]
        run.state[name] = adopt(value, arrived, replaced, others=others, fields=fields)


class _Block(Application):
    """What a block states, as an application whose loop is the caller's."""

    def __init__(
        self,
        fields: Fields,
        build: Callable[[Run], None] | None,
        before: Callable[[Run, int], None] | None,
        after: Callable[[Run, ResizeReport | None], None] | None,
    ) -> None:
        self._fields, self._build, self._before, self._after = fields, build, before, after
        self.supports_merge = build is not None

    def fields(self) -> Mapping[str, Spec]:
        return self._fields() if callable(self._fields) else self._fields

    def build(self, run: Run) -> None:
        if self._build is not None:
            self._build(run)

    def steps(self, run: Run) -> int:
        raise RuntimeError("expected the caller's own loops to count their steps")

    def step(self, run: Run) -> None:
        raise RuntimeError("expected the caller's own loop to step")

    def before_resize(self, run: Run, ranks: int) -> None:
        if self._before is not None:
            self._before(run, ranks)

    def after_resize(self, run: Run, record: ResizeReport | None) -> None:
        if self._after is not None:
            self._after(run, record)
