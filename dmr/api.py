"""The two ways to run a malleable program: the library's loop, or one of the caller's own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping

from dmr.application import Application, Run
from dmr.boot.environment import Runtime
from dmr.data.field import FieldSpec
from dmr.errors import UsageError
from dmr.plan import Plan
from dmr.session import running
from dmr.termination import TerminatedError
from rms.wire.messages import Resize

Fields = Mapping[str, FieldSpec] | Callable[[], Mapping[str, FieldSpec]]


def run(app: Application, runtime: Runtime, plan: Plan | None = None) -> Run:
    """Run an application to its last step through any number of worlds.

    Returns in the last world only; the ranks of earlier worlds leave by a normal exit.

    Raises:
        UsageError: on all ranks together, for what the user asked and cannot be had.
    """
    with running(app, runtime, plan or Plan()) as (state, steps):
        for _ in steps:
            app.step(state)
        app.finish(state)
    return state


@contextlib.contextmanager
def malleable(
    runtime: Runtime,
    fields: Fields,
    plan: Plan | None = None,
    *,
    build: Callable[[Run], None] | None = None,
    before: Callable[[Run, int], None] | None = None,
    after: Callable[[Run, Resize | None], None] | None = None,
    backends: tuple[str, ...] = (),
) -> Iterator[Run]:
    """Make a loop of one's own malleable::

        with dmr.malleable(runtime, fields, plan) as run:
            u = run.fields["u"].padded
            for step in run.loop(1000):
                ...

    Every world enters the block and its loop goes on at the very step; in a world that was
    replaced ``run.loop`` raises a ``SystemExit``, so what follows the loop is reached by the last
    world alone. What the block does before the loop belongs to the present world: neighbours,
    scratch. Strategy merge keeps ranks in their loop, so it needs that in ``build`` instead.

    Args:
        runtime: ``dmr.Runtime.here(MPI.COMM_WORLD)``.
        fields: the distributed arrays, or a function that states them.
        plan: when the library may act.
        build: builds what belongs to a world, within the resize: if it raises
            :class:`dmr.UsageError` on all ranks, that is rolled back.
        before, after: called around a resize, as :meth:`dmr.Application.before_resize` and
            :meth:`~dmr.Application.after_resize`.

        backends: as :attr:`dmr.Application.backends`.

    SIGTERM ends it at a resize point, with a checkpoint where the plan has a place for them, by a
    ``SystemExit`` of status 143.

    Raises:
        UsageError: on all ranks together, for what the user asked and cannot be had.
    """
    app = _Block(fields, build, before, after)
    app.backends = backends
    try:
        with running(app, runtime, plan or Plan()) as (run, left):

            def loop(steps: int) -> Iterator[int]:
                if app.total is not None:
                    raise UsageError(
                        "expected one run.loop in a block of dmr.malleable, got a second one"
                    )
                app.total = steps
                return left

            run.state.loop = loop
            yield run
    except TerminatedError as error:
        if runtime.comm.rank == 0:
            print(error, file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None


class _Block(Application):
    """What a block states, as an application whose loop is the caller's."""

    def __init__(
        self,
        fields: Fields,
        build: Callable[[Run], None] | None,
        before: Callable[[Run, int], None] | None,
        after: Callable[[Run, Resize | None], None] | None,
    ) -> None:
        self._fields, self._build, self._before, self._after = fields, build, before, after
        self.total: int | None = None
        self.supports_merge = build is not None

    def fields(self) -> Mapping[str, FieldSpec]:
        return self._fields() if callable(self._fields) else self._fields

    def build(self, run: Run) -> None:
        if self._build is not None:
            self._build(run)

    def steps(self, run: Run) -> int:
        return self.total or 0

    def step(self, run: Run) -> None:
        raise RuntimeError("expected the caller's own loop to step")

    def before_resize(self, run: Run, ranks: int) -> None:
        if self._before is not None:
            self._before(run, ranks)

    def after_resize(self, run: Run, record: Resize | None) -> None:
        if self._after is not None:
            self._after(run, record)
