"""What no policy may break: checked on every decision, before it is taken."""

from __future__ import annotations

from rms.events import Decision, Later, Resize, Start
from rms.model import JobState, State


class RuleError(RuntimeError):
    """A policy decided what cannot be."""


def check(state: State, decision: Decision) -> None:
    """Refuse a decision that would give a node twice or a job a size it does not allow."""
    if isinstance(decision, Later):
        return
    if isinstance(decision, Start):
        job = state.pending.get(decision.job)
        if job is None:
            raise RuleError(f"expected a pending job to start, got {decision.job}")
        _distinct(decision.nodes)
        if not set(decision.nodes) <= set(state.free):
            raise RuleError(f"expected free nodes for {decision.job}, got {decision.nodes}")
        size = len(decision.nodes)
        if not job.spec.mode.any_start and size != job.spec.preferred:
            raise RuleError(f"expected {job.spec.preferred} nodes for {decision.job}, got {size}")
        _allowed(job.spec.sizes(), size, decision)
    elif isinstance(decision, Resize):
        job = state.running.get(decision.job)
        if job is None or job.state is not JobState.RUNNING or not job.spec.mode.resizable:
            raise RuleError(f"expected a running job that may be resized, got {decision.job}")
        if job.requested is not None:
            raise RuleError(f"expected no resize in flight for {decision.job}")
        _distinct(decision.nodes)
        if not set(decision.nodes) <= {*state.free, *job.nodes}:
            raise RuleError(f"expected free nodes for {decision.job}, got {decision.nodes}")
        _allowed(job.spec.sizes(), len(decision.nodes), decision)


def _distinct(nodes: tuple[int, ...]) -> None:
    if len(set(nodes)) != len(nodes):
        raise RuleError(f"expected every node once, got {nodes}")


def _allowed(sizes: list[int], size: int, decision: Start | Resize) -> None:
    if size not in sizes:
        raise RuleError(f"expected a size of {sizes} for {decision.job}, got {size}")
