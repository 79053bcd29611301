"""The new world's side of a resize: boot, wait, take over, or leave quietly.

See :mod:`dmr.resize.source` for what the two worlds say to each other.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mpi4py import MPI

from dmr import checkpoint
from dmr.boot.environment import bind
from dmr.data import transfer
from dmr.data.field import Field, FieldSpec
from dmr.errors import CollectiveError
from dmr.resize import merge
from dmr.resize.source import Left, signature
from dmr.termination import give_way
from dmr.wire.channel import ChannelError, ControlChannel
from dmr.wire.protocol import (
    Accepted,
    Acknowledged,
    Arrived,
    Build,
    Committed,
    Header,
    Message,
    Refused,
    Stored,
    TakenOver,
)
from dmr.wire.ranks import RankMessages
from dmr.world import World, grid_for

if TYPE_CHECKING:
    from dmr.application import Application, Plan, Run

M = TypeVar("M", bound=Message)
IDLE_S = 1e-3
"""Sleep between looks of ranks that wait to be called: the old world needs their core."""


class RefusalError(Exception):
    """This world cannot take over; one sentence for the old one."""


@dataclass
class Newcomer:
    """A world that was booted beside a running one."""

    app: Application
    run: Run
    plan: Plan
    channel: ControlChannel | None = None
    inter: MPI.Intercomm | None = None
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.messages = RankMessages(self.run.world.internal_comm, 0)
        self.inter = self.run.runtime.parent

    def take_over(self) -> None:
        """Wait for the old world and become the job (collective).

        Raises:
            Left: it was refused, or nobody came.
        """
        with self.stack:
            try:
                self._take_over()
            except RefusalError as error:
                self._leave(str(error))
            except Exception as error:
                give_way(self.run.runtime, self.messages, error, self.channel)

    def _take_over(self) -> None:
        run = self.run
        port = self._prepare()
        header = self._meet(port)
        if run.runtime.slot:
            bind(run.runtime.slot)
        in_host = self._agree_to(header)
        run.progress = header.progress
        if header.strategy == "merge":
            self._join(header, port, in_host)
            return
        run.progress.generation += 1
        run.world = World(
            run.world.comm, run.world.internal_comm, run.progress.generation, run.world.grid
        )
        run.progress.groups = [(run.runtime.launch, run.world.size)]
        if header.strategy != "restart":
            self.inter = self._accept(port)
        times = (0.0, 0.0, 0.0)
        if header.strategy == "restart":
            times = (self._read(), 0.0, 0.0)
        elif self.inter is not None:
            times = self._receive(self.inter, header, in_host)
        moved = time.perf_counter()
        self._build()
        self._acknowledge((*times, time.perf_counter() - moved))
        if self.inter is not None:
            self.inter.Disconnect()

    # --- before the call ---------------------------------------------------------------------

    def _prepare(self) -> str:
        """Do what needs no data: prefault the memory, load kernels; return the MPI port."""
        for block in self.run.fields.values():
            block.prefault()  # pages are there before the data is
        self.app.prepare(self.run)
        port = ""
        if self.inter is None and self.run.world.rank == 0:
            with contextlib.suppress(MPI.Exception):
                port = MPI.Open_port()
                self.stack.callback(MPI.Close_port, port)
        return port

    def _meet(self, port: str) -> Header:
        runtime = self.run.runtime
        if self.messages.is_root:
            if runtime.rendezvous is None:
                raise RuntimeError("expected to meet a running world")
            try:
                self.channel = self.stack.enter_context(
                    runtime.rendezvous.meet(runtime.manager, port)
                )
                words: Any = self._expect(Header)
            except ChannelError as error:
                words = str(error)
            self.messages.send_all(words)
        else:
            words = self.messages.receive(sleep_s=IDLE_S)
        if isinstance(words, str):
            raise RefusalError(words)
        header: Header = words
        return header

    def _agree_to(self, header: Header) -> bool:
        """Refuse a job of other fields or options; return whether blocks come without packing."""
        run = self.run
        mine = all(block.in_host for block in run.fields.values())
        wrong = differing("field", header.signature, signature(specs_of(run))) or differing(
            "option",
            self._fixed(header.options, header.strategy),
            self._fixed(self.plan.options, header.strategy),
        )
        if header.ranks != run.world.size and header.strategy != "merge":
            wrong = wrong or f"expected {header.ranks} ranks, got {run.world.size}"
        found = self._all(wrong)
        if found is not None:
            raise RefusalError(found)
        if self.messages.is_root:
            self._say(Accepted(mine))
        return mine and header.in_host

    def _fixed(self, options: Mapping[str, Any], strategy: str) -> dict[str, Any]:
        """Return the options that may not change: the backend may, if no rank stays."""
        known = () if strategy == "merge" else self.app.backends
        return {k: v for k, v in options.items() if k != "backend" or v not in known}

    def _accept(self, port: str) -> MPI.Intercomm:
        """Return the inter-communicator to the old world: MPI's own, or met at the port."""
        return self.inter or self.run.world.internal_comm.Accept(port)

    def _build(self) -> None:
        """Build for this world; what all ranks find wrong is a reason to refuse."""
        try:
            self.app.build(self.run)
        except CollectiveError as error:
            raise RefusalError(str(error)) from None
        self.run.built = True

    def _join(self, header: Header, port: str, in_host: bool) -> None:
        """Become part of the running world (merge)."""
        run, own = self.run, self.run.world
        comm = merge.join(own.internal_comm, self._accept(port), high=True, keep=True)
        for _ in header.joined[header.place + 1 :]:
            comm = merge.join(comm, comm.Connect(""), high=False, keep=False)
        begun = time.perf_counter()
        grid = grid_for(header.ranks, list(specs_of(run).values()))
        fields: dict[str, Field] = {}
        intact = True
        for name, spec in specs_of(run).items():
            fields[name] = block = spec.block(spec.decompose(grid), comm.rank)
            old = spec.decompose(header.grid)
            intact &= transfer.receive(comm, block, old, in_host=in_host, check=self._alive)
        wrong = self._all(None if intact else "data did not arrive whole")
        if wrong is not None:
            raise RefusalError(wrong)
        moved_s = time.perf_counter() - begun
        self._may_build(moved_s)
        begun = time.perf_counter()
        worlds = header.joined or ((run.runtime.launch, own.size),)
        merge.enter(run, comm, grid, fields, [*header.progress.groups, *worlds])
        self._build()
        self._acknowledge((moved_s, 0.0, 0.0, time.perf_counter() - begun), joins=True)
        cost = run.progress.open_resize
        if cost is None:
            raise RuntimeError("expected what the resize has cost")
        merge.settle(run, own, cost)

    def _may_build(self, moved_s: float) -> None:
        """Say that all is here; wait until it is everywhere (merge)."""
        if not self.messages.is_root:
            self.messages.report(moved_s)
            words = self.messages.receive()
        else:
            try:
                self._say(Arrived(max([moved_s, *self._reports()])))
                self._expect(Build)
                words = None
            except ChannelError as error:
                words = str(error)
            self.messages.send_all(words)
        if words is not None:
            raise RefusalError(words)

    # --- data --------------------------------------------------------------------------------

    def _receive(
        self, inter: MPI.Intercomm, header: Header, in_host: bool
    ) -> tuple[float, float, float]:
        """Fill the blocks; return the seconds of that, of plain sends, and of measuring these."""
        run = self.run
        intact, raw_s = True, 0.0
        begun = time.perf_counter()
        for block in run.fields.values():
            old = block.spec.decompose(header.grid)
            intact &= transfer.receive(inter, block, old, in_host=in_host, check=self._alive)
        taken_s = time.perf_counter() - begun
        wrong = self._all(None if intact else "data did not arrive whole")
        if wrong is not None:
            raise RefusalError(wrong)
        begun = time.perf_counter()
        if header.measure:
            for block in run.fields.values():
                old = block.spec.decompose(header.grid)
                raw_s += transfer.plain(inter, block, old, sending=False, check=self._alive)
            self._all(None)
        aside_s = time.perf_counter() - begun
        return taken_s, raw_s, aside_s

    def _read(self) -> float:
        """Read the checkpoint that the old world has written; return the seconds it took."""
        begun = time.perf_counter()
        words: Any = None
        if self.messages.is_root:
            try:
                words = self._expect(Stored)
            except ChannelError as error:
                words = str(error)
        words = self.messages.broadcast(words)
        if isinstance(words, str):
            raise RefusalError(words)
        path = checkpoint.path_of(Path(words.folder), words.step)
        wrong = None
        try:
            checkpoint.load(
                path, self.run.world, self.run.fields, self._fixed(self.plan.options, "")
            )
        except (checkpoint.BrokenCheckpointError, CollectiveError, OSError) as error:
            wrong = f"{path}: {error}"
        wrong = self._all(wrong)
        if wrong is not None:
            raise RefusalError(wrong)
        return time.perf_counter() - begun

    # --- the end of it -----------------------------------------------------------------------

    def _acknowledge(
        self, taken_s: tuple[float, float, float, float], *, joins: bool = False
    ) -> None:
        """Say that all is here; the job is this world's once the old one has said so."""
        run = self.run
        if self.messages.is_root:
            try:
                times = [taken_s, *self._reports()]
                self._say(Acknowledged(*(max(each) for each in zip(*times, strict=True))))
                words: Any = self._expect(Committed).cost
                if self.plan.checkpoint is not None and not joins:
                    run.checkpoint_lock = checkpoint.Lock(self.plan.checkpoint.directory)
                    run.checkpoint_lock.acquire()
                self._say(TakenOver())
            except ChannelError as error:
                words = str(error)
            self.messages.send_all(words)
        else:
            self.messages.report(taken_s)
            words = self.messages.receive()
        if isinstance(words, str):
            raise RefusalError(words)
        progress = run.progress
        progress.open_resize = words
        words.arrived_at = run.runtime.clock()
        progress.elapsed_s += words.old_stall_s
        progress.wish = max(progress.wish, words.wish)

    # --- talking -----------------------------------------------------------------------------

    def _alive(self, waited_s: float) -> None:
        limits = self.plan.deadlines
        if self.messages.is_root and self.channel is not None and self.channel.readable:
            raise RefusalError("the old world has given up")
        if not self.messages.is_root and self.messages.pending():
            raise RefusalError(str(self.messages.receive()))
        if waited_s > limits.move_s:
            raise RefusalError(f"nothing arrived for {limits.move_s:g} s")

    def _all(self, wrong: str | None) -> str | None:
        """Return what any rank finds wrong (collective)."""
        if not self.messages.is_root:
            self.messages.report(wrong)
            found: str | None = self.messages.receive()
            return found
        found = next(
            (w for w in [wrong, *self.messages.collect(self._alive)] if w is not None), None
        )
        self.messages.send_all(found)
        return found

    def _reports(self) -> list[Any]:
        """Return what the others have measured; one that has failed has words instead."""
        found = self.messages.collect()
        for said in found:
            if isinstance(said, str):
                raise RefusalError(said)
        return found

    def _say(self, message: Message) -> None:
        if self.channel is not None:
            try:
                self.channel.send(message)
            except ChannelError as error:
                raise RefusalError(str(error)) from None

    def _expect(self, kind: type[M]) -> M:
        if self.channel is None:
            raise RuntimeError("expected a channel to the old world")
        said = self.channel.receive(self.plan.deadlines.answer_s)
        if isinstance(said, Refused):
            raise ChannelError(said.why)
        if not isinstance(said, kind):
            raise ChannelError(f"expected {kind.__name__}, got {type(said).__name__}")
        return said

    def _leave(self, why: str) -> NoReturn:
        """Leave quietly: the old world goes on (MPI_Abort here might end it too)."""
        if not self.messages.is_root:
            self.messages.report(why)
            raise Left(0)
        self.messages.send_all(why)
        if self.channel is not None:
            with contextlib.suppress(ChannelError):
                self.channel.send(Refused(why))
        raise Left(0)


def specs_of(run: Run) -> dict[str, FieldSpec]:
    """Return what the application stated."""
    return {name: block.spec for name, block in run.fields.items()}


def differing(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return a sentence if two worlds of one job do not state the same."""
    old, new = json.loads(json.dumps(dict(old))), json.loads(json.dumps(dict(new)))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            return f"{what} {name}: expected {old.get(name)}, got {new.get(name)}"
    return None
