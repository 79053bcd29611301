"""Hosts reached by a remote shell, their agents, and the engine ``--reach ssh`` on top of them.

The daemon's side is the real one (:mod:`rms.launch.hosts.launcher`), and so are the answers and
the fence of an agent (:class:`rms.launch.hosts.agent.Agent`). Between the two are pipes that a cut
of the network stops. A process has a part here, the remote shell or mpiexec, and others on hosts.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import msgspec

from rms.launch.base import ManagedProcess, ScriptLaunch, WorldLaunch, hosts_of
from rms.launch.hosts.agent import Agent, Order
from rms.launch.hosts.allocation import Allocation
from rms.launch.hosts.launcher import DOWN_S, FENCE, HostsLauncher
from rms.launch.processes import INSTANCE_VARIABLE
from rms.wire.messages import SLOTS_VARIABLE, SUPERVISOR_VARIABLE, WORLD_VARIABLE
from virtual.loop import VirtualLoop
from virtual.machine import KILLED, Machine, Process, World, is_beside
from virtual.server import Launcher, Server

CONNECT_S = 5.0
"""Time after which a remote shell gives up a host that does not answer."""

LATENCY_S = (0.001, 0.01, 0.1)
LOST = 255
FIRST_FILE = 1 << 20
"""Numbers of files above those of the system."""


@dataclass(eq=False)
class Part:
    """The part of a process on a host: a script, or the ranks there."""

    process: Process
    host: str
    slots: tuple[str, ...]


@dataclass(eq=False)
class Host:
    """A host.

    Attributes:
        state: "" while it is well; ``power``, ``cut`` or ``paused``.
        since_s: since when it does not answer; None while it does.
        broken: processes that end once it answers, as their parts there are gone.
    """

    name: str
    state: str = ""
    since_s: float | None = None
    parts: list[Part] = field(default_factory=list)
    agents: list[AgentOnHost] = field(default_factory=list)
    broken: list[Process] = field(default_factory=list)


class Hosts:
    """All hosts; they outlive daemons.

    Attributes:
        began_on_lost: jobs of which a script or a first world began on a host that was lost.
        slow_kills: whether processes may take some time to end after SIGKILL.
    """

    def __init__(
        self, loop: VirtualLoop, rng: random.Random, machine: Machine, counted: Counter[str]
    ) -> None:
        self.loop, self.rng, self.machine, self.counted = loop, rng, machine, counted
        self.hosts: dict[str, Host] = {}
        self.files: dict[int, Pipe] = {}
        self.began_on_lost, self.slow_kills = set[str](), False
        machine.unreachable, machine.moved = self._unreachable, self._moved
        machine.beside = self._beside

    def latency_s(self) -> float:
        return self.rng.choice(LATENCY_S)

    # --- processes --------------------------------------------------------------------------------

    def begin(self, process: Process, slots: tuple[str, ...]) -> None:
        """Enter the parts of a process."""
        process.at = slots
        process.on_exit = lambda: self._ended(process)
        for name in hosts_of(slots):
            self._begin_on(self.hosts[name], process, slots)

    def begin_keeper(self, process: Process, name: str) -> None:
        """Enter a keeper, which has no slots."""
        process.on_exit = lambda: self._ended(process)
        self._begin_on(self.hosts[name], process, ())

    def _beside(self, world: World) -> list[Process]:
        """Return the processes of other worlds of a line, on hosts where they can compute."""
        return [
            part.process
            for host in self.hosts.values()
            for part in host.parts
            if host.state in ("", "cut")
            and part.process.job == world.job
            and part.process.world is not None
            and is_beside(part.process.world, world)
        ]

    def _begin_on(self, host: Host, process: Process, slots: tuple[str, ...]) -> None:
        if host.state:  # it cannot be reached
            self.machine.lose(process)
            hurt(process)
            if process.pieces is None and process.keepers.get(SUPERVISOR_VARIABLE, "0") == "0":
                self.began_on_lost.add(process.job)
            self.loop.call_later(CONNECT_S, self.machine.exit, process, LOST)
            return
        own = tuple(slot for slot in slots if slot.startswith(f"{host.name}/"))
        host.parts.append(Part(process, host.name, own))

    def _moved(self, process: Process) -> None:
        """Enter that ranks have left hosts, or have begun on others."""
        at = hosts_of(process.slots)
        for host, part in self.parts_of(process):
            if host.name in at:
                at.remove(host.name)
            else:
                host.parts.remove(part)
        for name in at:
            self._begin_on(self.hosts[name], process, process.slots)

    def parts_of(self, process: Process) -> list[tuple[Host, Part]]:
        return [
            (host, part)
            for host in self.hosts.values()
            for part in host.parts
            if part.process is process
        ]

    def _ended(self, process: Process) -> None:
        """End the parts of a process; of one that was killed they may go on."""
        for host, part in self.parts_of(process):
            if host.state:
                continue
            if process.over or process.status != KILLED:
                host.parts.remove(part)
            elif self.rng.random() < 0.5:
                self.loop.call_later(self.rng.uniform(0.0, 2.0), self.end, host, part)

    def end(self, host: Host, part: Part) -> None:
        """End a part; what is here of its process notices that, if it can."""
        if part not in host.parts:
            return
        host.parts.remove(part)
        process = part.process
        self.machine.lose(process)
        if host.state:
            host.broken.append(process)
        else:
            self.loop.call_later(self.latency_s(), self.machine.exit, process, LOST)

    def _unreachable(self, process: Process) -> bool:
        return any(host.state for host, _ in self.parts_of(process))

    def twice(self) -> list[str]:
        """Return the slots on which several jobs have processes."""
        found = []
        for host in self.hosts.values():
            owners = dict[str, str]()
            for part in host.parts:
                for slot in part.slots:
                    if owners.setdefault(slot, part.process.job) != part.process.job:
                        found.append(slot)
        return found

    # --- faults -----------------------------------------------------------------------------------

    def fail(self, name: str, how: str, for_s: float) -> None:
        """Let a host fail for a time."""
        host = self.hosts[name]
        if host.state:
            return
        if how == "agent":
            for own in list(host.agents):
                own.die()
            return
        host.state, host.since_s = how, self.loop.now_s
        for part in host.parts:
            hurt(part.process)
        if how == "power":
            for part in list(host.parts):
                host.parts.remove(part)
                self.machine.lose(part.process)
                host.broken.append(part.process)
            for own in list(host.agents):
                self.loop.call_later(for_s, own.die)
        elif how == "paused":
            for part in host.parts:
                part.process.going.clear()
        self.loop.call_later(for_s, self._back, host)

    def _back(self, host: Host) -> None:
        paused, host.state, host.since_s = host.state == "paused", "", None
        for own in list(host.agents):
            own.tick()
            own.flow()
        broken, host.broken = host.broken, []
        for process in broken:
            self.machine.exit(process, LOST)
        for part in list(host.parts):
            if paused:
                part.process.going.set()
            if part.process.pid not in self.machine.live:  # its remote shell is gone
                self._ended(part.process)

    def left(self) -> list[str]:
        """Return the jobs with processes on hosts."""
        return sorted(
            {
                f"{part.process.job} on {own.name}"
                for own in self.hosts.values()
                for part in own.parts
            }
        )


# --- agents ---------------------------------------------------------------------------------------


class Pipe:
    """What one side writes, and the other reads a little later."""

    def __init__(self, hosts: Hosts) -> None:
        self.number = FIRST_FILE + len(hosts.files)
        hosts.files[self.number] = self
        self.sent, self.come, self.closed = b"", b"", False

    def fileno(self) -> int:
        return self.number

    def close(self) -> None:
        self.closed = True

    def read(self) -> bytes:
        if not self.come and not self.closed:
            raise BlockingIOError
        data, self.come = self.come, b""
        return data


class AgentOnHost(Agent):
    """A real agent, called whenever something has come; also its remote shell, as a Popen.

    Attributes:
        running: the agent whose code runs now.
        waits: whether it waits until the processes that it ends are gone.
    """

    running: ClassVar[AgentOnHost]

    def __init__(self, hosts: Hosts, host: Host, mark: str) -> None:
        super().__init__(mark, FENCE * DOWN_S)
        for file in self._woken:
            os.close(file)
        self.hosts, self.host, self.mark = hosts, host, mark
        self._processes: Any = self
        self.orders, self.answers = Pipe(hosts), Pipe(hosts)
        self.dead, self.here, self.waits = False, True, False
        self.begun_s = hosts.loop.now_s
        host.agents.append(self)
        hosts.loop.call_later(1.0, self._every)

    # --- on the host ------------------------------------------------------------------------------

    def end_all(self) -> None:
        """End all processes of jobs, as a daemon is not heard of, or asks for it."""
        for part in self.host.parts:
            hurt(part.process)
        self.waits = True
        super().end_all()
        self.waits = False

    def owners(self) -> list[tuple[str, str]]:
        return sorted({(part.process.job, _launch(part.process)) for part in self.host.parts})

    def of(self, job: str, launch: str | None) -> list[int]:
        return [
            part.process.pid
            for part in self.host.parts
            if part.process.job == job and launch in (None, _launch(part.process))
        ]

    def signal(self, pid: int, number: int) -> None:
        """Signal a process on this host."""
        for part in list(self.host.parts):
            process = part.process
            if process.pid != pid:
                continue
            hosts = self.hosts
            if number == signal.SIGKILL and hosts.slow_kills and not self.waits:
                wait_s = hosts.rng.choice((0.0, 0.0, 0.0, 3.0))
                hosts.loop.call_later(wait_s, hosts.end, self.host, part)
            elif number == signal.SIGKILL:
                hosts.end(self.host, part)
            elif number == signal.SIGSTOP:
                process.going.clear()
            else:
                process.going.set()
                if number == signal.SIGTERM:
                    process.asked_to_end = True
                    process.terminated.set()

    def _chosen(self, job: str, whom: str) -> list[int]:
        return self.of(job, None)

    def _newer(self) -> bool:
        return any(own.begun_s > self.begun_s and not own.dead for own in self.host.agents)

    def _every(self) -> None:
        self.tick()
        if not self.dead:
            self.hosts.loop.call_later(1.0, self._every)

    def tick(self) -> None:
        """Do what :meth:`rms.launch.hosts.agent.Agent.run` does when it is woken."""
        if self.dead or self.host.state in ("power", "paused"):
            return
        AgentOnHost.running = self
        self._tick()

    def _tick(self) -> None:
        if self.hosts.loop.now_s > self._confirmed_s + self._fence_s:
            if not self._newer():
                self.hosts.counted["agent fences"] += bool(self.host.parts)
                self.end_all()
            self.die()
            return
        *lines, self._left = (self._left + self.orders.come).split(b"\n")
        self.orders.come = b""
        for line in lines:
            if self._obey(msgspec.json.decode(line, type=Order)):
                self.die()
                return
        if self._killing:
            self._kill()

    def write(self, data: bytes) -> int:
        """Send an answer."""
        self.answers.sent += data
        self.hosts.loop.call_later(self.hosts.latency_s(), self.flow)
        return len(data)

    def flow(self) -> None:
        """Let come what was sent, unless the network is cut."""
        if self.host.state or not self.here:
            return
        for pipe in (self.orders, self.answers):
            pipe.come, pipe.sent = pipe.come + pipe.sent, b""
        if self.orders.come:
            self.tick()

    def die(self) -> None:
        """End; the remote shell notices that if the host can tell it."""
        if not self.dead:
            self.dead = True
            self.host.agents.remove(self)
        if not self.host.state:
            self.answers.closed = True

    # --- its remote shell -------------------------------------------------------------------------

    @property
    def stdin(self) -> Pipe:
        return self.orders

    @property
    def stdout(self) -> Pipe:
        return self.answers

    def kill(self) -> None:
        self.here = False

    def wait(self, timeout: float | None = None) -> int:
        return LOST

    def send(self, data: bytes) -> int:
        """Send what the daemon writes."""
        self.orders.sent += data
        self.hosts.loop.call_later(self.hosts.latency_s(), self.flow)
        return len(data)


def hurt(process: Process) -> None:
    """Note that a keeper has met a fault."""
    if process.pieces is not None:
        process.pieces.hurt = True


def _launch(process: Process) -> str:
    return "" if process.launch is None else f"{process.launch}"


class _Files:
    """In place of the module ``os``."""

    def __init__(
        self,
        write: Callable[[int, bytes], int],
        read: Callable[[int, int], bytes] | None = None,
    ) -> None:
        self.write = write
        if read is not None:
            self.read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


# --- the engine -----------------------------------------------------------------------------------


class _Listed:
    """Processes on the daemon's machine, in place of :class:`rms.launch.processes.Processes`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def of(self, job: str | None, launch: str | None) -> list[int]:
        number = None if launch is None else int(launch)
        return [process.pid for process in self._machine.of(job, number)]

    def members(self, job: str) -> list[int]:
        return []


