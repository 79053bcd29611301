"""The target of a resize: the new world's side, which boots, waits, and takes over or leaves.

See :mod:`dmr.resize.side` for the messages between the two worlds.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from mpi4py import MPI

from dmr import checkpoint
from dmr.application import Application, Run
from dmr.boot.environment import bind
from dmr.checkpoint_file import BrokenCheckpointError, path_of
from dmr.data import constant, transfer
from dmr.data.decomposition import Decomposition
from dmr.data.field import Field
from dmr.errors import CollectiveError, Left, RolledBackError
from dmr.plan import Plan
from dmr.progress import OpenResize, decode
from dmr.resize.membership import enter, join, stay
from dmr.resize.side import Side, attempt, nothing, signature
from dmr.termination import give_way
from dmr.values import ValuesError
from dmr.wire.protocol import (
    Accepted,
    Acknowledged,
    Arrived,
    Build,
    Committed,
    Header,
    Stored,
    TakenOver,
)
from dmr.wire.ranks import RankMessages
from dmr.world import World, layouts_for, sent_once_a_node, widest_grid

IDLE_S = 1e-3
"""Sleep between polls of ranks that wait for the old world: it needs their core."""


class Target(Side):
    """A world that was booted beside a running one."""

    def __init__(self, app: Application, run: Run, plan: Plan) -> None:
        super().__init__(RankMessages(run.world.internal_comm, 0), plan.deadlines)
        self.app, self.run, self.plan = app, run, plan
        self._inter = run.runtime.parent
        self._stack = contextlib.ExitStack()
        self._constants: dict[str, str] = {}
        self._node: MPI.Intracomm | None = None
        self._receivers: tuple[int, ...] = ()

    def take_over(self) -> None:
        """Wait for the old world and become the job (collective).

        Raises:
            Left: it was refused, or nobody came. The old world goes on: MPI_Abort here might end
                it too.
        """
        with self._stack:
            try:
                self._take_over()
            except RolledBackError:
                raise Left(0) from None
            except Exception as error:
                channel = self.channels[0] if self.channels else None
                give_way(self.run.runtime, self.messages, error, channel)

    def _take_over(self) -> None:
        run = self.run
        port = self._prepare()
        header = self.on_root(lambda: self._meet(port), sleep_s=IDLE_S)
        if run.runtime.slot:
            bind(run.runtime.slot)
        in_host = self._accept_header(header)
        if header.strategy == "merge":
            self._join(header, port, in_host)
        else:
            self._replace(header, port, in_host)

    # --- before the old world comes ----------------------------------------------------------

    def _prepare(self) -> str:
        """Do what needs no data: prefault the memory, load kernels; return the MPI port."""
        fields = self.run.fields
        for block in fields.values():
            if block.spec.constant:
                block.initialise()
            else:
                block.prefault()  # pages are there before the data is
        self._find_nodes()
        self.app.prepare(self.run)
        if found := constant.hashes(fields):
            self._constants = self.conclude(None, found, partial(constant.combined, fields))
        port = ""
        if self._inter is None and self.run.world.rank == 0:
            with contextlib.suppress(MPI.Exception):
                port = MPI.Open_port()
                self._stack.callback(MPI.Close_port, port)
        return port

    def _find_nodes(self) -> None:
        """Find out which ranks share a node, if there is anything that each of them gets whole."""
        world, fields = self.run.world, constant.moving(self.run.fields).values()
        if world.size == 1 or all(block.spec.split for block in fields):
            return
        node: MPI.Intracomm = world.internal_comm.Split_type(MPI.COMM_TYPE_SHARED)  # type: ignore[assignment]
        self._stack.callback(node.Free)
        first = world.internal_comm.allgather(node.rank == 0)
        if not all(first):
            self._node = node
            self._receivers = tuple(rank for rank, one in enumerate(first) if one)

    def _meet(self, port: str) -> Header:
        runtime = self.run.runtime
        if runtime.rendezvous is None:
            raise RuntimeError("expected to meet a running world")
        channel = runtime.rendezvous.meet(runtime.manager, port)
        self.channels.append(self._stack.enter_context(channel))
        (header,) = self.expect(Header)
        return header

    def _accept_header(self, header: Header) -> bool:
        """Refuse a job of other fields or options; return whether blocks come without packing."""
        run = self.run
        mine = all(block.in_host for block in run.fields.values())
        problem = differing("field", header.signature, signature(run.fields)) or differing(
            "option",
            self._fixed(header.options, header.strategy),
            self._fixed(self.plan.options, header.strategy),
        )
        if header.ranks != run.world.size and header.strategy != "merge":
            problem = problem or f"expected {header.ranks} ranks, got {run.world.size}"
        try:
            # The control channel is authenticated in both directions.
            run.progress = decode(bytes(header.progress), trusted=True)
        except (msgspec.DecodeError, ValuesError) as error:
            problem = problem or str(error)
        if header.strategy not in ("merge", "restart"):  # these move it as all else
            problem = problem or constant.problem_with(run.progress.constants, self._constants)
        self.conclude(problem, None, lambda _: self.say(Accepted(mine, self._receivers)))
        return mine and header.in_host

    def _fixed(self, options: Mapping[str, Any], strategy: str) -> dict[str, Any]:
        """Return the options that may not change: the backend may, if no rank stays."""
        known = () if strategy == "merge" else self.app.backends
        return {k: v for k, v in options.items() if k != "backend" or v not in known}

    def _accept(self, port: str) -> MPI.Intercomm:
        """Return the inter-communicator to the old world: MPI's own, or met at the port."""
        return self._inter or self.run.world.internal_comm.Accept(port)

    # --- in place of the old world -----------------------------------------------------------

    def _replace(self, header: Header, port: str, in_host: bool) -> None:
        """Become the job's world (warm, spawn, restart)."""
        run, own = self.run, self.run.world
        run.progress.generation += 1
        run.world = World(own.comm, own.internal_comm, run.progress.generation, own.grid)
        run.progress.launches = [(run.runtime.launch, own.size)]
        inter = None
        if header.strategy == "restart":
            times = (self._read(), 0.0, 0.0)
        else:
            inter = self._accept(port)
            times = self._receive(inter, header, in_host)
        problem, build_s = self._build()
        self._acknowledge(problem, (*times, build_s))
        if inter is not None:
            inter.Disconnect()

    def _receive(
        self, inter: MPI.Intercomm, header: Header, in_host: bool
    ) -> tuple[float, float, float]:
        """Fill the blocks; return the seconds of that, of plain sends, and of measuring these."""
        begun = time.perf_counter()
        fields = constant.moving(self.run.fields)
        layouts = {name: block.layout for name, block in fields.items()}
        for name, layout in sent_once_a_node(layouts, self._receivers).items():
            fields[name].layout = layout
        problem, _ = attempt(lambda: self._fill(inter, fields, header, in_host))
        self.conclude(problem, None, nothing, self.check_alive)
        problem, _ = attempt(lambda: self._share(fields))
        taken_s = time.perf_counter() - begun
        self.conclude(problem, None, nothing, self.check_alive)
        begun = time.perf_counter()
        raw_s = 0.0
        if header.measure:
            problem, raw = attempt(lambda: self._measure(inter, header))
            self.conclude(problem, None, nothing, self.check_alive)
            raw_s = raw or 0.0
        return taken_s, raw_s, time.perf_counter() - begun

    def _fill(
        self, comm: MPI.Comm, fields: Mapping[str, Field], header: Header, in_host: bool
    ) -> None:
        intact = True
        old = self._layouts(header.from_ranks)
        for name, block in fields.items():
            intact &= transfer.receive(
                comm, block, old[name], in_host=in_host, check=self.check_alive
            )
        if not intact:
            raise RolledBackError("data did not arrive whole")

    def _share(self, fields: Mapping[str, Field]) -> None:
        """Give what one rank of a node was sent whole to the others there."""
        for block in fields.values():
            if self._node is not None and not block.spec.split:
                transfer.share(self._node, block, self.check_alive)

    def _measure(self, inter: MPI.Intercomm, header: Header) -> float:
        old = self._layouts(header.from_ranks)
        return sum(
            transfer.plain(inter, block, old[name], sending=False, check=self.check_alive)
            for name, block in constant.moving(self.run.fields).items()
        )

    def _layouts(self, ranks: int) -> dict[str, Decomposition]:
        return layouts_for(ranks, {name: block.spec for name, block in self.run.fields.items()})

    def _read(self) -> float:
        """Read the checkpoint that the old world has written; return the seconds it took."""
        begun = time.perf_counter()
        (stored,) = self.on_root(lambda: self.expect(Stored))
        path = path_of(Path(stored.folder), stored.step)
        problem = None
        try:
            checkpoint.load(
                path, self.run.world, self.run.fields, self._fixed(self.plan.options, "")
            )
        except (BrokenCheckpointError, CollectiveError, OSError, MemoryError) as error:
            problem = f"{path}: {error}"
        self.conclude(problem, None, nothing, self.check_alive)
        return time.perf_counter() - begun

    # --- beside the ranks of the old world that stay -----------------------------------------

    def _join(self, header: Header, port: str, in_host: bool) -> None:
        """Become part of the running world (merge)."""
        run, own = self.run, self.run.world
        comm = join(own.internal_comm, self._accept(port), high=True, keep=True)
        for _ in header.joined[header.place + 1 :]:
            comm = join(comm, comm.Connect(""), high=False, keep=False)
        begun = time.perf_counter()
        layouts = self._layouts(header.ranks)
        fields: dict[str, Field] = {}

        def fill() -> None:
            for name, block in run.fields.items():
                fields[name] = block.moved_to(layouts[name], comm.rank)
                self._fill(comm, {name: fields[name]}, header, in_host)

        def arrived(parts: list[float]) -> None:
            """All is here; wait until it is everywhere."""
            self.say(Arrived(max(parts)))
            self.expect(Build)

        problem, _ = attempt(fill)
        moved_s = time.perf_counter() - begun
        self.conclude(problem, moved_s, arrived, self.check_alive)
        launches = header.joined or ((run.runtime.launch, own.size),)
        enter(
            run, comm, widest_grid(comm.size, layouts), fields, [*run.progress.launches, *launches]
        )
        problem, build_s = self._build()
        cost = self._acknowledge(problem, (moved_s, 0.0, 0.0, build_s), joins=True)
        stay(run, own, cost)

    # --- the end of it -----------------------------------------------------------------------

    def _build(self) -> tuple[str | None, float]:
        """Build for this world; return what all ranks find wrong, and the seconds it took."""
        begun = time.perf_counter()
        problem = None
        try:
            self.app.build(self.run)
            self.run.internal.built = True
        except CollectiveError as error:
            problem = str(error)
        return problem, time.perf_counter() - begun

    def _acknowledge(
        self, problem: str | None, taken_s: tuple[float, ...], *, joins: bool = False
    ) -> OpenResize:
        """Say that all is here; the job is this world's once the old one has said so.

        Args:
            problem: what is wrong with this rank, or None.
            taken_s: seconds it took to move, to send plainly, to measure that, and to build.
            joins: whether ranks of the old world stay in this one.
        """
        run = self.run

        def take(parts: list[tuple[float, ...]]) -> OpenResize:
            self.say(Acknowledged(*(max(each) for each in zip(*parts, strict=True))))
            (committed,) = self.expect(Committed)
            if self.plan.checkpoint is not None and not joins:
                run.internal.checkpoint_lock = checkpoint.Lock(self.plan.checkpoint.directory)
                run.internal.checkpoint_lock.acquire()
            self.say(TakenOver())
            return committed.cost

        cost = self.conclude(problem, taken_s, take)
        progress = run.progress
        progress.open_resize = cost
        cost.arrived_at = run.runtime.clock()
        progress.elapsed_s += cost.old_stall_s
        progress.answered_request = max(progress.answered_request, cost.request)
        return cost


def differing(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return a sentence if two worlds of one job do not state the same."""
    old, new = json.loads(json.dumps(dict(old))), json.loads(json.dumps(dict(new)))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            return f"{what} {name}: expected {old.get(name)}, got {new.get(name)}"
    return None
