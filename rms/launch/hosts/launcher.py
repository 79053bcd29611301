"""Hosts reached by a remote shell: worlds by mpiexec, scripts by the shell, and an agent on each.

mpiexec and the remote shells of scripts run on the daemon's machine, as in engine ``local``, so
their ends and outputs need no shared folder. The processes on a host are ended by its agent. A host
whose agent has not answered for ``--silent`` (:data:`DOWN_S`) is down; by then its agent, which has
not been confirmed for two thirds of it, has ended the processes there. It is up again once an agent
that was started anew answers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import msgspec

from rms.core.model.cluster import Cluster
from rms.formats.config import read_cluster
from rms.launch.base import (
    EngineNodes,
    LaunchError,
    ManagedProcess,
    NodeClocks,
    PendingCall,
    ScriptLaunch,
    hosts_of,
)
from rms.launch.hosts import agent, relay
from rms.launch.hosts.agent import Answer, Order, Start
from rms.launch.hosts.allocation import Allocation
from rms.launch.hosts.relay import Ports
from rms.launch.local import (
    MOST_WAIT_S,
    AgentProcess,
    JobEngine,
    LocalLauncher,
    host_cluster,
    keeper_words,
    keepers_of,
    numbered,
)
from rms.launch.processes import (
    INSTANCE_VARIABLE,
    KEEP_STATUS,
    descendants,
    program_name,
    send_signal,
)
from rms.power.choice import AUTO, MeterChoice
from rms.wire.marks import AGENT, METER, environment
from rms.wire.messages import (
    SERVER_VARIABLE,
    SLOTS_VARIABLE,
    TOKEN_VARIABLE,
    WORLD_VARIABLE,
)
from rms.wire.mpiexec import find_mpiexec, is_open_mpi

log = logging.getLogger("rms")

EVERY_S = 1.0  # interval between two messages to an agent
ENDING_S = 0.2  # the same while its jobs are being ended
DOWN_S, LEAST_DOWN_S = 15.0, 3.0
"""A host is down if its agent has not answered for so long: the jobs there have ended by then."""

FENCE = 2 / 3
"""An agent ends all jobs there if none of its answers was confirmed for so much of that time."""

START_S = 30.0  # time of a new agent until its first answer

AGAIN_S = 1.0
MOST_AGAIN_S = 10.0
"""Pause before an agent that has ended is started again; it doubles up to the second."""

STRAY_ANSWERS = 2
"""A job with processes on a host, but none here, in so many answers has left them behind."""

ROOT = Path(__file__).resolve().parents[3]
ANSWERS = "answers"
END_S = 60.0  # interval between two queries for the end of an allocation
RELAY = "rms-on-host"  # the program that calls the agent of a host
FROM_FILE = 'exec "$@" <"$0"'
OPEN_MPI = ("prterun", "orterun", "mpirun")


def python_on_host(*words: str) -> list[str]:
    """Return the words of this Python on a host, with this daemon's own rms."""
    return ["env", f"PYTHONPATH={ROOT}", sys.executable, "-P", "-m", *words]


def _name(job: str, launch: int | None) -> tuple[str, str]:
    return job, "" if launch is None else str(launch)


