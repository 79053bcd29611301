"""A world: a daemon, its machine, users and faults on one virtual clock, and what must hold.

What happens is a list of acts (:mod:`virtual.acts`). All chance is from the seed, so that a world
can be played again, and again with fewer acts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import tempfile
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec

from rms.core.books.spans import BalanceError
from rms.core.model.cluster import Cluster
from rms.core.model.events import Requeued
from rms.core.model.jobs import Job, JobId, JobState, Node, NodePower
from rms.core.rules.powercap import expected_w
from rms.core.state import State
from rms.daemon.restart.recover import replayed
from rms.daemon.store.context import Settings, log
from rms.daemon.store.file import JournalFullError
from rms.daemon.store.journal import Seen
from rms.formats.energy import check_energies, owner_energies
from rms.launch.local import LOOPBACK, keepers_of
from rms.wire.messages import METER_PATH, DeviceEnergy, MeterAnswer, Metered
from rms.wire.users import (
    OVER,
    AcctAnswer,
    JobIds,
    JobRow,
    JobSelection,
    NodePattern,
    NodeRow,
    Options,
    PolicyName,
    PowerCap,
    ResizeAnswer,
    ResizeCommand,
    Submission,
    WaitAnswer,
    WaitQuery,
)
from virtual import acts, hosts, slurm
from virtual.history import Call, JobModel, SwitchModel, first_misfit
from virtual.hosts import Host, Hosts, hosts_launcher
from virtual.loop import KilledError, StuckError, VirtualLoop
from virtual.machine import Machine, NoAnswerError, RefusedError
from virtual.machine import World as MachineWorld
from virtual.policy import answer_here
from virtual.server import Files, Server
from virtual.slurm import Clock, Controller, slurm_launcher

T = TypeVar("T")

EPOCH_S = 1.7e9
HOLD_S = 20.0
"""For polls and waits, in place of the daemon's own: fewer messages in an hour."""

SETTLE_S = 12 * 3600.0
"""Everything has to end within so long after the last fault."""

ANSWERS_S = 1800.0
"""Every request has to be answered within so long after it."""

UNSURE = 503

SNAPSHOT_EVERY, KEPT = 150, 60
"""Entries between snapshots (none is by a fork), and jobs that are over and stay in memory."""

IDLE_S, IDLE_LOOKS = 60.0, 10
"""A job that fits starts on idle nodes within so long, and so many looks at the daemon."""

METER_EVERY_S = 30.0
GRACE_S = 5.0
BOOT_S = 20.0
"""Least time of a loss of power, beside hosts whose agents end their jobs meanwhile."""

LOST_S = 120.0
"""Time after which a daemon has to know that a node is lost."""

LINGERS_S, DEAD_S, HOLDS_S = 30.0, 150.0, 75.0
"""Times after which a keeper that is not needed has ended, a job computes again, and a job that can
go on without a lost node has given that back."""

SLURM_ROUND_S, HOSTS_ROUND_S = 2.0, 1.0
MOST_ENDED = 21
"""Limit of jobs in memory that are over, as a multiple of those that the daemon has to keep."""

MOST_ENTRIES = 3
"""Limit of entries in the journal, as a multiple of those that the daemon has to keep."""


