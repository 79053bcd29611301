"""Processes that are coroutines: job scripts, their launcher lines, and ranks that are resized.

A script is a list of steps in JSON, on a line of its text. Its launcher lines and the ranks send
the messages of ``rms launch`` and :mod:`dmr.wire.rms`, with their retries. Ranks are one coroutine
per world, which steps, polls, and goes over to another world as :mod:`dmr.resize.replace` does:
until the commit the old world has the job, from then on the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from rms.launch.base import LaunchError, ScriptLaunch, WorldLaunch, hosts_of
from rms.launch.local import KEEPER_ALONE_S, LOOPBACK
from rms.wire.messages import (
    KEEPERS_VARIABLE,
    RUN_VARIABLE,
    SUPERVISOR_VARIABLE,
    TOKEN_VARIABLE,
    Begun,
    CompletionRecord,
    Done,
    LaunchRequest,
    Poll,
    PollAnswer,
    Ready,
    Report,
    ResizeReport,
    ResizeRequest,
    RolledBack,
    StepNumber,
    StepState,
    write_completion,
)
from virtual.acts import Line, Plan
from virtual.copies import Complete, Copies, Pieces, newest, pieces_of
from virtual.loop import VirtualLoop

RETRY_S = 0.5
UNSURE_S = 1.0
TERMINATED, KILLED, ABORTED = 143, 137, 9
MARK = "# plan: "


class NoAnswerError(Exception):
    """No answer of the daemon."""


@dataclass(eq=False)
class Process:
    """A script, a launch or a keeper, below the shell that keeps its status.

    Attributes:
        lost: whether it can do nothing more, as parts of it on other hosts are gone.
        over: whether it has come to its own end.
        at: its slots on other hosts.
        status: its exit status, None before.
        pieces: what a keeper holds; None of another process.
        keepers: the variables of a launch that has some.
    """

    pid: int
    job: str
    launch: int | None
    slots: tuple[str, ...]
    status_file: Path
    begun_s: float
    task: asyncio.Task[Any] | None = None
    world: World | None = None
    terminated: asyncio.Event = field(default_factory=asyncio.Event)
    going: asyncio.Event = field(default_factory=asyncio.Event)
    asked_to_end: bool = False
    lost: bool = False
    over: bool = False
    at: tuple[str, ...] = ()
    status: int | None = None
    pieces: Pieces | None = None
    keepers: Mapping[str, str] = field(default_factory=dict)
    on_exit: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.going.set()

    async def goes(self) -> None:
        """Wait until it is not stopped; for ever, if parts of it are gone."""
        await self.going.wait()
        while self.lost:
            await asyncio.Event().wait()


@dataclass(eq=False)
class World:
    """The launches that compute together; the first one's coroutine steps for all.

    Attributes:
        step: steps done; of a world that has not taken over, None.
        polled: whether the daemon knows of it.
        copies: in memory, None without.
    """

    job: str
    number: int
    line: Line
    launches: list[Process]
    ranks: int
    step: int | None = None
    offer: asyncio.Future[tuple[World, ResizeRequest]] | None = None
    generation: int = 0
    polled: bool = False
    copies: Copies | None = None


Call = Callable[[str, str, bytes, str], Coroutine[Any, Any, bytes]]


@dataclass
class Run:
    """One run of a job's script, from its start to its end."""

    job: str
    run: int
    begun_s: float
    ended_s: float | None = None
    status: int | None = None
    steps: list[int] = field(default_factory=list)