@dataclass
class HostAgent:
    """The agent of one host, as the daemon sees it.

    Attributes:
        start: starts it with pipes.
        look: file whose text an answer has to hold: a host has to see the state folder.
        fence: whether a new agent ends all jobs there first, as the host was lost.
        live: the jobs and launches with processes there.
        soon: whether a newer answer is waited for.
        ending: those that are being ended, with the number of the message; the host is not up
            again before they are.
        refusal: why the host cannot be used although its agent answers, "" if it can.
        key, port: of the relay that it opens, if there is one.
        down_s: without an answer for so long the host is down.
    """

    host: str
    start: Callable[[str], subprocess.Popen[bytes]]
    look: Path
    text: str
    up: bool = False
    fence: bool = False
    refusal: str = ""
    live: frozenset[tuple[str, str]] = frozenset()
    soon: bool = False
    ending: dict[tuple[str, str], int] = field(default_factory=dict)
    strays: dict[str, int] = field(default_factory=dict)
    answers: int = 0
    key: str = ""
    port: int = 0
    down_s: float = DOWN_S
    _orders: deque[Order] = field(default_factory=deque)
    _process: subprocess.Popen[bytes] | None = None
    _number: int = 0
    _seen: int = 0
    _unsent: bytes = b""
    _unread: bytes = b""
    _sent_s: float = 0.0
    _again_s: float = 0.0
    _wait_s: float = AGAIN_S
    _heard_s: float = 0.0
    _since_s: float = 0.0
    _silent: bool = False

    def open(self) -> None:
        """Begin to wait for the first answer."""
        self._heard_s = self._since_s = time.monotonic()

    def order(self, **words: object) -> int:
        """Send a message in the next round; return its number."""
        self._number += 1
        self._orders.append(msgspec.convert({"number": self._number, **words}, Order))
        return self._number

    def kill(self, job: str, launch: int | None) -> None:
        """End a job or one of its launches there; on a lost host, the fence does so."""
        name = _name(job, launch)
        if not self.fence and name not in self.ending:
            looks = "" if self.up else str(self.look)  # every answer may be the first
            self.ending[name] = self.order(kill=[name], looks=looks)

    def has(self, job: str, launch: int | None) -> bool:
        """Return whether a job or a launch has processes there, and look soon if it has."""
        numbers = [n for owner, n in self.live if owner == job]
        if not self.up or not (numbers if launch is None else f"{launch}" in numbers):
            return False
        self.soon = True
        return True

    def may_answer(self, since_s: float) -> bool:
        """Return whether a host that is not up may answer yet, at first, to a new daemon."""
        first = not (self.up or self.fence or self.refusal)
        return first and time.monotonic() <= since_s + self.down_s

    def poll(self) -> bool:
        """Read answers, send what is due; return whether the host has just been lost.

        That is also one that does not answer a daemon that was restarted.
        """
        now = time.monotonic()
        if self._process is None:
            if now >= self._again_s:
                self._begin()
        else:
            for line in self._lines(self._process):
                with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
                    self._take(msgspec.json.decode(line, type=Answer))
            if self._process is not None:
                self._send(self._process, now)
        silent = now > self._heard_s + self.down_s
        lost, self._silent = silent and not self._silent, silent
        if lost:
            self.up, self.live = False, frozenset()
        late = silent and now > self._since_s + START_S
        if self._process is not None and (lost or late):
            self._end(self._process)
        return lost

    def _begin(self) -> None:
        self._seen, self._unsent, self._unread = 0, b"", b""
        self._orders.clear()
        self._since_s = time.monotonic()
        if not self.up and self._since_s > self._heard_s + self.down_s:
            self.fence = True
            self.ending.clear()
        try:
            self._process = self.start(self.host)
        except OSError:
            self._later()
            return
        kill = sorted(self.ending)
        self.order(looks=str(self.look), fence=self.fence, kill=kill, key=self.key)

    def _later(self) -> None:
        self._again_s = time.monotonic() + self._wait_s
        self._wait_s = min(2 * self._wait_s, MOST_AGAIN_S)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process = None
        self._later()

    def _lines(self, process: subprocess.Popen[bytes]) -> list[bytes]:
        assert process.stdout is not None
        try:
            read = os.read(process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            read = b""
        if not read:
            self._end(process)
            return []
        *lines, self._unread = (self._unread + read).split(b"\n")
        return lines

    def _take(self, answer: Answer) -> None:
        self._seen, self._heard_s = answer.number, time.monotonic()
        self._wait_s = AGAIN_S
        self.answers, self.port = answer.number, answer.port
        self.live, self.soon = frozenset(answer.live), False
        for name, number in list(self.ending.items()):
            if number <= answer.number and name not in answer.ending:
                del self.ending[name]
        if not self.up:
            shared = answer.text == self.text
            self.refusal = "" if shared else f"it does not see {self.look.parent}"
            self.fence = False
            self.up = shared and not self.ending

    def _send(self, process: subprocess.Popen[bytes], now: float) -> None:
        every_s = min(EVERY_S, self.down_s / 5)
        if self.ending or self.soon or not self.up:
            every_s = ENDING_S
        if now >= self._sent_s + every_s and not self._orders:
            self.order(looks="" if self.up else str(self.look))
        while self._orders:
            self._sent_s = now
            order = self._orders.popleft()
            order.seen = self._seen
            self._unsent += msgspec.json.encode(order) + b"\n"
        assert process.stdin is not None
        if self._unsent:
            with contextlib.suppress(OSError):
                self._unsent = self._unsent[os.write(process.stdin.fileno(), self._unsent) :]

    def close(self) -> None:
        """End the agent, which ends what is left there."""
        process = self._process
        if process is None:
            return
        self.order(ends=True)
        self._send(process, time.monotonic())
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


class HostNodes(EngineNodes):
    """The hosts of an allocation, each with an agent.

    Args:
        margin_s: time between the end of the jobs and that of the allocation.
    """

    requeue_by_default = True
    logs_nodes = True

    def __init__(self, launcher: HostsLauncher, allocation: Allocation, margin_s: float) -> None:
        self._launcher, self._allocation, self._margin_s = launcher, allocation, margin_s
        self.requeue_on_shutdown = bool(allocation.name)
        self._look, self._text = launcher.state / "here", secrets.token_hex(8)
        self._ports = Ports(secrets.token_hex(16) if allocation.relayed else "")
        self.agents = {
            host: HostAgent(
                host,
                launcher.start_host_agent,
                self._look,
                self._text,
                key=self._ports.key,
                down_s=launcher.silent_s,
            )
            for host in allocation.slots
        }
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="allocation")
        self._query: Future[float | None] | None = None
        self._query_s = 0.0
        self._end_s: float | None = None
        self._said: dict[str, str] = {}
        self._opened_s = time.monotonic()
        self._counted: dict[str, int] = {}
        self._meters: dict[str, AgentProcess] = {}

    def open(self) -> None:
        """Start an agent on every host."""
        self._opened_s = time.monotonic()
        self._look.write_text(self._text)
        for own in self.agents.values():
            own.open()
        self._ports.write(self._launcher.ports_file)

    def poll(self) -> None:
        """Poll the agents; end what was on hosts that are lost, and what jobs have left behind."""
        lost = {host for host, agent in self.agents.items() if agent.poll()}
        ports = {host: own.port for host, own in self.agents.items() if own.port}
        if ports != self._ports.ports:
            self._ports.ports = ports
            self._ports.write(self._launcher.ports_file)
        if lost:
            self._launcher.end_on(lost)
        for host, own in self.agents.items():
            words = self._state_of(own)
            if words != self._said.get(host, ANSWERS):
                log.log(logging.INFO if words == ANSWERS else logging.WARNING, f"{host} {words}")
            self._said[host] = words
            meter = self._meters.get(host)
            if own.up and meter is None and not self._launcher.meters.none:
                own.kill(METER, None)  # of an earlier daemon
                self._meters[host] = self._launcher.meter_of(own)
            elif own.up and meter is not None and not (meter.started or own.ending):
                meter.start()
            if own.answers != self._counted.get(host):
                self._counted[host] = own.answers
                self._end_strays(own)
        for started in self._meters.values():
            started.poll()
        now = time.monotonic()
        if self._query is not None and self._query.done():
            query, self._query = self._query, None
            self._end_s = query.result()
        if self._allocation.name and self._query is None and now >= self._query_s:
            self._query, self._query_s = self._executor.submit(self._allocation.end_s), now + END_S

    def _state_of(self, own: HostAgent) -> str:
        """Return what the log says of a host; before the first answer there is time for it."""
        if own.refusal:
            return f"cannot be used: {own.refusal}"
        if own.up:
            return ANSWERS
        waits = own.may_answer(self._opened_s)
        return ANSWERS if waits else f"is down: no answer within {own.down_s:g} s"

    def _end_strays(self, agent: HostAgent) -> None:
        jobs = {job for job, _ in agent.live}
        here = self._launcher.jobs() if jobs else ()
        agent.strays = {job: agent.strays.get(job, 0) + 1 for job in jobs.difference(here)}
        for job, times in agent.strays.items():
            if times >= STRAY_ANSWERS:
                agent.kill(job, None)

    def close(self) -> None:
        """End the agents."""
        for meter in self._meters.values():
            meter.close()
        for own in self.agents.values():
            own.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def unavailable(self) -> frozenset[str]:
        """Return the hosts whose agents do not answer; at first, those of all hosts."""
        return frozenset(host for host, agent in self.agents.items() if not agent.up)

    def down(self) -> frozenset[str]:
        """Return the hosts that are down, but those that may answer a new daemon yet."""
        return frozenset(
            host
            for host, own in self.agents.items()
            if not own.up and not own.refusal and not own.may_answer(self._opened_s)
        )

    def diagnose_failure(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Return which of its hosts a job has lost, once all of them have answered or are down."""
        orders = {host: self.agents[host].order() for host in hosts if self.agents[host].up}

        def answer() -> str | None:
            others = [self.agents[host] for host in hosts if host not in orders]
            if any(own.may_answer(self._opened_s) for own in others):
                return None
            for host, number in orders.items():
                if self.agents[host].up and self.agents[host].answers < number:
                    return None
            lost = [host for host in hosts if host not in orders or not self.agents[host].up]
            return f"lost its nodes: {', '.join(lost)}" if lost else ""

        return answer

    def shutdown_reason(self) -> str:
        """Return that the allocation ends soon."""
        if self._end_s is None or (left_s := self._end_s - time.time()) > self._margin_s:
            return ""
        return f"the allocation {self._allocation.name} ends in {left_s:.0f} s"


class HostClocks(NodeClocks):
    """Frequencies that the RMS does not set."""

    def refusal(self, slots: Sequence[str]) -> str:
        """Return why the frequencies of nodes cannot be set."""
        return "nodes that a remote shell reaches have no agent that sets them"


@dataclass
class HostsLauncher(LocalLauncher):
    """Starts worlds and scripts on the hosts of an allocation."""

    allocation: Allocation
    margin_s: float
    silent_s: float = field(default=DOWN_S, kw_only=True)
    nodes: HostNodes = field(init=False, repr=False)
    clocks: NodeClocks = field(default_factory=HostClocks, init=False, repr=False)
    meter_token: str = field(default_factory=lambda: secrets.token_hex(16), init=False, repr=False)

    shared_filesystem = True
    watches_processes = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.nodes = HostNodes(self, self.allocation, self.margin_s)
        if self.allocation.relayed:
            words = python_on_host(relay.__name__, str(self.ports_file))
            program = self.shims / RELAY
            program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            program.chmod(0o755)

    def open(self) -> None:
        """Start the agents; end the remote shells of an earlier daemon's."""
        LocalLauncher.kill(self, AGENT)
        LocalLauncher.kill(self, METER)
        self.nodes.open()

    def poll(self) -> None:
        """Poll the agents."""
        self.nodes.poll()

    def close(self) -> None:
        """End the agents."""
        self.nodes.close()
        super().close()

    @property
    def ports_file(self) -> Path:
        """The file of the ports of the agents' relays."""
        return self.state / "ports.json"

    def command_on(self, host: str, words: Sequence[str]) -> list[str]:
        """Return the command that runs words on a host."""
        if self.allocation.relayed:
            return [str(self.shims / RELAY), host, shlex.join(words)]
        return self.allocation.command(host, words)

    def start_host_agent(self, host: str) -> subprocess.Popen[bytes]:
        """Start the agent of a host."""
        mark = f"{INSTANCE_VARIABLE}={self.instance_id}:{AGENT}"
        words = python_on_host(agent.__name__, self.instance_id, f"{FENCE * self.silent_s:g}")
        command = self.allocation.command(host, [words[0], mark, *words[1:]])
        with (self.state / "agents.log").open("ab") as errors:
            process = subprocess.Popen(
                command,
                env={**os.environ, INSTANCE_VARIABLE: f"{self.instance_id}:{AGENT}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        return process

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Run a job script once, on its first node, by a remote shell that stays here."""
        (host,) = hosts_of(launch.nodes[0])[:1]
        status = self.status_file(job)
        status.unlink(missing_ok=True)
        env = {**launch.env, **self.script_env(job, launch.env.get("PATH", os.defpath))}
        start = Start(
            str(launch.script),
            launch.script.read_bytes(),
            list(launch.arguments),
            launch.cwd,
            env,
            str(launch.errors or "") if self.allocation.relayed else "",
            list(launch.adapter),
        )
        command = ["/bin/sh", "-c", KEEP_STATUS, "job"]
        shell = self._runs(host, start, status.with_name("start.json"))
        own = {
            **os.environ,
            "RMS_STATUS": str(status),
            INSTANCE_VARIABLE: f"{self.instance_id}:{job}",
            SLOTS_VARIABLE: " ".join(launch.nodes[0]),
        }
        process = self.start(
            [*command, *shell], str(self.state), own, launch.output, [], launch.errors
        )
        return ManagedProcess(process.pid, process, status)

    def _runs(self, host: str, start: Start, file: Path) -> list[str]:
        """Return the command that runs a script on a host; its environment goes by a file."""
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_bytes(msgspec.json.encode(start))
        shell = self.command_on(host, python_on_host(agent.__name__, "--run"))
        return ["/bin/sh", "-c", FROM_FILE, str(file), *shell]

    def keeper_command(self, host: str, number: int, job: str) -> list[str]:
        """Return the command that runs a keeper, by a remote shell that stays here."""
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            INSTANCE_VARIABLE: f"{self.instance_id}:{keepers_of(job)}",
            WORLD_VARIABLE: str(number),
        }
        start = Start(sys.executable, b"", ["-P", *keeper_words(host)], "/", env)
        return self._runs(host, start, self.keeper_file(job, number).with_suffix(".json"))

    def meter_of(self, own: HostAgent) -> AgentProcess:
        """Return the agent that reads the meters of a host."""
        words = ["--node", own.host, *self.meters.arguments, "--activity"]
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            INSTANCE_VARIABLE: f"{self.instance_id}:{METER}",
            SERVER_VARIABLE: self.server,
            TOKEN_VARIABLE: self.meter_token,
        }
        start = Start(sys.executable, b"", ["-P", "-m", "rms.power.agent", *words], "/", env)
        file = self.state / f"meter-{own.host}.json"
        return AgentProcess(
            self.start_agent,
            lambda: self._runs(own.host, start, file),
            may_start=lambda: own.up,
            wait_s=MOST_WAIT_S,
        )

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return mpiexec's options for one rank per slot; the remote shell has this environment."""
        super().world_options(job, launch, slots, env)
        for name in ("HOME", "SSH_AUTH_SOCK"):
            if name in os.environ:
                env[name] = os.environ[name]
        by_host = [
            f"{host}:{len(list(own))}"
            for host, own in groupby(slots, lambda slot: slot.partition("/")[0])
        ]
        mpiexec, relayed = find_mpiexec(env["PATH"]), self.allocation.relayed
        if mpiexec is not None and is_open_mpi(mpiexec):
            passed = [word for name in env for word in ("-x", name)]
            shell = str(self.shims / RELAY) if relayed else " ".join(self.allocation.shell)
            return ["--host", ",".join(by_host), "--mca", "plm_rsh_agent", shell, *passed]
        reach = self.allocation.mpiexec
        if relayed:
            reach = ("-launcher", "rsh", "-launcher-exec", str(self.shims / RELAY))
        return [*reach, "-hosts", ",".join(by_host)]

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job's worlds, or else its script, to end; Open MPI's ranks one by one."""
        terminated = False
        for world in worlds:
            names = {program_name(pid) for pid in [world.pid, *descendants([world.pid])]}
            if names.isdisjoint(OPEN_MPI):
                send_signal(world.pid, signal.SIGTERM)
                terminated = True
        if not terminated:
            self._signal(job, signal.SIGTERM, "ranks" if worlds else "all")
        self.resume(job)

    def signal_all(self, job: str, number: int) -> None:
        """Send a signal to all processes of a job on its hosts."""
        self._signal(job, number, "all")

    def send_signal(self, job: str, number: int, script: int = 0) -> None:
        """Send a signal to the ranks of a job, or to its script."""
        self._signal(job, number, "script" if script else "ranks")

    def _signal(self, job: str, number: int, whom: str) -> None:
        for own in self.nodes.agents.values():
            if own.up:
                own.order(sends=[(job, int(number), whom)])

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return the processes here of a launch or a job; 0 for a host that has some as well.

        Without any here, those there may be left over, as those of an mpiexec that was killed.
        """
        here = super().members(job, launch)
        _, name = _name("", launch)
        for own in self.nodes.agents.values():
            ending = own.up and any(
                job in (None, owner) and name in ("", number) for owner, number in own.ending
            )
            if ending or (job is not None and not here and own.has(job, launch)):
                here.append(0)
        return here

    def kill(self, job: str, launch: int | None = None) -> None:
        """End all processes of a job or launch at once, here and on its hosts.

        While one of the hosts ends them, those that have done so are not asked again: else, with
        an answer of some host missing all the time, it would never be over.
        """
        agents, name = self.nodes.agents.values(), _name(job, launch)
        if not any(own.up and name in own.ending for own in agents):
            for own in agents:
                own.kill(job, launch)
        super().kill(job, launch)

    def end_leftovers(self, job: str) -> None:
        """End what a run without processes here may have left on hosts, before these are used."""
        for own in self.nodes.agents.values():
            own.kill(job, None)

    def end_on(self, hosts: set[str]) -> None:
        """End launches with ranks on these hosts, and jobs whose scripts were there."""
        ends: set[tuple[str, int | None]] = set()
        for pid in LocalLauncher.members(self):
            variables = dict(
                word.split("=", 1)
                for word in map(os.fsdecode, environment(pid) or [])
                if "=" in word
            )
            if hosts.intersection(hosts_of(variables.get(SLOTS_VARIABLE, "").split())):
                job = variables.get(INSTANCE_VARIABLE, "").partition(":")[2]
                launch = variables.get(WORLD_VARIABLE, "")
                ends.add((job, int(launch) if launch.isdecimal() else None))
        for job, number in ends:
            self.kill(job, number)


def engine(
    cluster: Cluster,
    allocation: Allocation,
    margin_s: float = 0.0,
    meters: MeterChoice = AUTO,
    silent_s: float = DOWN_S,
) -> JobEngine:
    """Return the engine that runs jobs on the hosts of an allocation.

    Args:
        silent_s: a host that is silent for so long is down.
    """

    def launcher(state: Path, instance_id: str, server: str) -> HostsLauncher:
        return HostsLauncher(
            state, instance_id, server, allocation, margin_s, meters=meters, silent_s=silent_s
        )

    return JobEngine(cluster, launcher, True, allocation.name)


def cluster_of(slots: Mapping[str, int], file: Path | None, tasks: int | None) -> Cluster:
    """Return hosts as nodes, with the power and slots of a cluster file if there is one.

    Args:
        tasks: slots per node, in place of those.
    """
    named = None if file is None else read_cluster(file)
    hosts = tuple(slots)
    if named is not None and (unknown := [host for host in hosts if host not in named.nodes]):
        raise LaunchError(f"expected all hosts in {file}, got no word of {', '.join(unknown)}")
    own = None
    if named is None or tasks is not None:
        own = tuple(numbered(tasks or slots[host], gpus=False) for host in hosts)
    return host_cluster(hosts, own, named)
