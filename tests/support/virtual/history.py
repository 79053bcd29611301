"""Whether the answers to users fit one order of events: a checker of linearizability.

Each job, and each node, is checked by itself (what was answered about one says nothing of others).
A model has states, the answers that a call may have in each of them, and the changes that happen
without a call, such as the start of a job. The calls fit if some order of them, in which no call
comes after one that began when it had been answered, leads from state to state. A call without an
answer may have happened, or not. (Wing and Gong, "Testing and verifying concurrent objects", JPDC
1993; with the states visited kept, as Lowe, "Testing for linearizability", CCPE 2017, has them.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import ClassVar, Protocol


@dataclass(frozen=True)
class Call:
    """A call on one job or node: what was called, when, and the answer.

    Attributes:
        answer: "ok", "refused", or what was read; None if the answer was lost.
    """

    kind: str
    begun_s: float
    ended_s: float = inf
    answer: str | None = None

    def __str__(self) -> str:
        end = "..." if self.ended_s == inf else f"{self.ended_s:.3f}"
        return f"{self.begun_s:.3f} to {end}: {self.kind}: {self.answer or 'no answer'}"


class Model(Protocol):
    """States of a thing, as strings."""

    initial: str

    def after(self, state: str, call: Call) -> Iterable[str]:
        """Return the states after a call; none if its answer is impossible in this state."""

    def drift(self, state: str) -> Iterable[str]:
        """Return the states that may follow by themselves."""


def first_misfit(model: Model, calls: Sequence[Call]) -> list[Call]:
    """Return the shortest beginning of a history that fits no order, by its ends; [] if all fits.

    Calls without an answer are in every beginning, as they may have happened.
    """
    open_ = [call for call in calls if call.answer is None]
    answered = sorted(
        (call for call in calls if call.answer is not None), key=lambda call: call.ended_s
    )
    if fits(model, calls):
        return []
    low, high = 0, len(answered)  # the first `low` fit, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if fits(model, [*answered[:middle], *open_]):
            low = middle
        else:
            high = middle
    end_s = answered[high - 1].ended_s
    before = [call for call in open_ if call.begun_s < end_s]
    return sorted([*answered[:high], *before], key=lambda call: call.begun_s)


def fits(model: Model, calls: Sequence[Call]) -> bool:
    """Return whether some order of calls explains their answers."""
    calls = sorted(calls, key=lambda call: call.begun_s)
    closure = cache(lambda state: _closure(model, state))
    must = sum(1 << n for n, call in enumerate(calls) if call.answer is not None)
    seen = set[tuple[int, str]]()
    open_ = [(0, state) for state in closure(model.initial)]
    while open_:
        done, state = open_.pop()
        if (done, state) in seen:
            continue
        seen.add((done, state))
        if done & must == must:
            return True
        first_end = inf
        for n, call in enumerate(calls):
            if call.begun_s > first_end:
                break
            if done >> n & 1:
                continue
            if call.answer is not None:
                first_end = min(first_end, call.ended_s)
            for follows in model.after(state, call):
                open_ += [(done | 1 << n, later) for later in closure(follows)]
    return False


def _closure(model: Model, state: str) -> frozenset[str]:
    found, new = {state}, [state]
    while new:
        for follows in model.drift(new.pop()):
            if follows not in found:
                found.add(follows)
                new.append(follows)
    return frozenset(found)


# --- models ---------------------------------------------------------------------------------------

ABSENT, WAITS, HELD, RUNS, STOPPED, CANCELLED, GIVEN_BACK, OVER = (
    "absent",
    "waits",
    "held",
    "runs",
    "suspended",
    "cancelled",
    "requeued",
    "over",
)
"""States of a job; ``cancelled`` and ``requeued`` ones still have processes."""


class JobModel:
    """A job that users submit, hold, release, cancel, requeue, suspend and resize.

    Args:
        hold: whether it is submitted on hold.
    """

    initial = ABSENT
    _drift: ClassVar[dict[str, tuple[str, ...]]] = {
        WAITS: (RUNS, OVER),
        HELD: (OVER,),
        RUNS: (WAITS, OVER),
        STOPPED: (WAITS, OVER),
        CANCELLED: (OVER,),
        GIVEN_BACK: (WAITS, OVER),
    }
    _seen: ClassVar[dict[str, tuple[str, ...]]] = {
        WAITS: ("PENDING",),
        HELD: ("HELD",),
        RUNS: ("CONFIGURING", "RUNNING"),
        STOPPED: ("SUSPENDED",),
        CANCELLED: ("CONFIGURING", "RUNNING", "SUSPENDED"),
        GIVEN_BACK: ("CONFIGURING", "RUNNING", "SUSPENDED"),
        OVER: ("OVER",),
        ABSENT: ("ABSENT",),
    }

    def __init__(self, *, hold: bool = False) -> None:
        self._hold = hold

    def drift(self, state: str) -> Iterable[str]:
        return self._drift.get(state, ())

    def after(self, state: str, call: Call) -> Iterable[str]:
        if call.kind == "read":
            return (state,) if call.answer in self._seen[state] else ()
        if call.kind == "submit":
            if state != ABSENT:
                return (state,)  # the same ids for the same key
            return (HELD if self._hold else WAITS,)
        follows = self._calls(state).get(call.kind, ())
        if call.answer == "refused":
            return (state,) if not follows or state in (RUNS, GIVEN_BACK, CANCELLED) else ()
        if call.answer == "none":  # a cancel that had nothing to do
            return (state,) if state == OVER else ()
        return follows

    def _calls(self, state: str) -> dict[str, tuple[str, ...]]:
        match state:
            case "waits":
                return {"cancel": (OVER,), "hold": (HELD,)}
            case "held":
                return {"cancel": (OVER,), "hold": (HELD,), "release": (WAITS,)}
            case "runs":
                return {
                    "cancel": (CANCELLED,),
                    "requeue": (GIVEN_BACK,),
                    "suspend": (STOPPED,),
                    "resize": (RUNS,),
                }
            case "suspended":
                return {
                    "cancel": (CANCELLED,),
                    "requeue": (GIVEN_BACK,),
                    "continue": (RUNS,),
                    "resize": (STOPPED,),
                }
            case "requeued":
                return {
                    "cancel": (CANCELLED,),
                    "requeue": (GIVEN_BACK,),
                    "resize": (GIVEN_BACK,),
                    "continue": (GIVEN_BACK,),
                }
            case "cancelled":
                return {
                    "cancel": (CANCELLED,),
                    "requeue": (CANCELLED,),
                    "resize": (CANCELLED,),
                    "continue": (CANCELLED,),
                }
        return {}


class SwitchModel:
    """Something that is on or off, such as the drain of a node: what was set last is read."""

    def __init__(self, initial: str) -> None:
        self.initial = initial

    def drift(self, state: str) -> Iterable[str]:
        return ()

    def after(self, state: str, call: Call) -> Iterable[str]:
        if call.kind == "read":
            return (state,) if call.answer == state else ()
        if call.answer == "refused":
            return (state,)
        return (call.kind,)
