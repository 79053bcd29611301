"""Messages between a daemon, its jobs and the agents of nodes: typed and bounded.

The first section bounds numbers and texts, so that no sum, loop or file grows out of hand. Compute
nodes import this module, so it needs only msgspec and :mod:`rms.wire.files`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=10**9)]  # ranks, nodes, launches, resizes
Nodes = Annotated[int, Meta(ge=1, le=100_000)]  # nodes of a job
Priority = Annotated[int, Meta(ge=-2_147_483_645, le=2_147_483_645)]
"""Priority of a job, within the bounds of sbatch --nice."""

Steps = Annotated[int, Meta(ge=0, le=2**53)]
"""Steps, bytes: whole numbers that JSON's readers keep."""

Seconds = Annotated[float, Meta(ge=0.0, le=1e11)]  # spans, and times since 1970
Figure = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""A job's measurement, by clocks that may be set back."""

Amount = Annotated[float, Meta(ge=0.0, le=1e12)]  # watts, GB/s
NODE_LIMIT_W = 15_000.0
"""Default power limit of a node: more than eight of the largest GPUs and their host draw."""

Joules = Annotated[float, Meta(ge=0.0, le=1e18)]
Counted = Annotated[float, Meta(ge=0.0, le=1e24)]  # instructions, in years of a large node

Name = Annotated[str, Meta(max_length=1024)]  # names, ids, words that select
Text = Annotated[str, Meta(max_length=10_000)]  # paths and lines
Selection = Annotated[str, Meta(max_length=1 << 18)]
"""Lists of nodes, or of tasks of an array."""

Words = Annotated[tuple[Text, ...], Meta(max_length=10_000)]  # of a command line
Environment = Annotated[dict[str, str], Meta(max_length=10_000)]

Script = Annotated[str, Meta(max_length=1 << 22)]
"""A file: as long as Slurm's own may be (``max_script_size``)."""


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message that is refused if it has other fields."""


# --- the completion record of a job --------------------------------------------------------------

COMPLETION_FORMAT = 1
"""Version of :class:`CompletionRecord`; raise it with every change of meaning."""

COMPLETION_VARIABLE = "DMR_COMPLETION"
"""Environment variable with the path of the record."""

EndState = Literal["COMPLETED", "FAILED", "CANCELLED"]


class ProtocolError(ValueError):
    """A message that does not follow the protocol."""


class ResizeReport(Strict, frozen=True):
    """One world replaced by the next, as observed.

    ``boot_s`` runs from the launch of the new world until it is ready, ``stall_s`` is the time
    the application does not step, ``move_s`` the part of it in which data moves.
    """

    step: Steps
    from_ranks: Count = msgspec.field(name="from")
    to_ranks: Count = msgspec.field(name="to")
    strategy: Name
    boot_s: Figure
    stall_s: Figure
    move_s: Figure
    bytes: Steps
    gb_per_s: Figure


class CompletionRecord(Strict, frozen=True):
    """The end of a job, written by its last world.

    The exit status of mpiexec is no evidence: once the first world has left, it is 0 even if a
    spawned rank dies. A job is COMPLETED only by this record; a job without a record has died.
    """

    state: EndState
    exit_code: int
    message: str
    step: int
    generation: int
    ranks: int
    answer: str = ""
    """The application's statement of its result, a hash for instance."""
    format: int = COMPLETION_FORMAT


def write_completion(path: Path, record: CompletionRecord) -> None:
    """Write the record so that a reader sees all of it or none."""
    from rms.wire.files import write_output  # few processes write one

    path.parent.mkdir(parents=True, exist_ok=True)
    text = record.message.encode("utf-8", "backslashreplace").decode()
    record = msgspec.structs.replace(record, message=text)
    write_output(path, msgspec.json.encode(record) + b"\n", sync=True)


