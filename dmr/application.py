"""The interface between a malleable program and the library.

- A program sets initial values only in a run that restored nothing.
- Its fields, ``run.state`` and the step number move to a new world by themselves.
- Scratch and communication are rebuilt in each world.
- Code after :func:`dmr.run` runs in the last world only.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from mpi4py import MPI

from dmr.boot.environment import Runtime
from dmr.data.distributed import Spec
from dmr.errors import UsageError, outside_block, print_line
from dmr.state.progress import PerRank, Progress
from dmr.state.values import State
from dmr.system.watch import WATCH
from dmr.world import World
from rms.wire.messages import ResizeReport

if TYPE_CHECKING:
    from dmr.checkpoint.store import Lock
    from dmr.memory.copies import Copies
    from dmr.memory.steps import StepsFile
    from dmr.wire.rms import RmsClient


class Program(ABC):
    """The parts of a malleable program that do not depend on who has its loop.

    Attributes:
        supports_merge: whether its ranks can go on in another world (strategy merge).
        backends: names of the backends that it can compute with. A resize may change from one to
            another: a new world takes the one of :attr:`dmr.Runtime.backend` or, under an RMS,
            the one for its :attr:`dmr.Runtime.slot`. Only "backend" may then differ in the options.
    """

    supports_merge: bool = True
    backends: tuple[str, ...] = ()

    @abstractmethod
    def fields(self) -> Mapping[str, Spec]:
        """Return the distributed arrays, the same on every rank and in every world."""

    def prepare(self, run: Run) -> None:  # noqa: B027
        """Load modules, compile kernels and open devices for ``build``.

        Called in a world that is booted beside the running one, before it has any data: blocks
        are zeros, ``run.state`` is empty. ``build`` must not rely on it.
        """

    def build(self, run: Run) -> None:  # noqa: B027
        """Build scratch and communication for the current world. Called once in each world."""

    def save(self, run: Run) -> None:  # noqa: B027
        """Bring the declared data up to date, on all ranks of the world (may be collective).

        Called before a resize, a checkpoint and a copy in memory, and at the end of a run of
        ``dmr check``. Values set in ``run.state`` travel. :class:`dmr.UsageError` raised on all
        ranks rolls back the resize, or skips the checkpoint or copy.
        """

    def load(self, run: Run) -> None:  # noqa: B027
        """Take the declared data, on all ranks of a world that goes on (may be collective).

        Called once in each world that a resize, a checkpoint or a copy in memory has filled, after
        ``build`` and before its first step. With strategy merge it is called on the ranks that stay
        as well.
        """


class Application(Program):
    """A malleable program whose loop is that of the library (:func:`dmr.run`)."""

    @abstractmethod
    def steps(self, run: Run) -> int:
        """Return the number of steps of the whole run (called after ``build``)."""

    @abstractmethod
    def step(self, run: Run) -> None:
        """Advance the fields by one step."""

    def finish(self, run: Run) -> None:
        """Called after the last step, in the last world."""


class Loops(Protocol):
    """The loops of a run (:class:`dmr.loop.driver.Driver`)."""

    def loop(self, count: Callable[[], int]) -> Iterator[int]:
        """Yield the remaining steps of a loop of ``count()`` steps."""

    def resize_point(self, *, leave: bool) -> bool:
        """Act at a resize point of a loop of the program's own; return whether to stop it."""


@dataclass
class RunState:
    """The library's own state of a run in this process, grouped by its owner."""

    # --- the process: it outlives its world -----------------------------------------------------

    launch_comm: MPI.Intracomm
    """The ranks that were started together with this one."""
    sigterm: list[int]
    """The SIGTERM signals so far; a handler fills it."""
    can_connect: bool = True
    """Whether this process may call MPI_Comm_connect; not after a call that failed."""
    mpiexec: subprocess.Popen[bytes] | None = None
    """The launcher that this process has started for the next world."""

    # --- the session: from the entry of the block to its end --------------------------------------

    rms: RmsClient | None = None
    """Rank 0's client of the RMS."""
    checkpoint_lock: Lock | None = None
    """The right to write checkpoints."""
    copies: Copies | None = None
    """Copies in memory, under a supervisor."""
    steps: StepsFile | None = None
    """Where the supervisor sees how far this rank has come."""
    auto: bool = False
    """Whether the library chooses the strategy, also by the memory that is left."""
    rehearses: bool = False
    """Whether a scripted resize to the same number of ranks moves to that many new ranks."""

    # --- the program: what it has declared or requested -------------------------------------------

    per_rank: dict[str, PerRank] = field(default_factory=dict)
    """Values of the state that differ from rank to rank."""
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Objects within each value of the state as the program passed it, by path."""
    loops: Loops | None = None
    """The loops of :func:`dmr.malleable`; None if the library has the loop."""
    variables: dict[str, str] = field(default_factory=dict)
    """Hashes of variables that are not declared, at the end of a run of ``dmr check``."""
    requested: int = 0
    """Ranks that the program has requested, 0 for no request."""

    # --- the world: a resize starts it anew -------------------------------------------------------

    built: bool = False
    """Whether ``build`` has run in it."""
    attempts: int = 0
    """Resizes tried in it."""
    polls: int = 0
    """Resize points that it has come to."""
    memory_short: bool = False
    """Whether a second copy of it would not fit beside it."""
    cooldown_until: float = 0.0
    """The clock's time from which its next resize may begin."""
    carts: dict[tuple[tuple[int, ...], tuple[bool, ...]], MPI.Cartcomm] = field(
        default_factory=dict
    )
    """Its Cartesian communicators, by process grid and periods."""

    def free_carts(self) -> None:
        """Free the Cartesian communicators of a world that ends."""
        for cart in () if MPI.Is_finalized() else self.carts.values():
            cart.Free()
        self.carts.clear()