class Machine:
    """All processes, by number; it outlives daemons."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, call: Call) -> None:
        self.loop, self.rng, self.call = loop, rng, call
        self.live: dict[int, Process] = {}
        self.numbers = count(100)
        self.runs: list[Run] = []
        self.saved: dict[tuple[str, int], int] = {}
        self.changed: Callable[[], None] = lambda: None
        self.refusal = ""
        self.stepping_worlds: dict[str, list[World]] = {}
        self.wrong: list[str] = []
        self.relaunches: Counter[str] = Counter()
        self.unreachable: Callable[[Process], bool] = lambda _: False
        self.moved: Callable[[Process], None] = lambda _: None
        self.slow_keepers = False
        self.beside: Callable[[World], list[Process]] = self._beside
        self.complete: dict[tuple[str, int, int], Complete] = {}

    # --- what a launcher does ---------------------------------------------------------------------

    def start_script(self, job: str, run: int, launch: ScriptLaunch, file: Path) -> Process:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        if self.refusal:
            raise LaunchError(self.refusal)
        plan = read_plan(launch.script.read_text())
        slots = tuple(slot for own in launch.nodes for slot in own)
        if any(isinstance(part, Line) for part in plan.parts):
            slots = ()  # its worlds have them
        process = self._process(job, None, slots, file)
        begun = Run(job, run, self.loop.now_s)
        self.runs.append(begun)
        env = dict(launch.env)
        process.task = self.loop.create_task(
            self._shell(process, self._script(process, begun, plan, env, run))
        )
        return process

    def start_launch(
        self, job: str, launch: WorldLaunch, run: int, kept: Path, record: Path
    ) -> Process:
        if self.refusal:
            raise LaunchError(self.refusal)
        kept.unlink(missing_ok=True)
        if not launch.resize:
            record.unlink(missing_ok=True)
        process = self._process(job, launch.launch, tuple(launch.slots), kept)
        process.keepers = launch.env
        line = msgspec.json.decode(launch.command.command[-1], type=Line)
        rank0 = Rank0(self, process, launch, line, run, record)
        process.task = self.loop.create_task(self._shell(process, rank0.main()))
        return process

    def _process(self, job: str, launch: int | None, slots: tuple[str, ...], file: Path) -> Process:
        pid = next(self.numbers)
        self.live[pid] = process = Process(pid, job, launch, slots, file, self.loop.now_s)
        return process

    def start_keeper(self, owner: str, number: int, host: str, file: Path) -> Process:
        """Start a keeper, which writes where it is into a file once it serves."""
        if self.refusal:
            raise LaunchError(self.refusal)
        process = self._process(owner, number, (), file.with_suffix(".status"))
        process.pieces = Pieces(host or LOOPBACK, alone_s=self.loop.now_s)
        inode = file.stat().st_ino
        process.task = self.loop.create_task(self._shell(process, self._keep(process, file, inode)))
        return process

    async def _keep(self, process: Process, file: Path, inode: int) -> int:
        pieces, slow = pieces_of(process), self.slow_keepers and self.rng.random() < 0.03
        await asyncio.sleep(40.0 if slow else self.rng.choice((0.1, 0.5, 1.5)))
        await process.goes()
        with contextlib.suppress(OSError):
            if file.stat().st_ino == inode:  # else of a newer one
                file.write_text(f"{pieces.host}={process.pid}:port:token=/keeper\n")
        while self.loop.now_s <= pieces.alone_s + KEEPER_ALONE_S:
            await asyncio.sleep(30.0)
            worlds = [world for own in self.stepping_worlds.values() for world in own]
            places = [world.copies.places for world in worlds if world.copies is not None]
            if any(process in own for own in places):
                pieces.alone_s = self.loop.now_s
        pieces.hurt = True
        return 0

    def places(self, text: str) -> list[Process | None]:
        """Return the keepers of ``DMR_KEEPERS``; None for one that has ended."""
        return [self.live.get(int(word.split("=")[1].split(":")[0])) for word in text.split()]

    def answers(self, process: Process) -> bool:
        """Return whether a process can be reached."""
        return process.pid in self.live and not process.lost and not self.unreachable(process)

    def _abandon(self, keeper: Process) -> None:
        """End the worlds with ranks at a keeper that has ended, a little later."""
        for own in self.stepping_worlds.values():
            for world in own:
                if world.copies is not None and keeper in world.copies.places:
                    for one in world.launches:
                        wait_s = self.rng.uniform(0.0, 0.2)
                        self.loop.call_later(wait_s, self.exit, one, ABORTED)

    def _beside(self, world: World) -> list[Process]:
        """Return the processes of other worlds of the same line."""
        return [
            one
            for one in self.of(world.job)
            if one.world is not None and is_beside(one.world, world)
        ]

    async def _shell(self, process: Process, work: Coroutine[Any, Any, int]) -> None:
        """Run something, and keep its status where the process is still there."""
        try:
            status = await work
            await process.goes()
            process.over = True
        except asyncio.CancelledError:
            status = KILLED
        if process.pid in self.live:
            self.exit(process, status)

    def exit(self, process: Process, status: int | None) -> None:
        """End a process; its shell keeps the status, unless the shell itself is gone (None)."""
        if self.live.pop(process.pid, None) is None:
            return
        process.status = KILLED if status is None else status
        if status is not None:
            with contextlib.suppress(OSError):
                process.status_file.parent.mkdir(parents=True, exist_ok=True)
                process.status_file.write_text(f"{status}\n")
        if process.task is not None and not process.task.done():
            process.task.cancel()
        if process.world is not None and status != 0:
            self.abort(process.world)
        if process.pieces is not None:
            self._abandon(process)
        process.on_exit()
        self.changed()

    def abort(self, world: World) -> None:
        """End the other launches of a world that has lost one, as MPI does, a little later."""
        for other in world.launches:
            if other.pid in self.live:
                self.loop.call_later(self.rng.uniform(0.0, 0.2), self.exit, other, ABORTED)

    def disturb(self, pid: int, how: str, for_s: float, gone_s: float) -> None:
        """Let a process die, alone or with its shell, or stop for a time.

        Of a script that dies without a trace, and that a daemon had started in the last moment
        before its own end (at ``gone_s``), nobody knows that it ran: it is started again.
        """
        process = self.live[pid]
        if process.pieces is not None:
            process.pieces.hurt = True
        if how == "its shell dies" and process.begun_s > gone_s - UNSURE_S:
            self.relaunches[process.job] += process.launch is None
        if how == "stops":
            process.going.clear()
            if for_s < inf:
                self.loop.call_later(for_s, process.going.set)
        else:
            self.exit(process, 139 if how == "dies" else None)

    def lose(self, process: Process) -> None:
        """Let a process, and the others of its world, do nothing more, as a part of it is gone."""
        process.lost = True
        if process.world is not None:
            for other in process.world.launches:
                other.lost = True

    async def call_of(self, process: Process, *request: Any) -> bytes:
        """Send a request of a process, which may be on a host that is cut off."""
        if self.unreachable(process):
            await asyncio.sleep(10.0)
            raise NoAnswerError
        return await self.call(*request)

    def lose_power(self) -> None:
        """End all processes; no status is kept.

        That a script was started is on disk a moment later: until then it is started again.
        """
        for process in self.live.values():
            if process.launch is None and process.begun_s > self.loop.now_s - UNSURE_S:
                self.relaunches[process.job] += 1
        for process in list(self.live.values()):
            if process.pieces is not None:
                process.pieces.hurt = True
            self.exit(process, None)

    def of(self, job: str | None, launch: int | None = None) -> list[Process]:
        return [
            one
            for one in self.live.values()
            if job in (None, one.job) and launch in (None, one.launch)
        ]

    def kill(self, job: str, launch: int | None = None) -> None:
        for process in self.of(job, launch):
            self.exit(process, KILLED)

    def terminate(self, job: str, worlds: list[int]) -> None:
        for process in [self.live[pid] for pid in worlds if pid in self.live] or self.of(job):
            process.asked_to_end = True
            process.terminated.set()
            process.going.set()

    def signal(self, job: str, *, stop: bool) -> None:
        for process in self.of(job):
            process.going.clear() if stop else process.going.set()

    # --- worlds -----------------------------------------------------------------------------------

    def waiting(self, job: str, launch: int) -> World | None:
        """Return a world that waits for the running one, None if it is gone."""
        for process in self.of(job, launch):
            world = process.world
            if world is not None and world.offer is not None and not world.offer.done():
                return world
        return None

    def enter(self, world: World) -> None:
        """Let a world begin to step."""
        self.stepping_worlds.setdefault(world.job, []).append(world)
        self.stepping(world)

    def stepping(self, world: World) -> None:
        """Note it if two worlds of a job step."""
        alive = [
            one
            for one in self.stepping_worlds.get(world.job, ())
            if one.launches[0].pid in self.live
        ]
        self.stepping_worlds[world.job] = alive
        if len(alive) > 1:
            self.wrong.append(f"job {world.job}: {len(alive)} worlds step")

    def left(self, world: World) -> None:
        """Let a world step no more."""
        with contextlib.suppress(ValueError):
            self.stepping_worlds.get(world.job, []).remove(world)

    # --- a script ---------------------------------------------------------------------------------

    async def _script(
        self, process: Process, run: Run, plan: Plan, env: dict[str, str], number: int
    ) -> int:
        token, code = env[TOKEN_VARIABLE], plan.code
        at, failed = 0, 0
        try:
            for part in plan.parts:
                if isinstance(part, Line):
                    failed = await self._line(process, run, part, token, number, at) or failed
                    at += 1
                elif plan.stubborn:
                    await asyncio.sleep(part)
                else:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.terminated.wait(), part)
                if process.terminated.is_set() and not plan.stubborn:
                    code = TERMINATED
                    break
            run.status = code or failed
        finally:
            run.ended_s = self.loop.now_s
        return run.status

    async def _line(
        self, process: Process, run: Run, line: Line, token: str, number: int, at: int
    ) -> int:
        """Hand a launcher line to the daemon, and wait for its end."""
        key = f"{process.job}-{number}-{at}-{process.pid}"
        body = LaunchRequest(
            ["program", msgspec.json.encode(line).decode()],
            "/",
            {TOKEN_VARIABLE: token, RUN_VARIABLE: str(number)},
            key=key,
        )
        path = f"/jobs/{process.job}/steps"
        answer = await self._repeated(
            process, "POST", f"{path}?run={number}", msgspec.json.encode(body), token
        )
        if answer is None:
            return 1
        step = msgspec.json.decode(answer, type=StepNumber).step
        while True:
            answer = await self._repeated(process, "GET", f"{path}/{step}?run={number}", b"", token)
            if answer is None:
                return 1
            state = msgspec.json.decode(answer, type=StepState)
            if state.exit_code is not None:
                return state.exit_code

    async def _repeated(self, process: Process, *request: Any) -> bytes | None:
        """Return the daemon's answer, None for a refusal."""
        while True:
            try:
                return await self.call_of(process, *request)
            except RefusedError:
                return None
            except NoAnswerError:
                await asyncio.sleep(RETRY_S)


