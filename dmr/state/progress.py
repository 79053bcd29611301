"""What travels with a job from world to world, and into checkpoints, besides its fields."""

from __future__ import annotations

from typing import Any

import msgspec

from dmr.state.values import decode_values, encode_values
from rms.wire.messages import ResizeReport


class OpenResize(msgspec.Struct):
    """A resize whose new world has not stepped yet: what the old world measured of it."""

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
    """Number of the RMS's request that this answers, 0 for a scripted resize."""
    phases_s: dict[str, float] = {}
    """Where the time of the old world's stall went."""
    arrived_at: float = 0.0
    """The new world's clock when the old one gave the job away: clocks of two nodes are never
    compared."""

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
    """Number of the newest resize request of the RMS that was answered."""
    launches: list[tuple[int, int]] = []
    """Launches that the ranks come from (0 the first, or the RMS's number) and ranks of each."""
    phases_s: dict[str, float] = {}
    """Where the stall of the newest resize went, in seconds."""
    values: dict[str, Any] = {}
    resizes: list[ResizeReport] = []
    open_resize: OpenResize | None = None
    value_trees: dict[str, Any] = {}
    """Where it is encoded: the values that plain JSON does not hold (:mod:`dmr.state.values`)."""
    loops_done: list[int] = []
    """Loops that have ended at each depth of open loops (:mod:`dmr.loop.driver`)."""
    loops_at: list[int] = []
    """The step that each open loop is at, the outermost first."""
    digests: dict[str, str] = {}
    """Hashes of the fields in the beginning, where somebody checks (:mod:`dmr.check.digests`)."""
    at_point: bool = False
    """Whether the open resize came at a call of ``run.resize_point``, not in a loop."""
    replaced: dict[str, list[str]] = {}
    """Paths of replaced parts of each value (:func:`dmr.state.values.replaced_parts`)."""
    constants: dict[str, str] = {}
    """Hashes of the fields that never change (:mod:`dmr.data.constant`)."""

    def close_resize(self, now: float) -> ResizeReport:
        """Turn the open resize into a record: the new world is about to step."""
        begun = self.open_resize
        if begun is None:
            raise RuntimeError("expected an open resize, got none")
        record = begun.record(now)
        self.resizes.append(record)
        self.phases_s = begun.phases_s | {"settle": now - begun.arrived_at}
        self.open_resize = None
        return record


def encode(progress: Progress) -> bytes:
    """Return the progress as JSON.

    Raises:
        ValuesError: a value cannot be pickled.
    """
    plain, trees = encode_values(progress.values)
    return msgspec.json.encode(msgspec.structs.replace(progress, values=plain, value_trees=trees))


def decode(data: bytes | str, *, trusted: bool = False) -> Progress:
    """Read what :func:`encode` wrote.

    Args:
        trusted: whether values that are pickles may be read: they run code.

    Raises:
        msgspec.DecodeError: it is something else.
        ValuesError: a value cannot be read, or is a pickle and must not be.
    """
    progress = msgspec.json.decode(data, type=Progress)
    progress.values = decode_values(progress.values, progress.value_trees, trusted=trusted)
    progress.value_trees = {}
    return progress
