"""What a malleable program states, and what it sees of its run.

Initial values are set only where nothing was restored; step number, values and records travel
by themselves; scratch is rebuilt, not moved; and the code after :func:`dmr.run` is reached by the
last world alone.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Protocol, TextIO

from mpi4py import MPI

from dmr.boot.environment import Runtime
from dmr.checkpoint.store import Lock
from dmr.data.distributed import Spec
from dmr.errors import UsageError, outside_block, print_line
from dmr.state.progress import PerRank, Progress
from dmr.state.values import State
from dmr.system.watch import WATCH
from dmr.wire.rms import RmsClient
from dmr.world import World
from rms.wire.messages import ResizeReport


class Application(ABC):
    """What a malleable program states; :func:`run` does the rest.

    Attributes:
        supports_merge: whether its ranks can go on in another world (strategy merge).
        backends: what it can compute with. A resize may lead from one of them to another: a new
            world takes the one named by :attr:`dmr.Runtime.backend`, or, under an RMS, what its
            :attr:`dmr.Runtime.slot` is good for. Only "backend" may then differ in the options.
    """

    supports_merge: bool = True
    backends: tuple[str, ...] = ()

    @abstractmethod
    def fields(self) -> Mapping[str, Spec]:
        """Return the distributed arrays, the same on every rank and in every world."""

    def prepare(self, run: Run) -> None:  # noqa: B027
        """Do early what ``build`` will need: load modules, compile kernels, open devices.

        Called in a world that is booted beside the running one, before it has any data: blocks
        are zeros, ``run.state`` is empty. ``build`` must not rely on it.
        """

    def build(self, run: Run) -> None:  # noqa: B027 - nothing to build is a fair answer
        """Build what belongs to the current world: scratch, communication. Once per world."""

    @abstractmethod
    def steps(self, run: Run) -> int:
        """Return the number of steps of the whole run (called after ``build``)."""

    @abstractmethod
    def step(self, run: Run) -> None:
        """Advance the fields by one step."""

    def finish(self, run: Run) -> None:  # noqa: B027
        """Do what is left to do after the last step, in the last world."""

    def before_resize(self, run: Run, ranks: int) -> None:  # noqa: B027
        """Called before a resize or a checkpoint, on all ranks of the world.

        Values set in ``run.state`` are transferred. Before a checkpoint ``ranks`` is the current
        number. :class:`dmr.UsageError` raised on all ranks rolls back the resize, or skips the
        checkpoint.
        """

    def after_resize(self, run: Run, record: ResizeReport | None) -> None:  # noqa: B027
        """Go on after a resize, on all ranks of the new world, before its first step.

        After a rollback, and after a checkpoint, ``record`` is None, and the ranks are the old
        ones.
        """


class Loops(Protocol):
    """What the loops of a run need of :class:`dmr.loop.driver.Driver`."""

    def loop(self, count: Callable[[], int]) -> Iterator[int]:
        """Yield the steps that are left of a loop of so many."""

    def point(self) -> None:
        """Act at a resize point of a loop that is none of the library's."""


@dataclass
class RunState:
    """What the library itself keeps of a run, in this process.

    Attributes:
        launch_comm: (of the process) the ranks that were started together with this one.
        sigterm: the SIGTERM signals that have come in so far; filled by a handler.
        can_connect: whether this process may call MPI_Comm_connect (still).
        mpiexec: what this process has started for the next world.
        rms: (of the session) rank 0's client of the RMS, where there is one.
        checkpoint_lock: the right to write checkpoints, where there are any.
        auto: whether the library chooses the strategy, also by the memory that is left.
        rehearses: whether a scripted resize to as many ranks moves to as many new ones.
        per_rank: (of the program) what of the state differs from rank to rank.
        parts: objects within each value of the state as the program passed it, by path.
        loops: those of :func:`dmr.malleable`, None where the library has the loop.
        requested: ranks that the application has asked for, 0 if it has not.
        built: (of the world) whether ``build`` has run in it.
        attempts: resizes tried in it.
        polls: resize points that it has come to.
        memory_short: whether a second copy of it would not fit beside it.
        cooldown_until: the clock's time from which its next resize may begin.
        carts: Cartesian communicators of it, by process grid and periods.
    """

    launch_comm: MPI.Intracomm
    sigterm: list[int]
    can_connect: bool = True
    mpiexec: subprocess.Popen[bytes] | None = None

    rms: RmsClient | None = None
    checkpoint_lock: Lock | None = None
    auto: bool = False
    rehearses: bool = False

    per_rank: dict[str, PerRank] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    loops: Loops | None = None
    requested: int = 0

    built: bool = False
    attempts: int = 0
    polls: int = 0
    memory_short: bool = False
    cooldown_until: float = 0.0
    carts: dict[tuple[tuple[int, ...], tuple[bool, ...]], MPI.Cartcomm] = field(
        default_factory=dict
    )

    def free_carts(self) -> None:
        """Free the Cartesian communicators of a world that ends."""
        for cart in () if MPI.Is_finalized() else self.carts.values():
            cart.Free()
        self.carts.clear()