def is_beside(other: World, world: World) -> bool:
    """Return whether another world of a line computes, or has computed."""
    return other is not world and other.number == world.number and other.step is not None


def read_plan(text: str) -> Plan:
    """Return the plan of a script."""
    return msgspec.json.decode(text.partition(MARK)[2].partition("\n")[0], type=Plan)


class RefusedError(Exception):
    """The daemon's answer is a status other than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body.decode()}")
        self.status, self.body = status, body


# --- ranks ---------------------------------------------------------------------------------------

FLUSH_S = 2.0
SUPERSEDED = 410
MEET_S = 600.0
CHUNKS = 20


class Client:
    """What rank 0 has of :class:`dmr.wire.rms.RmsClient`: a poller and a sender."""

    def __init__(self, machine: Machine, world: World, run: int, token: str, known: int) -> None:
        self.machine, self.world, self.run, self.token = machine, world, run, token
        self.request: ResizeRequest | None = None
        self.newest, self.superseded = known, False
        self.reports: deque[Report] = deque()
        self.wake, self.closing = asyncio.Event(), False
        loop = machine.loop
        self.tasks = [loop.create_task(self._send()), loop.create_task(self._poll())]

    @property
    def process(self) -> Process:
        return self.world.launches[0]

    async def _post(self, path: str, body: object) -> bytes:
        await self.process.goes()
        data = msgspec.json.encode(body)
        return await self.machine.call_of(
            self.process, "POST", f"/jobs/{self.world.job}/{path}?run={self.run}", data, self.token
        )

    def report(self, report: Report) -> None:
        if self.request is not None and self.request.number == getattr(report, "number", 0):
            self.request = None
        self.reports.append(report)
        self.wake.set()

    async def _send(self) -> None:
        while True:
            pause: float | None = None
            try:
                while self.reports:
                    await self._post("report", self.reports[0])
                    self.reports.popleft()
            except (NoAnswerError, RefusedError):
                pause = RETRY_S
            if self.closing:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), pause)
            self.wake.clear()

    async def _poll(self) -> None:
        while not self.closing:
            world, pause = self.world, 0.0
            launches = tuple((one.launch or 0, len(one.slots)) for one in world.launches)
            saves = world.line.saves
            poll = Poll(
                world.step or 0,
                world.line.steps,
                self.newest,
                world.line.strategy,
                launches,
                restartable=saves,
            )
            try:
                answer = msgspec.json.decode(await self._post("poll", poll), type=PollAnswer)
                world.polled = True
                if answer.request is not None and answer.request.number > self.newest:
                    self.request, self.newest = answer.request, answer.request.number
                pause = answer.pause_s
            except RefusedError as error:
                if error.status == SUPERSEDED:
                    self.superseded = True
                    return
                pause = RETRY_S
            except NoAnswerError:
                pause = RETRY_S
            if pause:
                await asyncio.sleep(pause)

    async def close(self) -> None:
        """Send what is queued, within a time, and stop."""
        self.closing = True
        self.wake.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.tasks[0]), FLUSH_S)
        self.cancel()

    def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()


class LeavesError(Exception):
    """This launch has no part in the job any more."""


class Rank0:
    """Rank 0 of a launch: it steps for its world, or waits for the one that runs."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        launch: WorldLaunch,
        line: Line,
        run: int,
        record: Path,
    ) -> None:
        self.machine, self.process, self.launch = machine, process, launch
        self.line, self.run, self.record = line, run, record
        self.token = launch.command.env[TOKEN_VARIABLE]
        self.client: Client | None = None

    async def main(self) -> int:
        machine, process = self.machine, self.process
        await asyncio.sleep(machine.rng.uniform(0.1, 2.0))
        await process.goes()
        world = World(process.job, self.launch.step, self.line, [process], len(process.slots))
        process.world = world
        try:
            if self.launch.resize:
                return await self._join(world)
            key = world.job, world.number
            world.step = machine.saved.get(key, 0) if self.line.saves else 0
            if KEEPERS_VARIABLE in self.launch.env:
                code = self._restore(world)
                if code:
                    return code
            return await self._compute(world, 0)
        finally:
            if self.client is not None:
                self.client.cancel()

    # --- copies in memory -------------------------------------------------------------------------

    def _regroup(self, world: World) -> None:
        """Let a world that was resized have its copies on the hosts that it has now.

        The launch that was started last knows the keepers of hosts that have joined.
        """
        if world.copies is None:
            return
        env = max(world.launches, key=lambda one: one.launch or 0).keepers
        if not self._at_keepers(world, env):
            for one in world.launches:
                self.machine.loop.call_later(0.0, self.machine.exit, one, ABORTED)
        self._copy(world)

    def _at_keepers(self, world: World, env: Mapping[str, str]) -> bool:
        """Let a world have its copies at the keepers of its hosts; False if one has ended."""
        machine = self.machine
        by_host = dict[str, Process | None]()
        for word, place in zip(
            env[KEEPERS_VARIABLE].split(), machine.places(env[KEEPERS_VARIABLE]), strict=True
        ):
            by_host[word.partition("=")[0]] = place
        slots = [slot for one in world.launches for slot in one.slots]
        hosts = hosts_of(slots) or [LOOPBACK]
        world.copies = None
        if by_host.keys() >= {*hosts}:
            own = [place for host, place in by_host.items() if host in hosts]
            places = [one for one in own if one is not None and not one.lost]
            if len(places) < len(own):
                return False
            world.copies = Copies(places, int(env[SUPERVISOR_VARIABLE]), machine.answers)
        return True

    def _restore(self, world: World) -> int:
        """Go on from the newest whole copy, else as without; return a status if that ends it."""
        machine, env, line = self.machine, self.launch.env, self.line
        self._look_beside(world)
        if not self._at_keepers(world, env):
            return ABORTED
        step, life = world.step or 0, int(env[SUPERVISOR_VARIABLE])
        if world.copies is not None:
            all_of = machine.places(env[KEEPERS_VARIABLE])
            answer = [one for one in all_of if one is not None and machine.answers(one)]
            found, lost = newest(answer), any(pieces_of(one).kept for one in answer)
            if found is not None:
                step = found.step
            elif len(answer) < len(all_of):
                return ABORTED
            elif lost and not step:
                message = "the copies in memory are lost"
                with contextlib.suppress(OSError):
                    write_completion(
                        self.record, CompletionRecord("FAILED", 1, message, 0, 0, world.ranks)
                    )
                return 1
            if found is not None:
                for one in answer:
                    pieces = pieces_of(one)
                    held = pieces.held.get(found)
                    pieces.held, pieces.kept = {found: held} if held else {}, found
        before = machine.complete.get((world.job, self.run, world.number))
        if life and before is not None and before.lasts and step < before.generation.step:
            machine.wrong.append(
                f"job {world.job}: goes on at step {step}, with copies of {before.generation.step}"
            )
        world.step = step
        if line.saves:
            machine.saved[world.job, world.number] = step
        return 0

    def _look_beside(self, world: World) -> None:
        """Note it if something of a world before computes yet."""
        others = self.machine.beside(world)
        if others:
            launches = [one.launch for one in others]
            self.machine.wrong.append(
                f"job {world.job}: launch {world.launches[0].launch} begins beside {launches}"
            )

    def _copy(self, world: World) -> None:
        """Copy the present step; the partners have it a little later."""
        copies, machine = world.copies, self.machine
        if copies is None:
            return
        generation = copies.take(world.step or 0, world.generation)

        def confirm() -> None:
            process = world.launches[0]
            if world.copies is not copies or not process.going.is_set():
                return
            if any(one.lost or one.pid not in machine.live for one in world.launches):
                return
            complete = copies.confirm(generation)
            if complete is not None:
                machine.complete[world.job, self.run, world.number] = complete

        machine.loop.call_later(machine.rng.uniform(0.05, 0.5), confirm)

    # --- a world that takes over ------------------------------------------------------------------

    async def _join(self, world: World) -> int:
        """Report that this launch is ready, and wait for the running world."""
        machine, number, launch = self.machine, self.launch.resize, self.launch.launch
        world.offer = machine.loop.create_future()
        ready = Ready(number, launch, f"127.0.0.1:{launch}:t", "port")
        path = f"/jobs/{world.job}/report?run={self.run}"
        while True:
            try:
                body = msgspec.json.encode(ready)
                await machine.call_of(self.process, "POST", path, body, self.token)
                break
            except RefusedError as error:
                if error.status == SUPERSEDED:
                    return 1
            except NoAnswerError:
                pass
            await asyncio.sleep(RETRY_S)
        try:
            old, request = await asyncio.wait_for(world.offer, MEET_S)
        except TimeoutError:
            return 1
        if request.strategy == "merge":  # the ranks that were there go on stepping for all
            await asyncio.Event().wait()
        stall_s = machine.rng.uniform(0.01, 0.3)
        world.step, world.generation = old.step, old.generation + 1
        if KEEPERS_VARIABLE in self.launch.env and not self._at_keepers(world, self.launch.env):
            return ABORTED
        self.client = Client(machine, world, self.run, self.token, request.number)
        self._report_done(old.ranks, world, request, stall_s, (launch,))
        await asyncio.sleep(stall_s)  # builds
        self._report_done(old.ranks, world, request, 2 * stall_s, (launch,))
        return await self._compute(world, request.number)

    def _report_done(
        self, before: int, world: World, request: ResizeRequest, stall_s: float, launches: Any
    ) -> None:
        assert self.client is not None
        row = ResizeReport(
            world.step or 0, before, world.ranks, request.strategy, 0.1, stall_s, 0.01, 8, 1.0
        )
        self.client.report(Done(request.number, row, launches))

    # --- a world that steps -----------------------------------------------------------------------

    async def _compute(self, world: World, known: int) -> int:
        machine, line = self.machine, self.line
        if self.client is None:
            self.client = Client(machine, world, self.run, self.token, known)
        client, chunk = self.client, max(1, line.steps // CHUNKS)
        machine.enter(world)
        self._copy(world)
        while (world.step or 0) < line.steps:
            assert world.step is not None
            done = min(chunk, line.steps - world.step)
            await asyncio.sleep(done * line.step_s / world.ranks)
            await self.process.goes()
            machine.stepping(world)
            world.step += done
            if client.superseded:
                return 1
            if line.dies_at and world.step >= line.dies_at:
                return ABORTED
            if line.saves:
                machine.saved[world.job, world.number] = world.step
            self._copy(world)
            if any(one.asked_to_end for one in world.launches):
                return await self._end(world, "CANCELLED", TERMINATED)
            if client.request is not None:
                try:
                    await self._resize(world, client.request)
                except LeavesError:
                    return 0
        return await self._end(world, "FAILED" if line.code else "COMPLETED", line.code)

    async def _end(self, world: World, state: Any, code: int) -> int:
        """Leave a record, tell the daemon what is queued, and end all launches."""
        assert self.client is not None
        self.machine.left(world)
        self.machine.complete.pop((world.job, self.run, world.number), None)
        if code == 0:
            self.machine.saved.pop((world.job, world.number), None)
        answer = f"{world.step}" if code == 0 else ""
        record = CompletionRecord(
            state,
            code,
            "" if code == 0 else state,
            world.step or 0,
            world.generation,
            world.ranks,
            answer,
        )
        try:
            write_completion(self.record, record)
        except OSError:  # it says so, and fails
            code = 1
        await self.client.close()
        for one in world.launches[1:]:
            self.machine.exit(one, code)
        return code

    async def _resize(self, world: World, request: ResizeRequest) -> None:
        """Go over to the slots of a request, or go on as before."""
        machine, client, number = self.machine, self.client, request.number
        assert client is not None
        before, strategy = world.ranks, request.strategy
        client.report(Begun(number))
        new = [machine.waiting(world.job, one.launch) for one in request.worlds]
        reason = "" if all(new) else "the new world is gone"
        begun_s = machine.loop.now_s
        await asyncio.sleep(machine.rng.uniform(0.01, 1.5))
        await self.process.goes()
        new = [machine.waiting(world.job, one.launch) for one in request.worlds]
        reason = reason or ("" if all(new) else "the new world has died")
        if not reason and machine.rng.random() < 0.03:
            reason = "hashes differ"
        kept, ranks = list[Process](), 0
        if strategy == "merge" and not new:  # a shrink lets go of whole launches
            for process in world.launches:
                if ranks < len(request.slots):
                    kept.append(process)
                    ranks += len(process.slots)
            if ranks != len(request.slots):
                reason = reason or "expected the ranks to be whole launches"
        if reason:
            client.report(RolledBack(number, reason, world.line.strategy))
            return
        stall_s = machine.loop.now_s - begun_s
        joined = [one for one in new if one is not None]
        if strategy in ("warm", "restart") and joined:
            (after,) = joined
            machine.left(world)
            assert after.offer is not None
            after.offer.set_result((world, request))
            await client.close()
            raise LeavesError
        if strategy == "merge" and joined:
            for one in joined:
                assert one.offer is not None
                one.offer.set_result((world, request))
                world.launches += one.launches
                for process in one.launches:
                    process.world = world
            self._regroup(world)
        elif strategy == "merge":
            leaving = [one for one in world.launches if one not in kept]
            world.launches = kept
            for process in leaving:
                process.world = None
                machine.loop.call_later(machine.rng.uniform(0.0, 0.5), machine.exit, process, 0)
        else:
            self.process.slots = request.slots
            machine.moved(self.process)
        if not joined:
            self._regroup(world)
        launches = tuple(one.launch or 0 for one in world.launches)
        world.ranks, world.generation = len(request.slots), world.generation + 1
        self._report_done(before, world, request, stall_s, launches)
        self._report_done(before, world, request, 2 * stall_s, launches)
