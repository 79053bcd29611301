"""State that differs from rank to rank: merged where a world ends, split where the next begins.

What travels is one value, so it goes with ``run.state``; so does a checkpoint.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from dmr.state.progress import Progress
from dmr.state.values import PICKLE_PROTOCOL, State, ValuesError

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class PerRank:
    """A value of ``run.state`` of which every rank has its own.

    Attributes:
        value: this rank's in the beginning.
        merge: ``merge(values)`` makes one value of those of all ranks, in their order.
        split: ``split(value, ranks)`` returns the values of so many ranks.
    """

    value: Any
    merge: Callable[[list[Any]], Any]
    split: Callable[[Any, int], Sequence[Any]]

    def part(self, name: str, merged: Any, rank: int, ranks: int) -> Any:
        """Return a rank's value of a merged one.

        Raises:
            ValuesError: ``split`` fails, or gives another number of values.
        """
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
    """Return this rank's values.

    Raises:
        ValuesError: one cannot be pickled, or is gone.
    """
    found = {}
    for name in specs:
        try:
            found[name] = pickle.dumps(state[name], PICKLE_PROTOCOL)
        except Exception as error:  # whatever the value's own code raises
            raise ValuesError(
                f"run.state[{name!r}] cannot be pickled: {type(error).__name__}: {error}"
            ) from None
    return msgspec.msgpack.encode(found)


def merge_all(specs: Specs, packed: Sequence[bytes]) -> dict[str, Any]:
    """Return one value of what all ranks have packed, by name.

    Raises:
        ValuesError: a ``merge`` fails.
    """
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
    """Return what a checkpoint holds, on rank 0; elsewhere the progress as it is (collective).

    Raises:
        ValuesError: on all ranks, if one cannot be packed or merged.
    """
    if not specs:
        return progress
    packed, problem, merged = b"", None, None
    try:
        packed = pack(specs, State(progress.values))
    except ValuesError as error:
        problem = str(error)
    parts = comm.gather((problem, packed))
    if parts is not None:
        problem = next((wrong for wrong, _ in parts if wrong is not None), None)
        if problem is None:
            try:
                merged = merge_all(specs, [data for _, data in parts])
            except ValuesError as error:
                problem = str(error)
    problem = comm.bcast(problem)
    if problem is not None:
        raise ValuesError(problem)
    return progress if merged is None else with_merged(progress, merged)


def with_merged(progress: Progress, merged: Mapping[str, Any]) -> Progress:
    """Return a progress that holds the merged values."""
    return msgspec.structs.replace(progress, values={**progress.values, **merged})