@dataclass
class World:
    """What there is, and what has come of it.

    Attributes:
        ids: of the jobs of a submission, by its key, once they are answered.
        calls: histories of jobs and of nodes.
        wrong: what must not be.
    """

    setup: acts.Setup
    seed: int
    folder: Path
    counted: Counter[str] = field(default_factory=Counter)
    ids: dict[str, list[str]] = field(default_factory=dict)
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    server: Server | None = None

    def __post_init__(self) -> None:
        self.loop = VirtualLoop(random.Random(f"threads {self.seed}"))
        self.loop.set_exception_handler(self._unhandled)
        self.rng = random.Random(f"network {self.seed}")
        self.machine = Machine(self.loop, random.Random(f"machine {self.seed}"), self.call)
        self.machine.slow_keepers = not self.setup.mild
        names = tuple(f"n{n}" for n in range(1, self.setup.nodes + 1))
        slots = tuple((f"cpu:{n}",) for n in range(len(names)))
        if self.setup.engine:
            slots = tuple((f"{name}/core:0",) for name in names)
        self.cluster = Cluster(names, slots, (NodePower(5.0, 10.0),) * len(names))
        self.settings = Settings(
            policy=self.setup.policy,
            grace_s=GRACE_S,
            boot_s=20.0,
            keep_entries=self.setup.keep,
            stall_s=self.setup.stall_s,
            policy_modules=frozenset({"virtual.policy"}),
        )
        self.files = Files(self.folder / "state", random.Random(f"disk {self.seed}"))
        self.network: acts.Network | None = None
        self.skew_s, self.again, self.power = 0.0, list[int](), False
        self.away_s, self.boot, self.booted_s = 0.0, 1, 0.0
        self.ended_s = 0.0
        self.silent_s = dict[int, float]()
        self.sent_j, self.booked_j = dict[str, set[float]](), dict[str, float]()
        self._held_before = set[tuple[JobId, Node]]()
        self._down_before: frozenset[Node] = frozenset()
        self._seen: Server | None = None
        self._cap_before: float | None = None
        self._most_w = inf
        self._idle: tuple[Server, float] | None = None
        self._idle_looks = 0
        self._excused = set[str]()
        self._lingers_s = dict[int, float]()
        self._dead_s, self._stopped_s = dict[str, float](), dict[str, float]()
        self.plans: dict[str, acts.Submit] = {}
        self._well_s = 0.0
        self._settles_s = inf
        self.slurm: Controller | None = None
        if self.setup.engine == "slurm":
            by_host = dict(zip(names, slots, strict=True))
            rng = random.Random(f"slurm {self.seed}")
            self.slurm = Controller(
                self.loop, rng, self.machine, by_host, self._true_time, self.counted
            )
        self.hosts: Hosts | None = None
        if self.setup.engine == "hosts":
            rng = random.Random(f"hosts {self.seed}")
            self.hosts = Hosts(self.loop, rng, self.machine, self.counted)
            self.hosts.hosts = {name: Host(name) for name in names}
            self.hosts.slow_kills = self.setup.survivors
        for name in ("work", "state"):
            (self.folder / name).mkdir()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Enter an error of a callback, of the daemon's or of a model's."""
        error = context.get("exception")
        if error is not None and context["message"].startswith("Exception in callback"):
            words = "".join(traceback.format_exception(error)[-2:])
            self._wrong(f"{type(error).__name__}: {error}\n{words}")

    def close(self) -> None:
        """Free everything."""
        if self.server is not None:
            self.server.life.kill("the end")
            self.server.give_back()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()

    # --- network ----------------------------------------------------------------------------------

    async def call(
        self, method: str, path: str, body: bytes = b"", token: str | None = None
    ) -> bytes:
        """Send a request and return its answer.

        Raises:
            NoAnswerError: there is no answer.
            RefusedError: it has another status than 200.
        """
        rng, network = self.rng, self.network
        await asyncio.sleep(0.0005 + 0.002 * rng.random())
        if network is not None and rng.random() < network.lost:
            await asyncio.sleep(10.0)
            raise NoAnswerError
        server = self.server
        if server is None or not server.serves:
            raise NoAnswerError
        work = server.life.start(server.request(method, path, body, token))
        if network is not None and token is not None and rng.random() < network.twice:
            self.loop.call_later(rng.uniform(0.0, 2.0), self._again, method, path, body, token)
        await self._over(work)
        if work.cancelled() or network is None:
            pass
        elif rng.random() < network.unanswered:
            await asyncio.sleep(rng.uniform(0.0, 10.0))
            raise NoAnswerError
        elif rng.random() < network.late:
            await asyncio.sleep(rng.uniform(0.0, 9.0))
        if work.cancelled():
            raise NoAnswerError
        status, answer = work.result()
        if status != 200:
            if status == 500:
                self.wrong.append(f"{method} {path}: {answer.decode()}")
            raise RefusedError(status, answer)
        return answer

    def _again(self, *request: Any) -> None:
        """Answer a request once more; the answer is dropped."""
        if self.server is not None and self.server.serves:
            self.server.life.start(self.server.request(*request))

    async def _over(self, task: asyncio.Task[Any]) -> None:
        """Wait until a task is over, however it ends; a cancelled wait does not end the task."""
        over = asyncio.Event()
        task.add_done_callback(lambda _: over.set())
        await over.wait()

    # --- the daemon -------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Start daemons, one after the other."""
        while True:
            if not self._start():
                await asyncio.sleep(0.5)
                continue
            server = self.server
            assert server is not None
            await server.over.wait()
            self.server, self.ended_s = None, self.loop.time()
            self.counted[f"killed {server.life.at}"] += 1
            server.give_back()
            if self.power:
                self.counted["losses of power"] += 1
                self.machine.lose_power()
                self.files.lose_power()
                self.boot, self.booted_s, self.power = self.boot + 1, self.loop.time(), False
            await asyncio.sleep(self.away_s)

    def _serving_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            words = "".join(traceback.format_exception(error)[-3:])
            self.wrong.append(f"no daemon: {type(error).__name__}: {error}\n{words}")
            self.loop.stop()

    def _start(self) -> bool:
        self.counted["daemons"] += 1
        server = Server(self.loop, self.folder / "state", self.machine, self.files)
        slurm, hosts = self.slurm, self.hosts
        if slurm is not None:
            server.longest_s = SLURM_ROUND_S
            server.launcher = lambda mark: slurm_launcher(slurm, server, mark, GRACE_S)
        if hosts is not None:
            server.longest_s = HOSTS_ROUND_S
            server.launcher = lambda mark: hosts_launcher(hosts, server, mark)
        try:
            server.start(
                self.cluster,
                self.settings,
                self._wall,
                f"boot {self.boot}",
                self.again.pop(0) if self.again else None,
            )
        except KilledError:
            self.counted["killed at its start"] += 1
            server.give_back()
            return False
        except (JournalFullError, OSError):
            if not self.files.full:
                raise
            self.counted["refused to start on a full disk"] += 1
            server.give_back()
            return False
        server.observe = self.observe
        self.server = server
        return True

    # --- what happens -----------------------------------------------------------------------------

    async def play(self, sequence: Sequence[acts.Act]) -> None:
        """Let everything happen, and come to its end."""
        serving, doing = self.loop.create_task(self.serve()), set[asyncio.Task[None]]()
        serving.add_done_callback(self._serving_ended)
        if self.setup.meters:
            for number in range(self.setup.nodes):
                self.loop.create_task(self._meter(number))
        for act in sequence:
            await asyncio.sleep(max(0.0, act.at_s - self.loop.time()))
            task = self.loop.create_task(self._do(act))
            doing.add(task)
            task.add_done_callback(doing.discard)
        while doing:
            await asyncio.sleep(5.0)
        await self._settle()
        serving.cancel()

    async def _do(self, act: acts.Act) -> None:
        self.counted[type(act).__name__.lower()] += 1
        match act:
            case acts.Submit():
                await self._submit(act)
            case acts.Ask():
                await self._ask(act)
            case acts.Node():
                await self._node(act)
            case acts.Look():
                await self.look()
            case acts.Wait():
                await self._wait(act)
            case acts.SetPolicy():
                await self._once("/policy", PolicyName(act.policy), PolicyName)
            case acts.SetCap():
                await self._once("/power-cap", PowerCap(act.watts), object)
            case _:
                await self._fault(act)

    async def _fault(self, act: acts.Act) -> None:
        machine, server = self.machine, self.server
        match act:
            case acts.Kill():
                if server is not None and not server.life.dead:
                    self.away_s, self.again, self.power = act.away_s, list(act.again), act.power
                    if self.hosts is not None and act.power:
                        self.away_s = max(act.away_s, BOOT_S)
                    server.life.kill_at = server.life.points + act.points
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(server.over.wait(), 600.0)
                    server.life.kill("at rest")
            case acts.Freeze():
                if server is not None:
                    server.life.freeze()
                    await asyncio.sleep(act.for_s)
                    server.life.thaw()
                    self._well_s = self.loop.time()
            case acts.Process():
                live = sorted(machine.live)
                if live:
                    pid = live[act.which % len(live)]
                    machine.disturb(pid, act.how, act.for_s, self._gone_s())
                    if act.for_s < inf:
                        await asyncio.sleep(act.for_s)
            case acts.Victim():
                self._kill_one(act)
            case acts.Network():
                self.network = act
                await asyncio.sleep(act.for_s)
                if self.network is act:
                    self.network = None
            case acts.Disk():
                files = self.files
                files.full, self.loop.slow_s = act.full, act.slow_s
                await asyncio.sleep(act.for_s)
                files.full, self.loop.slow_s = False, 0.0
                self._well_s = self.loop.time()
            case acts.Clock():
                self.skew_s += act.by_s
            case acts.Forks():
                machine.refusal = "could not start sh: Resource temporarily unavailable"
                await asyncio.sleep(act.for_s)
                machine.refusal = ""
            case acts.Meter():
                self.silent_s[act.node] = self.loop.time() + act.for_s
            case acts.Host() if self.hosts is not None:
                self._excuse(self.cluster.names[act.node])
                self.hosts.fail(self.cluster.names[act.node], act.how, act.for_s)
                await asyncio.sleep(act.for_s)
            case _ if self.slurm is not None:
                await self._slurm_fault(self.slurm, act)

    def _computing(self) -> list[MachineWorld]:
        """Return the worlds of jobs with copies in memory that the daemon has heard of."""
        return [
            world
            for job, worlds in sorted(self.machine.stepping_worlds.items())
            for world in worlds
            if job in self.plans and self.plans[job].survive and world.polled
        ]

    def _kill_one(self, act: acts.Victim) -> None:
        """Let a rank, keeper or script of a job with copies in memory die."""
        machine, worlds = self.machine, self._computing()
        found = [one for world in worlds for one in world.launches]
        if act.what == "keeper":
            found = [one for world in worlds if world.copies for one in world.copies.places]
        elif act.what == "script":
            found = [one for world in worlds for one in machine.of(world.job) if one.world is None]
        found = [one for one in found if one.pid in machine.live]
        if not found:
            return
        process = found[act.which % len(found)]
        self.counted[f"{act.what} killed"] += 1
        parts = [] if self.hosts is None else self.hosts.parts_of(process)
        if parts and act.what == "rank":
            self.hosts.end(*parts[act.which % len(parts)])  # type: ignore[union-attr]
        else:
            machine.disturb(process.pid, "dies", 0.0, self._gone_s())

    def _excuse(self, host: str) -> None:
        """Note the jobs that cannot go on without a host."""
        assert self.hosts is not None
        many = {world.job for world in self._computing() if self._hosts_of(world) - {host}}
        here = {part.process.job.partition(".")[0] for part in self.hosts.hosts[host].parts}
        self._excused |= here - many

    def _hosts_of(self, world: MachineWorld) -> set[str]:
        return {slot.partition("/")[0] for one in world.launches for slot in one.slots}

    async def _slurm_fault(self, slurm: Controller, act: acts.Act) -> None:
        match act:
            case acts.Controller():
                slurm.fault = act
                await asyncio.sleep(act.for_s)
                if slurm.fault is act:
                    slurm.fault = None
                self._well_s = self.loop.time()
            case acts.SlurmJob():
                own = [job for job in slurm.jobs.values() if job.state in ("PENDING", "RUNNING")]
                if own:
                    slurm.cancel(own[act.which % len(own)])
            case acts.Taken():
                slurm.take(self.cluster.names[act.node], act.for_s)
                await asyncio.sleep(act.for_s)
            case acts.Host():
                slurm.lose(self.cluster.names[act.node], act.for_s)
                await asyncio.sleep(act.for_s + 1.0)

    def _gone_s(self) -> float:
        """Return the time since which there is no daemon, inf while there is one."""
        return inf if self.server is not None else self.ended_s

    # --- users ------------------------------------------------------------------------------------

    async def _once(self, path: str, body: object, kind: type[T]) -> T | None:
        """Send a request once; return its answer, None without one."""
        try:
            return msgspec.json.decode(
                await self.call("POST", path, msgspec.json.encode(body)), type=kind
            )
        except (NoAnswerError, RefusedError):
            return None

    async def _submit(self, act: acts.Submit) -> None:
        begun_s, after = self.loop.time(), self.ids.get(act.after, [])
        options = Options(
            nodes=act.nodes,
            mode=act.mode,
            array=f"1-{act.tasks}" if act.tasks > 1 else None,
            idempotency_key=act.key,
            requeue=act.requeue,
            hold=act.hold or None,
            time_s=act.time_s,
            survive=act.survive or None,
            dependency=f"afterany:{after[0].partition('_')[0]}" if after else None,
        )
        text, cwd = machine_text(act.plan), str(self.folder / "work")
        body = msgspec.json.encode(Submission(text, act.key, cwd, {"PATH": "/bin"}, options))
        while True:
            try:
                answer = await self.call("POST", "/jobs", body)
                break
            except NoAnswerError:
                pass
            except RefusedError as error:
                if error.status != UNSURE:
                    self.wrong.append(f"submission {act.key}: {error}")
                    return
            await asyncio.sleep(self.rng.uniform(0.2, 4.0))
        ids = msgspec.json.decode(answer, type=JobIds).ids
        if len(ids) != act.tasks:
            self.wrong.append(f"submission {act.key}: {act.tasks} tasks, {ids}")
        for job in ids:
            if job in self.plans:
                self.wrong.append(f"job {job} was given twice")
            self.plans[job] = act
            self.calls[f"job {job}"].append(Call("submit", begun_s, self.loop.time(), "ok"))
        self.ids[act.key] = ids

    async def _ask(self, act: acts.Ask) -> None:
        ids = self.ids.get(act.key, []) if act.key else self._fitting(act.what)
        if not ids:
            return
        job = ids[act.task % len(ids)]
        begun_s, answer, ended_s = self.loop.time(), None, inf
        body: object = JobSelection(job)
        if act.what == "resize":
            body = ResizeCommand(job, act.size, act.strategy)
        try:
            text = await self.call("POST", f"/{act.what}", msgspec.json.encode(body))
            answer, ended_s = "ok", self.loop.time()
            if act.what == "resize":
                decision = msgspec.json.decode(text, type=ResizeAnswer).decision
                self.counted[f"resize: {decision}"] += 1
            elif job not in msgspec.json.decode(text, type=JobIds).ids:
                answer = "none"
        except NoAnswerError:
            pass
        except RefusedError as error:
            if error.status != UNSURE:
                answer, ended_s = "refused", self.loop.time()
        self.counted[f"{act.what}: {answer}"] += 1
        self.calls[f"job {job}"].append(Call(act.what, begun_s, ended_s, answer))

    def _fitting(self, what: str) -> list[str]:
        """Return the jobs for which a request has a sense now."""
        if self.server is None or not self.server.serves:
            return []
        state = self.server.daemon.context.state
        if what == "hold":
            return [job for job in state.pending if job in self.plans]
        if what == "release":
            return [job for job in state.held if job in self.plans]
        stopped = what == "continue"
        return [
            job
            for job, running in state.running.items()
            if job in self.plans and (running.state is JobState.SUSPENDED) == stopped
        ]

    async def _node(self, act: acts.Node) -> None:
        name, begun_s = self.cluster.names[act.node], self.loop.time()
        done = await self._once(f"/{act.what}", NodePattern(name), object)
        state = "drained" if act.what == "drain" else "up"
        ended_s = inf if done is None else self.loop.time()
        self.calls[f"node {name}"].append(
            Call(state, begun_s, ended_s, None if done is None else "ok")
        )

    async def _wait(self, act: acts.Wait) -> None:
        ids = self.ids.get(act.key)
        if not ids:
            return
        begun_s = self.loop.time()
        answer = await self._once("/wait", WaitQuery(",".join(ids), hold_s=HOLD_S), WaitAnswer)
        if answer is not None and answer.left == 0:
            for job in ids:
                self.calls[f"job {job}"].append(Call("read", begun_s, self.loop.time(), "OVER"))
            await self.look()

    async def look(self) -> list[JobRow] | None:
        """Read all jobs and nodes, as a user does."""
        known, begun_s = list(self.plans), self.loop.time()
        try:
            rows = msgspec.json.decode(await self.call("GET", "/jobs"), type=list[JobRow])
            old = [job for job in known if job not in {row.id for row in rows}]
            if old:  # archived, and listed where they are named only
                answer = await self.call("GET", f"/jobs?id={','.join(old)}")
                rows += msgspec.json.decode(answer, type=list[JobRow])
            states = {row.id: seen(row) for row in rows}
            # Without room, rows show decisions that are not on disk; a kill then takes them back.
            for job in () if self.files.full else known:
                read = states.get(job, "ABSENT")
                self.calls[f"job {job}"].append(Call("read", begun_s, self.loop.time(), read))
            begun_s = self.loop.time()
            nodes = msgspec.json.decode(await self.call("GET", "/nodes"), type=list[NodeRow])
            for row in () if self.files.full else nodes:
                state = "drained" if row.state.startswith("drain") else "up"
                self.calls[f"node {row.name}"].append(
                    Call("read", begun_s, self.loop.time(), state)
                )
        except (NoAnswerError, RefusedError):
            return None
        return rows

    async def _meter(self, number: int) -> None:
        """Report the energy of a node as :class:`rms.power.agent.Agent` does, for ever."""
        node, watts = self.cluster.names[number], 7.0 + number
        while not self.plans:  # the books begin with the first event
            await asyncio.sleep(1.0)
        for agent in count(1):
            boot, booted_s = self.boot, self.booted_s
            own = f"agent {agent} of {node}"
            answer = await self._until(
                self._reported, Metered(node, own, 0, self._wall(), f"{boot}")
            )
            known = next(iter(answer.known), None)
            joules, unseen_s, before_j = 0.0, 0.0, watts * (self.loop.time() - booted_s)
            if known is not None:
                joules, unseen_s = known.joules, known.unseen_s
                if answer.boot == f"{boot}":
                    before_j = known.counter or 0.0
                else:
                    unseen_s += max(0.0, self._wall() - answer.at_s)
            sent = self.sent_j.setdefault(node, {0.0})
            for message in count(1):
                if message > 1:  # the first report is there to begin with
                    await asyncio.sleep(METER_EVERY_S)
                if self.boot != boot or self.silent_s.get(number, 0.0) > self.loop.time():
                    break
                counter = watts * (self.loop.time() - booted_s)
                joules, before_j = joules + counter - before_j, counter
                sent.add(joules)
                device = DeviceEnergy("node", "command", joules, unseen_s, 0.0, counter)
                if await self._reported(
                    Metered(node, own, message, self._wall(), f"{boot}", [device])
                ):
                    self.booked_j[node] = joules
            await asyncio.sleep(max(0.0, self.silent_s.get(number, 0.0) - self.loop.time()))

    def block(self, for_s: float) -> None:
        """Let time pass while the daemon, and with it all else, waits for an answer."""
        self.loop.now_s += for_s

    def _wall(self) -> float:
        return self._true_time() + self.skew_s

    def _true_time(self) -> float:
        return EPOCH_S + self.loop.time()

    async def _reported(self, report: Metered) -> MeterAnswer | None:
        if self.server is None or not self.server.serves:
            return None
        token = self.server.daemon.launcher.meter_token
        try:
            answer = await self.call("POST", METER_PATH, msgspec.json.encode(report), token)
        except (NoAnswerError, RefusedError):
            return None
        self.counted["meter report"] += 1
        return msgspec.json.decode(answer, type=MeterAnswer)

    # --- what must hold ---------------------------------------------------------------------------

    def observe(self) -> None:
        """Look at the daemon after something has happened in it."""
        assert self.server is not None
        state = self.server.daemon.context.state
        owners = Counter(node for job in state.running.values() for node in job.held)
        twice = [node for node, number in owners.items() if number > 1]
        if twice:
            self._wrong(f"nodes {twice} are held twice")
        away = state.down | state.off | state.booting.keys() | state.lent.keys()
        lost = [
            node
            for node in range(state.nodes)
            if not state.vacant[node] and node not in owners and node not in away
        ]
        if lost:
            self._wrong(f"nodes {lost} are lost")
        free = sum(state.vacant)
        if free != state.free_count:
            self._wrong(f"{free} nodes are vacant, {state.free_count} are counted")
        releasing = sum(job.loss for job in state.running.values())
        if state.releasing != releasing:
            self._wrong(f"{releasing} nodes are being released, {state.releasing} are counted")
        holds = {(job_id, node) for job_id, job in state.running.items() for node in job.held}
        if self._seen is not self.server:  # until now, a host may have answered another daemon
            self._seen, self._down_before = self.server, frozenset()
        down = self._down_before & state.down
        drained = [pair for pair in holds - self._held_before if pair[1] in down]
        if drained:
            self._wrong(f"jobs got nodes that were drained: {drained}")
        self._held_before, self._down_before = holds, frozenset(state.down)
        cap_w = state.power_cap_w
        if cap_w is None or cap_w != self._cap_before:
            self._most_w = inf
        else:  # what was above a new cap comes down; nothing goes above it again
            watts = expected_w(state)
            if watts > max(cap_w, self._most_w) + 1e-6:
                self._wrong(f"{watts} W are expected under a cap of {cap_w} W")
            self._most_w = watts
        self._cap_before = cap_w
        if len(state.ended) > MOST_ENDED * KEPT:
            self._wrong(f"{len(state.ended)} jobs that are over are kept")
        self._look_at_idle(state)
        slots: dict[str, str] = {}
        for process in self.machine.live.values():
            for slot in process.slots:
                owner = slots.setdefault(slot, process.job)
                if owner != process.job:
                    self._wrong(f"jobs {owner} and {process.job} have processes on {slot}")
        for slot in () if self.hosts is None else self.hosts.twice():
            self._wrong(f"two jobs have processes on {slot}")
        self._look_at_lost(state)
        if self.setup.survivors:
            self._look_at_survivors(state)

    def _look_at_survivors(self, state: State) -> None:
        """Check the keepers and the nodes of jobs with copies in memory."""
        server, now_s = self.server, self.loop.time()
        assert server is not None
        needed, jobs = set[tuple[str, str]](), server.daemon.jobs
        for job_id, running in state.running.items():
            job, step = jobs[job_id], jobs[job_id].running_step
            for host in self.cluster.hosts_of(running.held) if self.setup.engine else [LOOPBACK]:
                needed.add((keepers_of(job_id), host))
            if self.hosts is not None and step is not None and step.keepers and step.has_polled:
                self._look_at_held(running)
            worlds = self.machine.stepping_worlds.get(job_id, [])
            if job.resize is not None or job.revives or step is None or not worlds:
                continue
            live = [self.machine.live.get(step.worlds[n].pid) for n in step.current]
            wanted = (*self.cluster.slots_of(running.nodes),)
            own = tuple(slot for one in live if one is not None for slot in one.slots)
            if all(live) and worlds[-1].launches[0] in live and own != wanted:
                self._wrong(f"job {job_id} computes on {own}, and has {wanted}")
        for pid, process in self.machine.live.items():
            pieces = process.pieces
            if pieces is None or (process.job, pieces.host) in needed:
                self._lingers_s.pop(pid, None)
            elif now_s > max(self._lingers_s.setdefault(pid, now_s), self._calm_s()) + LINGERS_S:
                self._wrong(f"a keeper of {process.job} is left on {pieces.host}")
        stopped = {
            job_id for job_id, job in state.running.items() if job.state is JobState.SUSPENDED
        }
        self._stopped_s = {job: self._stopped_s.get(job, now_s) for job in stopped}
        for job, at_s in self._stopped_s.items():
            for world in self.machine.stepping_worlds.get(job, []):
                if any(
                    one.begun_s > at_s and one.pid in self.machine.live for one in world.launches
                ):
                    self._wrong(f"job {job} computes, and is suspended")
        dead = {job_id for job_id in state.running if jobs[job_id].revives} - stopped
        self._dead_s = {job: self._dead_s.get(job, now_s) for job in dead}
        for job, at_s in self._dead_s.items():
            if now_s > max(at_s, self._calm_s()) + DEAD_S:
                self._wrong(f"job {job} has not gone on for {now_s - at_s:.0f} s")

    def _look_at_held(self, running: Job) -> None:
        """Check that a job that can go on without its lost nodes does not hold them for long."""
        assert self.hosts is not None
        since = [self.hosts.hosts[host].since_s for host in self.cluster.hosts_of(running.held)]
        left, can = since.count(None), running.spec.mode.resizable and not running.requested_nodes
        if running.state is not JobState.RUNNING or not can or min(running.spec.sizes()) > left:
            return
        for at_s in since:
            if at_s is not None and self.loop.time() > max(at_s, self._calm_s()) + HOLDS_S:
                self._wrong(f"job {running.spec.id} holds a node that is lost since {at_s:.3f} s")

    def _calm_s(self) -> float:
        """Return the time since which nothing hinders the daemon, inf while something does."""
        assert self.server is not None
        if self.files.full or self.machine.refusal or self.network is not None:
            self._well_s = self.loop.time()
        return max(self.server.begun_s, self._well_s)

    def _look_at_lost(self, state: State) -> None:
        """Check that nodes that have been lost for a while are down."""
        assert self.server is not None
        since_s = max(self.server.begun_s, self._well_s)
        hindered = self.files.full or (self.slurm is not None and self.slurm.fault is not None)
        if self.loop.time() < since_s + LOST_S or hindered:
            return
        lost = self.slurm.lost_s if self.slurm is not None else {}
        if self.hosts is not None:
            lost = {own.name: own.since_s for own in self.hosts.hosts.values() if own.since_s}
        for name, at_s in lost.items():
            node = self.cluster.names.index(name)
            if self.loop.time() > at_s + LOST_S and node not in state.down:
                self._wrong(f"{name} has been lost since {at_s:.3f} s, and is not down")

    def _look_at_idle(self, state: State) -> None:
        """Check that nodes are not all idle for long while any of the jobs that wait fits."""
        now_s, server = self.loop.time(), self.server
        assert server is not None
        hindered = self.files.full or self.machine.refusal or state.power_cap_w is not None
        if (
            hindered
            or state.running
            or self._idle is None
            or self._idle[0] != server
            or max((job.spec.nodes_max for job in state.pending.values()), default=inf)
            > state.free_count
        ):
            self._idle, self._idle_looks = (server, now_s), 0
            return
        self._idle_looks += 1
        if self._idle_looks >= IDLE_LOOKS and now_s > self._idle[1] + IDLE_S:
            self._idle = None
            self._wrong(f"{list(state.pending)[:3]} wait, and {state.free_count} nodes are idle")

    def _wrong(self, words: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(f"{self.loop.time():.3f} s: {words}")

    async def _settle(self) -> None:
        """Take back all faults; everything has to end then."""
        begun_s, self.network = self.loop.time(), None
        self._settles_s, self.again = begun_s, []
        if self.server is not None:
            self.server.life.kill_at = None
            self.server.life.thaw()
        for process in list(self.machine.live.values()):
            process.going.set()
        await self._until(self._once, "/power-cap", PowerCap(None), object)
        for name in self.cluster.names:
            begun = self.loop.time()
            await self._until(self._once, "/resume", NodePattern(name), object)
            self.calls[f"node {name}"].append(Call("up", begun, self.loop.time(), "ok"))
        while True:
            rows = await self.look()
            still = [row for row in rows or () if row.state not in OVER]
            if rows is not None and not still:
                break
            if self.loop.time() > begun_s + SETTLE_S:
                self.wrong.append(f"not over: {[(r.id, r.state, r.reason) for r in still]}")
                break
            for row in still:
                what = {"HELD": "release", "SUSPENDED": "continue"}.get(seen(row))
                if what is not None:
                    key = self.plans[row.id].key
                    task = self.ids[key].index(row.id)
                    await self._ask(acts.Ask(at_s=0.0, what=what, key=key, task=task))
            await asyncio.sleep(60.0)
        await asyncio.sleep(60.0)
        if self.machine.live:
            left = [(one.job, one.launch) for one in self.machine.live.values()]
            self.wrong.append(f"processes are left: {left}")
        if self.slurm is not None and self.slurm.left():
            self.wrong.append(f"jobs of Slurm's are left: {self.slurm.left()}")
        if self.hosts is not None and self.hosts.left():
            self.wrong.append(f"processes are left on hosts: {self.hosts.left()}")
        self._check(await self._until(self.look))
        await self._check_energy()

    async def _check_energy(self) -> None:
        """Compare the sums of the books with each other, and with the counters."""
        server = self.server
        while server is None or not server.serves:
            await asyncio.sleep(1.0)
            server = self.server
        hosts = server.daemon.scheduler.energy.measured.hosts
        acct = msgspec.json.decode(await self.call("GET", "/acct"), type=AcctAnswer)
        try:
            check_energies(acct, owner_energies(acct.rows), whole=self.setup.keep is None)
        except BalanceError as error:
            self.wrong.append(str(error))
        for node, booked_j in self.booked_j.items():
            device = hosts[node].devices.get("node") if node in hosts else None
            now_j = 0.0 if device is None else device.energy.joules
            if now_j < booked_j or now_j not in self.sent_j[node]:
                self.wrong.append(f"{node}: {now_j} J are booked, its counter had {booked_j} J")
            if device is not None and abs(device.booked_j - now_j) > 1e-9 * now_j:
                self.wrong.append(f"{node}: {device.booked_j} J are booked of {now_j} J")
        rows_j = sum(row.joules for row in acct.rows if row.source == "command")
        total_j = sum(one.booked_j for host in hosts.values() for one in host.devices.values())
        if self.setup.keep is None and abs(rows_j - total_j) > 1e-9 * total_j:
            self.wrong.append(f"owners have {rows_j} J of {total_j} J that were measured")

    async def _until(self, work: Any, *arguments: Any) -> Any:
        begun_s = self.loop.time()
        while (answer := await work(*arguments)) is None:
            if self.loop.time() > max(begun_s, self._settles_s) + ANSWERS_S:
                what = " ".join([work.__name__, *map(str, arguments)])
                self.wrong.append(f"{what}: no answer within {ANSWERS_S:g} s")
                raise RuntimeError(self.wrong[-1])
            await asyncio.sleep(1.0)
        return answer

    def _check(self, rows: list[JobRow]) -> None:
        """Check what has come of all."""
        server = self.server
        assert server is not None
        self.wrong += self.machine.wrong
        by_id = {row.id: row for row in rows}
        self.wrong += [f"job {job} is lost" for job in self.plans.keys() - by_id.keys()]
        self.wrong += [f"job {job} was not submitted" for job in by_id.keys() - self.plans.keys()]
        requeues, late = Counter[str](), Counter[str]()
        for entry in server.daemon.journal.read(server.daemon.journal.begins()):
            if isinstance(entry, Seen) and isinstance(entry.event, Requeued):
                requeues[entry.event.job] += 1
                late[entry.event.job] += not entry.event.reason.startswith("could not start")
        cancelled = {
            subject.partition(" ")[2]
            for subject, calls in self.calls.items()
            if any(call.kind == "cancel" and call.answer == "ok" for call in calls)
        }
        for job in cancelled & by_id.keys():
            if (state := by_id[job].state) in ("COMPLETED", "FAILED"):
                self.wrong.append(f"job {job} is {state}, though a cancel was acknowledged")
        if self.setup.mild:
            self._check_survivors(by_id, late)
        runs = Counter(run.job for run in self.machine.runs)
        for job, row in by_id.items():
            self.counted[f"job {row.state}"] += 1
            self.counted["resizes"] += len(row.resizes)
            if row.state == "COMPLETED" and not any(
                run.status == 0 for run in self.machine.runs if run.job == job
            ):
                self.wrong.append(f"job {job} is COMPLETED, and no run of it has ended with 0")
        for job, number in runs.items():
            if (
                self.setup.keep is None
                and not self.setup.survivors
                and number > 1 + requeues[job] + self.machine.relaunches[job]
            ):
                self.wrong.append(f"job {job} ran {number} times, with {requeues[job]} requeues")
        for subject, calls in self.calls.items():
            kind, _, name = subject.partition(" ")
            model: Any = SwitchModel("up")
            if kind == "job":
                model = JobModel(hold=name in self.plans and self.plans[name].hold)
            misfit = first_misfit(model, calls)
            if misfit:
                lines = "\n    ".join(map(str, misfit[-8:]))
                self.wrong.append(f"answers about {subject} fit no order:\n    {lines}")
        journal, keep = server.daemon.journal, self.setup.keep
        if keep is not None and journal.last - journal.begins() > MOST_ENTRIES * keep:
            self.wrong.append(f"the journal has entries {journal.begins()} to {journal.last}")
        self.wrong += replayed(journal).differing
        unexpected = ("Error", "rest goes on", "Traceback")
        for line in self.logged:
            if "policy failed: " in line:  # a user's
                self.counted["failed policies"] += 1
            elif any(word in line for word in unexpected):
                self.wrong.append(line)

    def _check_survivors(self, rows: dict[str, JobRow], requeues: Counter[str]) -> None:
        """Check that jobs with copies in memory have gone on, unless a user has ended them."""
        if self.hosts is not None:
            self._excused |= self.hosts.began_on_lost
        for job, row in rows.items():
            kinds = {call.kind for call in self.calls[f"job {job}"]}
            if job in self._excused or not kinds.isdisjoint(("cancel", "requeue")):
                continue
            if row.state != "COMPLETED" or requeues[job]:
                how = f"{row.state}, requeued {requeues[job]} times"
                self.wrong.append(f"job {job} has not gone on: {how}: {row.reason}")


def seen(row: JobRow) -> str:
    """Return the state of a job's row, as the model of jobs has it."""
    if row.state in OVER:
        return "OVER"
    return "HELD" if row.state == "PENDING" and row.reason.startswith("JobHeldUser") else row.state


def machine_text(plan: acts.Plan) -> str:
    """Return the script of a plan."""
    from virtual.machine import MARK

    return f"#!/bin/sh\n{MARK}{msgspec.json.encode(plan).decode()}\ntrue\n"


class _Lines(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage().replace(str(self.world.folder), "")
        self.world.logged.append(f"{self.world.loop.time():10.3f} {words}")


def played(
    sequence: Sequence[acts.Act], setup: acts.Setup, seed: int = 0, root: str | None = None
) -> World:
    """Play a sequence of acts in a new world; return that, with what is wrong."""
    with tempfile.TemporaryDirectory(dir=root) as name:
        world = World(setup, seed, Path(name))
        asyncio.set_event_loop(world.loop)
        tokens = random.Random(f"tokens {seed}")
        with (
            contextlib.ExitStack() as stack,
            warnings.catch_warnings(action="ignore", category=RuntimeWarning),
            patch.object(log, "handlers", [_Lines(world)]),
            patch.object(log, "propagate", False),
            patch.object(log, "level", logging.INFO),
            patch("rms.launch.base.alive", lambda pid: pid in world.machine.live),
            patch("os.fsync", world.files.sync),
            patch("rms.daemon.store.sandbox.forked", answer_here(world.block)),
            patch("rms.daemon.store.archive.EVERY", SNAPSHOT_EVERY),
            patch("rms.daemon.store.archive.PACKED_AT_ONCE", inf),
            patch("rms.daemon.store.archive.KEPT", KEPT),
            patch("rms.daemon.store.archive.AT_ONCE", KEPT // 3),
            patch("rms.daemon.store.archive.MOST", MOST_ENDED - 1),
            patch("rms.daemon.ask.routes.HOLD_S", HOLD_S),
            patch("rms.daemon.ask.routes.time.monotonic", world.loop.time),
        ):
            clock = Clock(world.loop, world._wall)
            stack.enter_context(patch("rms.daemon.ask.routes.WAIT_LOOK_S", 1.0))
            stack.enter_context(patch("rms.daemon.ask.routes.WATCH_S", 1.0))
            stack.enter_context(patch("secrets.token_hex", lambda n=32: tokens.randbytes(n).hex()))
            for one in slurm.patches(clock):
                stack.enter_context(one)
            for one in () if world.hosts is None else hosts.patches(world.hosts, clock):
                stack.enter_context(one)
            try:
                world.loop.run_until_complete(world.play(sequence))
            except StuckError as error:
                world.wrong.append(str(error))
            except RuntimeError:  # stopped, as no daemon serves any more
                if not world.wrong:
                    raise
            finally:
                world.close()
                asyncio.set_event_loop(None)
    return world