@dataclass
class Run:
    """What an application sees of its run.

    Attributes:
        runtime: what surrounds this process.
        world: the present world.
        fields: this rank's part of every field (:class:`dmr.Field`) and list (:class:`dmr.Items`).
        progress: what travels with the job besides its fields.
        restored: whether this world started from moved or checkpointed fields.
        internal: the library's own.
    """

    runtime: Runtime
    world: World
    fields: dict[str, Any]
    progress: Progress
    restored: bool
    internal: RunState = field(repr=False)

    @property
    def comm(self) -> MPI.Intracomm:
        """The ranks of now, for the application alone: the library's messages go elsewhere."""
        if self.world.comm == MPI.COMM_NULL:
            raise outside_block("run.comm")
        return self.world.comm

    def cart(self, name: str = "", *, periodic: bool | Sequence[bool] = False) -> MPI.Cartcomm:
        """Return the ranks of now as MPI_Cart_create has them (collective when asked first).

        Its ranks are those of :attr:`comm`, its dimensions the split axes of a field, in that
        order; its ``Shift`` and ``Get_coords`` agree with where the field's blocks lie. It is the
        world's: ask again after a resize.

        Args:
            name: of the field; by default one with the most split axes.
            periodic: whether the grid is, for all dimensions or each.

        Raises:
            UsageError: the field's ranks do not run as MPI's, along the last dimension first, or
                there are not as many periods as dimensions.
        """
        own = self.comm
        fields = self.fields.items()
        found = [(key, block.decomposition) for key, block in fields if block.spec.split]
        named = [one for one in found if name in ("", one[0])]
        if not named:
            known = ", ".join(key for key, _ in found) or "none"
            raise UsageError(f"expected run.cart of a field that is split ({known}), got {name!r}")
        name, decomposition = max(named, key=lambda one: len(one[1].grid))
        if len(decomposition.grid) > 1 and not decomposition.row_major:
            raise UsageError(
                f"expected a field whose ranks run as MPI_Cart_create's for run.cart, got {name}, "
                "where they run along the first axis first: state it with row_major=True"
            )
        axes = len(decomposition.grid)
        periods = (periodic,) * axes if isinstance(periodic, bool) else tuple(map(bool, periodic))
        if len(periods) != axes:
            raise UsageError(f"expected periodic for {axes} dimensions, got {len(periods)}")
        carts, key = self.internal.carts, (tuple(decomposition.grid), periods)
        if key not in carts:
            with WATCH.within("run.cart"):
                carts[key] = own.Create_cart(key[0], periods=periods, reorder=False)
        return carts[key]

    @property
    def step(self) -> int:
        """Steps done so far, over all worlds and loops; calls of :meth:`resize_point` count."""
        return self.progress.step

    @property
    def state(self) -> State:
        """What travels with the job besides its fields, the same on all ranks.

        Names and values, as a dictionary and by attribute: ``run.state.time``. Whatever can be
        pickled; plain numbers, text, lists, dicts and NumPy arrays go without a pickle.
        """
        if not isinstance(self.progress.values, State):
            self.progress.values = State(self.progress.values)
        return self.progress.values

    @property
    def resizes(self) -> list[ResizeReport]:
        """The resizes done so far."""
        return self.progress.resizes

    @property
    def elapsed_s(self) -> float:
        """Seconds of the loop so far, stalls included, over all worlds."""
        return self.progress.elapsed_s

    def request(self, ranks: int) -> None:
        """Ask for another number of ranks; answered at the next resize point after a cooldown.

        Any rank may ask; the largest number asked for counts, brought to what the plan allows.
        Under an RMS it is the RMS that grants it (a node a rank) or not.

        Raises:
            ValueError: fewer than 1.
        """
        if ranks < 1:
            raise ValueError(f"expected a request of at least 1 rank, got {ranks}")
        self.internal.requested = ranks

    def loop(self, steps: int) -> Iterator[int]:
        """Yield the steps that are left of ``steps``, in the block of :func:`dmr.malleable`.

        Loops may follow one another and be nested. A new world goes on at the very step of each;
        what the program does between them is done again there, so what changes data once stands
        in a loop of one step. ``break`` ends a loop, if all ranks come to it.

        Raises:
            RuntimeError: the library has the loop already (:func:`dmr.run`).
            UsageError: a checkpoint has done more steps.
        """
        if self.internal.loops is None:
            raise RuntimeError("expected run.loop in a block of dmr.malleable")
        return self.internal.loops.loop(lambda: index(steps))

    def resize_point(self) -> None:
        """Let the ranks be replaced here (collective): for ``while`` loops and others of your own.

        A new world runs the program from its first line, with the fields and :attr:`state` that
        were at this call: counters belong into the state, and what is done already is skipped by
        them. Every call is a resize point, counted by :attr:`step`; checkpoints are written here.

        Raises:
            RuntimeError: the library has the loop already (:func:`dmr.run`).
            UsageError: within :meth:`loop`, which has resize points of its own.
        """
        if self.internal.loops is None:
            raise RuntimeError("expected run.resize_point in a block of dmr.malleable")
        self.internal.loops.point()

    def say(self, text: str) -> None:
        """Print a line, from rank 0 only."""
        self._print(text, self.runtime.output or self.runtime.log)

    def note(self, text: str) -> None:
        """Print a line of the library's own, from rank 0 only."""
        self._print(text, self.runtime.log)

    def _print(self, text: str, file: TextIO) -> None:
        if self.world.rank == 0:
            print_line(text, file)