@dataclass
class VirtualHostsLauncher(HostsLauncher, Launcher):
    """The launcher of hosts, whose scripts and worlds are coroutines."""

    hosts: Hosts = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        listed: Any = _Listed(self.machine)
        self._processes, self._groups = listed, listed

    def start_host_agent(self, host: str) -> Any:
        self.life.point("before a fork")
        own = self.hosts.hosts[host]
        started = AgentOnHost(self.hosts, own, self.instance_id)
        if own.state:
            started.die()
            self.hosts.loop.call_later(CONNECT_S, started.answers.close)
        return started

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        started = Launcher.start_script(self, job, launch)
        self.hosts.begin(self.machine.live[started.pid], tuple(launch.nodes[0]))
        return started

    def start_keeper(self, job: str, number: int, host: str) -> None:
        self.hosts.begin_keeper(self._begin_keeper(job, number, host), host)

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        started = super().boot_world(job, launch)
        self.hosts.begin(self.machine.live[started.pid], tuple(launch.slots))
        return started


def hosts_launcher(hosts: Hosts, server: Server, mark: str) -> VirtualHostsLauncher:
    """Return the launcher of a daemon."""
    allocation = Allocation("", dict.fromkeys(hosts.hosts, 1), ("ssh",), (), relayed=False)
    return VirtualHostsLauncher(
        server.folder,
        mark,
        "unix:none",
        allocation,
        0.0,
        machine=server.machine,
        life=server.life,
        hosts=hosts,
    )