def read_completion(path: Path) -> CompletionRecord:
    """Read a record.

    Raises:
        FileNotFoundError: there is none; the job has not ended, or died before it could write it.
        ProtocolError: the file is not a record of this format.
    """
    data = path.read_bytes()
    try:
        record = msgspec.json.decode(data, type=CompletionRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{path}: expected a completion record, got {error}") from None
    if record.format != COMPLETION_FORMAT:
        raise ProtocolError(
            f"{path}: expected completion format {COMPLETION_FORMAT}, got {record.format}"
        )
    return record


# --- a job that goes on from copies in memory when a rank or node dies ---------------------------

KEEPERS_VARIABLE = "DMR_KEEPERS"
"""Set for the ranks of such a job: the keepers of its copies, ``HOST=ADDRESS=FOLDER`` for each."""

SUPERVISOR_VARIABLE = "DMR_SUPERVISOR"
"""Set for these ranks: number of worlds that have died before this one."""

MEMORY_VARIABLE = "DMR_MEMORY"
"""Seconds between copies in memory, or ``auto``; it takes precedence over the program's plan."""

MTBF_VARIABLE = "DMR_MTBF"
"""Mean time between failures of a host, in hours, for copies whose interval is automatic."""


# --- messages between a running job and its daemon -----------------------------------------------

SERVER_VARIABLE = "RMS_SERVER"
JOB_VARIABLE = "RMS_JOB_ID"
TOKEN_VARIABLE = "RMS_TOKEN"
RUN_VARIABLE = "RMS_RUN"
"""Set for scripts and ranks: how often their job was requeued before. The daemon refuses messages
of an earlier run (status 410), whose host was given up and has come back."""

MARK_VARIABLE = "RMS_MARK"
"""Set for all processes of a job: the id of the daemon's journal and that of the job."""

SLOTS_VARIABLE = "DMR_SLOTS"
"""Set for the ranks of a world: their slots, in rank order, such as ``cpu:0 cpu:1``."""

PROCESSORS_VARIABLE = "RMS_PROCESSORS"
"""Set for scripts and for the ranks of a world where processors are of several kinds: the kinds of
the slots, in rank order, such as ``cpu cpu gpu``."""

STRATEGIES = ("warm", "spawn", "merge", "restart")
"""Ways to replace a world; a job states its own."""

JOIN_VARIABLE = "DMR_JOIN"
"""Set for the ranks of a world that is to take over from, or to join, a running one: the number of
the resize request that it was booted for."""

COOLDOWN_VARIABLE = "DMR_COOLDOWN"
"""Seconds from the end of a resize until the next may begin; a program may ask for more."""

WORLD_VARIABLE = "DMR_WORLD"
"""Number of the launch that started these ranks, among all launches of the job's step."""

LAUNCHES_VARIABLE = "DMR_LAUNCHES"
"""In a job's environment ``node``: the job starts as one launch a node, so that it can give up
nodes without a new world. Set for the ranks of such a start: ``LAUNCH:RANKS ...``, in order."""

PER_NODE = "node"

LISTENER_VARIABLE = "DMR_LISTENER"
"""Address for a world that the old one has started itself (``host:port:token``)."""


class BootedWorld(Strict, frozen=True):
    """A world that was booted for a resize request and waits for the running one to connect.

    ``launch`` is the number of its launch, ``address`` that of its control channel, ``port`` its
    MPI port (empty where it opened none), ``boot_s`` the time from its launch until it was ready.
    """

    launch: int
    ranks: int
    address: str
    port: str
    boot_s: float = 0.0


class ResizeRequest(Strict, frozen=True):
    """Daemon to job: go over to these slots, one rank a slot, at the next resize point.

    ``worlds`` are the worlds booted for the request, in rank order; none where the job starts the
    new ranks itself, or only gives up ranks.
    """

    number: int
    slots: tuple[str, ...]
    strategy: str = "spawn"
    worlds: tuple[BootedWorld, ...] = ()


class Poll(Strict, frozen=True):
    """Job to daemon: its progress, and in ``known`` the number of its newest resize request.

    Answered by a :class:`PollAnswer`: at once if there is a newer request, else after a while.
    ``strategy`` is the job's choice for resizes, ``launches`` the launches of its ranks and their
    numbers of ranks, in rank order. ``cooldown_s`` is the time after the end of a resize in which
    the daemon sends no other request. A ``restartable`` job resumes from a checkpoint when its
    script runs again.
    """

    step: Steps
    steps: Steps
    known: Count
    strategy: Name = "spawn"
    launches: tuple[tuple[Count, Count], ...] = ()
    cooldown_s: Seconds = 0.0
    restartable: bool = False


class PollAnswer(Strict, frozen=True):
    """Daemon to job: the newest resize request, or None, and the time until the next poll."""

    request: ResizeRequest | None = None
    pause_s: float = 0.0


class Ready(Strict, frozen=True, tag=True):
    """New world to daemon: it is booted; addresses of its control channel and its MPI port."""

    number: Count
    launch: Count
    address: Name
    port: Text


class Failed(Strict, frozen=True, tag=True):
    """New world to daemon: it cannot take over, and the reason."""

    number: Count
    launch: Count
    reason: str


class Begun(Strict, frozen=True, tag=True):
    """Job to daemon: it has stopped stepping to fulfil a resize request."""

    number: Count


class Done(Strict, frozen=True, tag=True):
    """Job to daemon: the new world has taken over; the old one's ranks leave.

    It is sent again before the new world's first step, with the total stall: the program's setup
    in between takes an unbounded time. ``launches`` are those that its ranks come from; empty
    if that has not changed.
    """

    number: Count
    resize: ResizeReport
    launches: tuple[Count, ...] = ()


class RolledBack(Strict, frozen=True, tag=True):
    """Job to daemon: the old world goes on; ``strategy`` is its choice from now on."""

    number: Count
    reason: str
    strategy: Name


class ApplicationResizeRequest(Strict, frozen=True, tag=True):
    """Job to daemon: the application wants this number of ranks; a request follows if permitted."""

    ranks: Count


Report = Begun | Done | RolledBack | Ready | Failed | ApplicationResizeRequest


# --- a launcher line of a job script and its daemon --------------------------------------------


class LaunchRequest(Strict, frozen=True):
    """Launcher line to daemon: boot a world from this command.

    ``output`` and ``errors`` are the files that the line's own go to, None for the job's.
    ``key`` identifies the line: a repeated request with the same key gets the same step.
    """

    command: Annotated[list[str], msgspec.Meta(min_length=1)]
    cwd: Text
    env: Environment
    output: Text | None = None
    errors: Text | None = None
    key: Name = ""


class StepNumber(msgspec.Struct, frozen=True):
    """Daemon to launcher line: the number of its step."""

    step: int


class StepState(msgspec.Struct, frozen=True):
    """Daemon to launcher line: the end of its step; ``exit_code`` is None while it runs."""

    exit_code: int | None
    message: str


# --- the meters of a node --------------------------------------------------------------------

METER_PATH, CLOCKS_PATH = "/meter", "/clocks"
"""Paths of a daemon for reports of meters and polls for frequencies, by its own agents."""


class DeviceEnergy(msgspec.Struct, frozen=True):
    """The cumulative energy of one device: a lost report loses nothing.

    Attributes:
        device: ``package-0``, ``dram-0``, ``psys``, ``gpu-0``, or ``node`` for all of it.
        source: which meter: ``rapl``, ``rapl-dram``, ``nvml-counter``, ``nvml-power``,
            ``nvidia-smi``, ``command``, ``replay``.
        joules: since it was first read; never falls, and holds only what was measured.
        unseen_s: part of the time since then without measurements (a gap, a reset) and joules, s.
        uncertainty_j: half-width of ``joules``, about 95 %, J.
        counter: the device's own counter at that time, J, from which a later agent may go on.
    """

    device: Name
    source: Name
    joules: Joules
    unseen_s: Seconds = 0.0
    uncertainty_j: Joules = 0.0
    counter: Joules | None = None


class Activity(msgspec.Struct, frozen=True):
    """The work of a job's processes on a host since the agent first read it; no figure ever falls.

    Attributes:
        owner: the job's id, or "" for all processes of the host, those of jobs included.
        cpu_s: processor time, of user and system, children included.
        instructions: executed; None where the kernel counts none (perf_event_open(2)).
        cycles: of the processors while these processes ran, or None.
        misses: of the last-level cache, or None.
        gpu_s: time in which each GPU computed for these processes, by device; that of the host has
            all GPUs whose processes can be read.
    """

    owner: Name
    cpu_s: Seconds
    instructions: Counted | None = None
    cycles: Counted | None = None
    misses: Counted | None = None
    gpu_s: dict[Name, Seconds] = {}


class Metered(Strict, frozen=True):
    """A node's agent to the daemon: all readings so far; answered by a :class:`MeterAnswer`.

    Attributes:
        node: its name; "" for the daemon's own machine, whose cores and devices are nodes.
        agent: a random id of this run of the agent.
        number: rises with every report of this agent, so that a repeated one counts once; 0 is its
            first message, which has no devices and requests the booked sums.
        at_s: time of the readings, wall clock, s since the epoch.
        boot: the kernel's id of this boot: counters begin anew with it.
        devices: those that can be read now; for others the last report holds.
        reason: why nothing, or something, cannot be read: the model is used for it.
        activity: of all jobs on the host, also of those that ended in the last minute, and of the
            host; empty where it is not read.
    """

    node: Name
    agent: Name
    number: Steps
    at_s: Seconds
    boot: Name
    devices: list[DeviceEnergy] = []
    reason: str = ""
    activity: list[Activity] = []


class MeterAnswer(msgspec.Struct, frozen=True):
    """The daemon to an agent; after its first message with the sums booked last for its node.

    Attributes:
        known: devices of the last booked report.
        boot, at_s: of that report.
    """

    known: list[DeviceEnergy] = []
    boot: str = ""
    at_s: float = 0.0


class ClockReport(Strict, frozen=True):
    """A node's agent to the daemon: a poll for frequencies; answered by :class:`ClockOrders`.

    Attributes:
        reason: why the last orders could not be carried out, or "".
    """

    node: Name
    reason: str = ""


class ClockOrders(msgspec.Struct, frozen=True):
    """The frequencies of a node's slots.

    Attributes:
        shares: frequencies of slots over the highest; None for unused slots.
        highest_mhz: the frequency of a share of 1; 0 for the device's own highest.
    """

    shares: dict[str, float | None] = {}
    highest_mhz: float = 0.0
