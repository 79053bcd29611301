"""A part of a user's policy that fails; when it does so depends on the state only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from rms.core.model.jobs import Job
from rms.core.state import State
from rms.daemon.store.sandbox import LIMIT_S, FailedPolicyError

T = TypeVar("T")

FAULTS = ("none", "raises", "exits", "never returns", "nonsense", "each job twice")


class NoAnswerError(BaseException):
    """It never returns."""


def order(state: State, *, fault: str, at: int) -> Iterable[Any]:
    """Return the queue; from so many waiting jobs on, fail."""
    queue: list[Job] = list(state.pending.values())
    if len(queue) < at:
        return queue
    match fault:
        case "raises":
            raise ZeroDivisionError("division by zero")
        case "exits":
            raise SystemExit(3)
        case "never returns":
            raise NoAnswerError
        case "nonsense":
            return ["a", "b"]
        case "each job twice":
            return [job for job in queue for _ in range(2)]
    return queue


def composed(fault: str, at: int, admission: str) -> str:
    """Return the text of a policy with this order."""
    part = {"part": f"{__name__}:order", "fault": fault, "at": at}
    return msgspec.json.encode({"order": part, "admission": {"part": admission}}).decode()


def answer_here(block: Callable[[float], None]) -> Callable[[Callable[[], T], type[T]], T]:
    """Return a function in place of ``sandbox.forked``, which needs no process.

    Args:
        block: lets the time pass in which a daemon waits for an answer.
    """

    def answer(work: Callable[[], T], kind: type[T]) -> T:
        try:
            return msgspec.msgpack.decode(msgspec.msgpack.encode(work()), type=kind)
        except NoAnswerError:
            block(LIMIT_S)
            raise FailedPolicyError(f"expected an answer within {LIMIT_S:g} s, got none") from None
        except msgspec.MsgspecError as error:
            raise FailedPolicyError(f"expected decisions, got something else ({error})") from None
        except (Exception, SystemExit) as error:
            raise FailedPolicyError(f"it raised {error!r}") from None

    return answer
