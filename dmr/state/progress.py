"""The data that travels with a job, and into checkpoints, besides its fields."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from dmr.errors import raise_on_all
from dmr.state.values import PICKLE_PROTOCOL, State, ValuesError, decode_values, encode_values
from rms.wire.messages import ResizeReport

if TYPE_CHECKING:
    from mpi4py import MPI


class OpenResize(msgspec.Struct):
    """A resize whose new world has not stepped yet, as the old world measured it."""

    step: int
    from_ranks: int
    to_ranks: int
    strategy: str
    boot_s: float
    move_s: float
    old_stall_s: float
    bytes: int
    sigterm_received: bool
    """Whether SIGTERM came while the old world was busy with the resize."""
    request: int
    """Number of the RMS's request, 0 for a scripted resize."""
    phases_s: dict[str, float] = {}
    """The phases of the old world's stall, in seconds."""
    arrived_at: float = 0.0
    """The new world's clock at the commit: clocks of two nodes are never compared."""

    def record(self, now: float) -> ResizeReport:
        """Return the record of this resize, with the stall time until now."""
        return ResizeReport(
            step=self.step,
            from_ranks=self.from_ranks,
            to_ranks=self.to_ranks,
            strategy=self.strategy,
            boot_s=self.boot_s,
            stall_s=self.old_stall_s + now - self.arrived_at,
            move_s=self.move_s,
            bytes=self.bytes,
            gb_per_s=self.bytes / 1e9 / self.move_s if self.move_s > 0 else 0.0,
        )


class Progress(msgspec.Struct):
    """Step number, replicated values and records of a job."""

    step: int = 0
    generation: int = 0
    elapsed_s: float = 0.0
    saved_at: int = -1
    """Step of the newest checkpoint, so that a resize does not write it twice."""
    answered_request: int = 0
    """Number of the newest resize request of the RMS that has an answer."""
    launches: list[tuple[int, int]] = []
    """Launches of the ranks (0 the first, or the RMS's number) and ranks of each."""
    phases_s: dict[str, float] = {}
    """The phases of the stall of the newest resize, in seconds."""
    values: dict[str, Any] = {}
    resizes: list[ResizeReport] = []
    open_resize: OpenResize | None = None
    value_trees: dict[str, Any] = {}
    """Encoded: the values that are not plain JSON (:mod:`dmr.state.values`)."""
    loops_ended: list[int] = []
    """Loops that have ended at each depth of open loops (:mod:`dmr.loop.driver`)."""
    open_steps: list[int] = []
    """The step that each open loop is at, the outermost first."""
    digests: dict[str, str] = {}
    """Hashes of the initial fields, for ``dmr check`` (:mod:`dmr.check.digests`)."""
    resumes_at_resize_point: bool = False
    """Whether the open resize came at a call of ``run.resize_point``, not in a loop."""
    replaced: dict[str, list[str]] = {}
    """Paths of replaced parts of each value (:func:`dmr.state.values.replaced_parts`)."""
    constants: dict[str, str] = {}
    """Hashes of the constant fields (:mod:`dmr.data.constant`)."""

    def close_resize(self, now: float) -> ResizeReport:
        """Turn the open resize into a record: the new world is about to step."""
        resize = self.open_resize
        if resize is None:
            raise RuntimeError("expected an open resize, got none")
        record = resize.record(now)
        self.resizes.append(record)
        self.phases_s = resize.phases_s | {"settle": now - resize.arrived_at}
        self.open_resize = None
        return record


def encode(progress: Progress) -> bytes:
    """Return the progress as JSON."""
    plain, trees = encode_values(progress.values)
    return msgspec.json.encode(msgspec.structs.replace(progress, values=plain, value_trees=trees))


def decode(data: bytes | str, *, trusted: bool = False) -> Progress:
    """Read what :func:`encode` wrote.

    Args:
        trusted: whether values that are pickles may be read: they run code.

    Raises:
        msgspec.DecodeError: ``data`` is something else.
        ValuesError: a value cannot be read, or is a pickle and must not be.
    """
    progress = msgspec.json.decode(data, type=Progress)
    progress.values = decode_values(progress.values, progress.value_trees, trusted=trusted)
    progress.value_trees = {}
    return progress


# --- state that differs from rank to rank -------------------------------------------------------
#
# It is merged where a world ends and split where the next begins. The merged value travels in
# ``run.state``, also into checkpoints.


@dataclass(frozen=True)
class PerRank:
    """A value of ``run.state`` that differs from rank to rank.

    Attributes:
        value: this rank's initial value.
        merge: ``merge(values)`` returns one value for those of all ranks, in their order.
        split: ``split(value, ranks)`` returns a value for each of so many ranks.
    """

    value: Any
    merge: Callable[[list[Any]], Any]
    split: Callable[[Any, int], Sequence[Any]]

    def part(self, name: str, merged: Any, rank: int, ranks: int) -> Any:
        """Return a rank's value of a merged one."""
        try:
            parts = list(self.split(merged, ranks))
        except Exception as error:  # whatever the program's own code raises
            raise ValuesError(
                f"run.state[{name!r}] cannot be split: {type(error).__name__}: {error}"
            ) from None
        if len(parts) != ranks:
            raise ValuesError(
                f"expected the split of run.state[{name!r}] to give {ranks} values, "
                f"got {len(parts)}"
            )
        return parts[rank]


Specs = Mapping[str, PerRank]


def pack(specs: Specs, state: State) -> bytes:
    """Return this rank's values."""
    pickles = {}
    for name in specs:
        try:
            pickles[name] = pickle.dumps(state[name], PICKLE_PROTOCOL)
        except Exception as error:  # whatever the value's own code raises
            raise ValuesError(
                f"run.state[{name!r}] cannot be pickled: {type(error).__name__}: {error}"
            ) from None
    return msgspec.msgpack.encode(pickles)


def merge_all(specs: Specs, packed: Sequence[bytes]) -> dict[str, Any]:
    """Return the merged values of all ranks, by name."""
    parts = [msgspec.msgpack.decode(data, type=dict[str, bytes]) for data in packed]
    merged = {}
    for name, spec in specs.items():
        try:
            merged[name] = spec.merge([pickle.loads(part[name]) for part in parts])
        except Exception as error:  # whatever the program's own code raises
            raise ValuesError(
                f"run.state[{name!r}] cannot be merged: {type(error).__name__}: {error}"
            ) from None
    return merged


def merged_progress(comm: MPI.Intracomm, specs: Specs, progress: Progress) -> Progress:
    """Return the progress with merged values on rank 0, as it is on the others (collective)."""
    if not specs:
        return progress
    packed, problem, merged = b"", None, dict[str, Any]()
    try:
        packed = pack(specs, State(progress.values))
    except ValuesError as error:
        problem = str(error)
    raise_on_all(comm, problem)
    parts = comm.gather(packed)
    if parts is not None:
        try:
            merged = merge_all(specs, parts)
        except ValuesError as error:
            problem = str(error)
    raise_on_all(comm, problem)
    return with_merged(progress, merged)


def with_merged(progress: Progress, merged: Mapping[str, Any]) -> Progress:
    """Return a progress that holds the merged values."""
    return msgspec.structs.replace(progress, values={**progress.values, **merged})