@dataclass
class Run:
    """A run, as its program sees it.

    Attributes:
        runtime: the surroundings of this process.
        world: the present world.
        fields: this rank's part of every field (:class:`dmr.Field`) and list (:class:`dmr.Items`).
        progress: the data that travels with the job besides its fields.
        restored: whether this world started from moved or checkpointed fields.
        internal: the library's own state.
    """

    runtime: Runtime
    world: World
    fields: dict[str, Any]
    progress: Progress
    restored: bool
    internal: RunState = field(repr=False)

    @property
    def comm(self) -> MPI.Intracomm:
        """The present ranks, for the program alone: the library has its own communicator."""
        if self.world.comm == MPI.COMM_NULL:
            raise outside_block("run.comm")
        return self.world.comm

    def cart(self, name: str = "", *, periodic: bool | Sequence[bool] = False) -> MPI.Cartcomm:
        """Return the present ranks as a Cartesian communicator (the first call is collective).

        Its ranks are those of :attr:`comm`, its dimensions the split axes of a field, in that
        order; its ``Shift`` and ``Get_coords`` agree with the position of the field's blocks. It
        is the world's: call this again after a resize.

        Args:
            name: of the field; by default one with the most split axes.
            periodic: whether the grid is, for all dimensions or each.

        Raises:
            UsageError: the field's ranks do not run as MPI's, along the last dimension first, or
                there are not as many periods as dimensions.
        """
        own = self.comm
        split = {key: block.decomposition for key, block in self.fields.items() if block.spec.split}
        candidates = [key for key in split if name in ("", key)]
        if not candidates:
            names = ", ".join(split) or "none"
            raise UsageError(f"expected run.cart of a field that is split ({names}), got {name!r}")
        name = max(candidates, key=lambda key: len(split[key].grid))
        decomposition = split[name]
        axes = len(decomposition.grid)
        if axes > 1 and not decomposition.row_major:
            raise UsageError(
                f"expected a field whose ranks run as MPI_Cart_create's for run.cart, got {name}, "
                "where they run along the first axis first: state it with row_major=True"
            )
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
        """Names and values that travel with the job, the same on all ranks.

        They are read and set as items and by attribute (``run.state.time``). A value is any object
        that can be pickled; numbers, text, lists, dicts and NumPy arrays travel without a pickle.
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
        """Request another number of ranks, for the next resize point after a cooldown.

        Any rank may call it; the largest request counts, within the limits of the plan. Under an
        RMS it is the RMS that grants it (a node a rank) or not.

        Raises:
            ValueError: fewer than 1.
        """
        if ranks < 1:
            raise ValueError(f"expected a request of at least 1 rank, got {ranks}")
        self.internal.requested = ranks

    def loop(self, steps: int) -> Iterator[int]:
        """Yield the remaining steps of a loop in the block of :func:`dmr.malleable`.

        Loops may follow one another and be nested. A new world goes on at the very step of each;
        code between the loops runs again there, so code that changes data once belongs into a loop
        of one step. ``break`` ends a loop, if all ranks come to it.

        Raises:
            RuntimeError: the library has the loop already (:func:`dmr.run`).
            UsageError: a checkpoint has done more steps.
        """
        if self.internal.loops is None:
            raise RuntimeError("expected run.loop in a block of dmr.malleable")
        return self.internal.loops.loop(lambda: index(steps))

    def resize_point(self, *, leave: bool = True) -> bool:
        """Let the ranks be replaced here (collective): for ``while`` loops and others of your own.

        A new world runs the program from its first line, with the fields and the :attr:`state` of
        this call: keep counters in the state, and skip by them the work that is done. Every call
        is a resize point, counted by :attr:`step`; checkpoints are written here.

        Args:
            leave: whether ranks that are replaced, or end after SIGTERM, leave here, by a
                ``SystemExit``. With False they go on to the end of the block and leave there, for
                a loop that a library has: ``if run.resize_point(leave=False): return``. Their
                fields are gone. With strategy merge other ranks stay in the loop, so nothing
                collective is possible, and :attr:`comm` is gone as well.

        Returns:
            Whether this rank is to stop its loop; True only with ``leave=False``.

        Raises:
            RuntimeError: the library has the loop already (:func:`dmr.run`).
            UsageError: within :meth:`loop`, which has resize points of its own.
        """
        if self.internal.loops is None:
            raise RuntimeError("expected run.resize_point in a block of dmr.malleable")
        return self.internal.loops.resize_point(leave=leave)

    def say(self, text: str) -> None:
        """Print a line, from rank 0 only."""
        self._print(text, self.runtime.output or self.runtime.log)

    def note(self, text: str) -> None:
        """Print a line of the library's own, from rank 0 only."""
        self._print(text, self.runtime.log)

    def _print(self, text: str, file: TextIO) -> None:
        if self.world.rank == 0:
            print_line(text, file)