def patches(hosts: Hosts, clock: Any) -> Iterator[Any]:
    """Yield what is in place of files, processes and the clock in the modules of the engine."""
    machine = hosts.machine

    def write(file: int, data: bytes) -> int:
        pipe = hosts.files[file]
        for host in hosts.hosts.values():
            for own in list(host.agents):
                if own.orders is pipe:
                    return own.send(data)
        return len(data)

    def read(file: int, most: int) -> bytes:
        return hosts.files[file].read()

    def environment(pid: int) -> list[bytes]:
        process = machine.live[pid]
        words = {INSTANCE_VARIABLE: f"mark:{process.job}", SLOTS_VARIABLE: " ".join(process.at)}
        if process.launch is not None:
            words[WORLD_VARIABLE] = f"{process.launch}"
        return [f"{name}={value}".encode() for name, value in words.items()]

    def send_signal(pid: int, number: int) -> None:
        if pid in machine.live:
            machine.terminate(machine.live[pid].job, [pid])

    module = "rms.launch.hosts.launcher"
    yield patch(f"{module}.os", _Files(write, read))
    yield patch(f"{module}.environment", environment)
    yield patch(f"{module}.send_signal", send_signal)
    yield patch(f"{module}.program_name", lambda _: "mpiexec")
    yield patch(f"{module}.descendants", lambda _: [])
    yield patch(f"{module}.time", clock)
    module = "rms.launch.hosts.agent"
    yield patch(f"{module}.send_signal", lambda pid, n: AgentOnHost.running.signal(pid, n))
    yield patch(f"{module}.os", _Files(lambda _, data: AgentOnHost.running.write(data)))
    at_once = SimpleNamespace(monotonic=clock.monotonic, sleep=lambda _: None)
    yield patch(f"{module}.time", at_once)
