"""The notes of a journal: facts outside the scheduler that a restarted daemon needs.

A note has a kind and, where there may be several of its kind, the id of a job, the name of a host
and the like. A newer note replaces the one of the same key, ``KIND/OF``. A note that was never
written reads as one of default values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

import msgspec

from rms.core.books.measured import MeteredHost
from rms.formats.jobscript import OutputNames, expand_output
from rms.formats.values import SignalRequest
from rms.wire.users import ResizeRow


class Note(msgspec.Struct, forbid_unknown_fields=True):
    """A fact, replaced as a whole; the tag of its class is its kind."""

    of: str = ""  # the job, launcher line, host or key that it is about; "" where it is the daemon

    @property
    def key(self) -> str:
        """The key in the journal."""
        return f"{self.kind()}/{self.of}"

    @classmethod
    def kind(cls) -> str:
        """Return the first part of the key."""
        return str(cls.__struct_config__.tag)

    def value(self) -> str:
        """Return the note as JSON. Infinite numbers are a ValueError; msgspec would write null."""
        return json.dumps(msgspec.to_builtins(self, str_keys=True), allow_nan=False)

    @classmethod
    def read(cls, value: str) -> Self:
        """Return the note of a value; other values are a ValueError."""
        return msgspec.convert(json.loads(value), cls, str_keys=True)  # odd bytes of names: by json


Notes = list[Note]  # notes that are written together, or with an event


# --- the daemon ----------------------------------------------------------------------------------


class MarkNote(Note, tag="mark"):
    """The mark of the processes of this state folder, and where the folder was."""

    mark: str = ""
    folder: str = ""  # the file system and inode of the folder
    inodes: list[int] = []  # of the folder and the journal
    copied: bool = False  # whether the folder is a copy that no daemon has served yet


class NextNote(Note, tag="next"):
    """The number of the next submission."""

    id: int = 1


class PortNote(Note, tag="port"):
    """The TCP port of the daemon, 0 for any."""

    port: int = 0


class ClockNote(Note, tag="clock"):
    """The offset of the daemon's clock, and the boot of the machine for which it holds."""

    boot: str = ""
    offset_s: float = 0.0


class DrainedNote(Note, tag="drained"):
    """The names of drained nodes."""

    names: list[str] = []


class BrokenNote(Note, tag="broken"):
    """The names of nodes whose power could not be switched."""

    names: list[str] = []


class PoweredOffNote(Note, tag="powered-off"):
    """The names of nodes whose command to power off has ended."""

    names: list[str] = []


class MeterNote(Note, tag="meter"):
    """The state of a host's meters."""

    host: MeteredHost | None = None


class StrategyNote(Note, tag="strategy"):
    """The strategy of tasks, the file that it is in, and the rule of their governor."""

    name: str = ""
    governor: str = ""
    file: str = ""


class IdempotencyNote(Note, tag="submitted"):
    """The submission of an idempotency key: its digest and the ids of its jobs."""

    sha256: str = ""
    ids: list[str] = []


# --- jobs ----------------------------------------------------------------------------------------


class SubmissionNote(Note, tag="job"):
    """The submission of a job, or of all tasks of an array."""

    name: str = ""
    cwd: str = "/"
    # output, error: patterns of file names; without ``error`` both streams go to ``output``
    output: str = ""
    error: str | None = None
    node: str = ""  # the first host of the cluster, for ``%N``
    user: str = ""
    array: str = ""
    requeue: bool = False
    # how it is notified of a new size: "signal" or "command:COMMAND"; "" for messages
    resize_by: str = ""
    cooldown_s: float = 0.0  # the same of a job that is notified so; others state theirs themselves
    survive: str = ""  # seconds between copies in memory, "auto", or "plan"; "" for no copies
    profile: str = ""
    arguments: list[str] = []
    memory_mib: float | None = None
    signal: SignalRequest | None = None

    def index(self, job_id: str) -> int | None:
        """Return the index of a task, None for a job of no array."""
        index = job_id.partition("_")[2]
        return int(index) if index else None

    def files(self, job_id: str) -> tuple[Path, Path | None]:
        """Return the files of a job's output and of its errors, if these are apart."""
        array, index = job_id.partition("_")[0], self.index(job_id)
        names = OutputNames(array, index, job_id, self.name, self.node, self.user)
        patterns = self.output, self.error
        output, error = (p and Path(self.cwd, expand_output(p, names)) for p in patterns)
        return output or Path(self.cwd), error or None


class ScriptNote(Note, tag="script"):
    """The process of a job's script."""

    pid: int | None = None


class LineNote(Note, tag="line"):
    """A launcher line of a job script; its environment is a file, as it may hold secrets."""

    command: list[str] = []
    cwd: str = ""
    output: str = ""
    errors: str = ""


class StepNote(msgspec.Struct, kw_only=True):
    """A step of a job (:class:`rms.daemon.store.record.Step`) for a restarted daemon."""

    pids: dict[int, int] = {}
    current: tuple[int, ...] = ()  # the launches of the job's present ranks
    strategy: str = "spawn"
    # ``(launch, number of ranks)`` of the current launches, in rank order
    ranks: tuple[tuple[int, int], ...] = ()
    exit_code: int | None = None
    message: str = ""
    has_polled: bool = False  # whether it has: only a program of dmr does, and leaves a record
    cooldown_s: float = 0.0  # pause after a resize before the next request
    restartable: bool = False
    keepers: dict[int, str] = {}  # of copies in memory: number and host ("" for this machine)
    life: int = 0  # worlds of this step that have died
    restored: tuple[int, int] = (0, 0)  # step that the last of these went on from; how many there


class StepsNote(Note, tag="steps"):
    """The steps of a job, the keys of its launcher lines, and how many launches it has had.

    ``run`` counts how often it was requeued. ``heir`` is the number of a step that goes on when its
    line runs again, as the node of the script was lost, and ``inherited`` that step. ``keepers`` is
    the number of keepers so far.
    """

    keys: list[str] = []
    launches: int = 0
    steps: list[StepNote] = []
    run: int = 0
    heir: int | None = None
    inherited: StepNote | None = None
    keepers: int = 0


class ResizesNote(Note, tag="resizes"):
    """The resizes of a job that are over."""

    rows: list[ResizeRow] = []


class EndingNote(Note, tag="ending"):
    """The state in which a running job is to end, and when it is killed; "" for none."""

    state: str = ""
    kill_at: float = 0.0


class SignalNote(Note, tag="signal"):
    """Whether a job has got the signal before the end of its time limit."""

    sent: bool = False


class EndNote(Note, tag="end"):
    """The result of a job that is over."""

    exit_code: int | None = None
    answer: str = ""
    reason: str = ""


class SummaryNote(Note, tag="summary"):
    """The last line of a job's output, "" while it is due, None where there is none."""

    line: str | None = None
