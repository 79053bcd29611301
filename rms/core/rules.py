"""What no policy may break: checked on every decision, before it is taken."""

from __future__ import annotations

from collections.abc import Sequence

from rms.core.events import Decision, Never, NodesLeased, PowerOff, PowerOn, Resize, Start
from rms.core.lease import left_s, obstacle
from rms.core.model import JobSpec, JobState
from rms.core.node_lists import allowed
from rms.core.powercap import ROUNDING, boot_extra_w, expected_w, growth_w, job_w
from rms.core.state import State


class RuleError(RuntimeError):
    """A policy decided what cannot be; ``taken`` are the decisions before it that hold."""

    taken: tuple[Decision, ...] = ()


def check(state: State, decision: Decision, *, ahead: bool = False) -> None:
    """Refuse a decision that gives a node twice, a job a size it does not allow, or too much power.

    Args:
        ahead: starts go by expected ends: a counted job may be given nodes whose end event comes
            later in the same instant. That they came is checked when the instant is over
            (:func:`check_instant`).

    Raises:
        RuleError: the decision cannot be.
    """
    if isinstance(decision, Start):
        job = state.pending.get(decision.job)
        if job is None:
            raise RuleError(f"expected a pending job to start, got {decision.job}")
        spec, size = job.spec, decision.size
        if decision.nodes:
            _distinct(decision.nodes)
            _free(state, decision.nodes, decision)
            if decision.frequencies:
                _clocked(state, decision)
        elif not state.counted or (size > state.free_count and not ahead):
            raise RuleError(f"expected free nodes for {decision.job}, got {size}")
        if decision.job in state.listed:
            _listed(state, spec, decision)
        if state.lease is not None:
            _held_long_enough(state, state.lease, decision)
        if size != spec.preferred:
            if not spec.mode.any_start:
                raise RuleError(f"expected {spec.preferred} nodes for {decision.job}, got {size}")
            _allowed(job.spec.sizes(), size, decision)
        if state.power_cap_w is not None:
            _within_cap(state, decision, job_w(state, spec, size), state.power_cap_w)
    elif isinstance(decision, Resize):
        job = state.running.get(decision.job)
        if job is None or job.state is not JobState.RUNNING or not job.spec.mode.resizable:
            raise RuleError(f"expected a running job that may be resized, got {decision.job}")
        if job.requested_size is not None:
            raise RuleError(f"expected no resize in flight for {decision.job}")
        if decision.nodes:
            _distinct(decision.nodes)
            own = set(job.nodes)
            _free(state, [node for node in decision.nodes if node not in own], decision)
        elif not state.counted or decision.size - job.size > state.free_count:
            raise RuleError(f"expected free nodes for {decision.job}, got {decision.size}")
        if decision.job in state.listed:
            _listed(state, job.spec, decision)
        _allowed(job.spec.sizes(), decision.size, decision)
        if state.power_cap_w is not None:
            more_w = growth_w(state, job, decision.size, decision.nodes)
            _within_cap(state, decision, more_w, state.power_cap_w)
    elif isinstance(decision, Never) and decision.job not in state.pending:
        raise RuleError(f"expected a pending job to refuse, got {decision.job}")
    elif isinstance(decision, PowerOff | PowerOn):
        _check_power(state, decision)


def check_instant(state: State) -> None:
    """Refuse an instant that is over with more nodes given away than there are."""
    if state.free_count < 0:
        raise RuleError(
            f"expected every node given once when {state.now_s} s is over, got "
            f"{-state.free_count} given twice"
        )


def _check_power(state: State, decision: PowerOff | PowerOn) -> None:
    """Refuse to power off what is not idle, or on what is not off, or what passes the cap."""
    nodes, cap_w = decision.nodes, state.power_cap_w
    _distinct(nodes)
    if state.counted:
        raise RuleError("expected nodes that are placed, to be powered off or on")
    if any(not set(nodes).issuperset(state.together(node)) for node in nodes):
        raise RuleError(f"expected whole hosts to be powered off or on, got {nodes}")
    if isinstance(decision, PowerOff):
        if not all(state.vacant[node] for node in nodes):
            raise RuleError(f"expected idle nodes to power off, got {nodes}")
        return
    if not state.off.issuperset(nodes):
        raise RuleError(f"expected nodes that are off to power on, got {nodes}")
    more_w = boot_extra_w(state, nodes)
    if cap_w is not None and more_w > 0.0:
        then_w = expected_w(state) + more_w
        if then_w > cap_w * (1.0 + ROUNDING):
            raise RuleError(f"expected at most {cap_w:g} W, got {then_w:g} W with boots of {nodes}")


def _within_cap(state: State, decision: Start | Resize, more_w: float, cap_w: float) -> None:
    """Refuse a decision by which expected power passes the cap; a shrink never does."""
    if more_w > 0.0 and (then_w := expected_w(state) + more_w) > cap_w * (1.0 + ROUNDING):
        raise RuleError(f"expected at most {cap_w:g} W, got {then_w:g} W with {decision.job}")


def _held_long_enough(state: State, lease: NodesLeased, decision: Start) -> None:
    """Refuse to start a job on nodes that go back before it could be of use there."""
    later = obstacle(lease, state.pending[decision.job], left_s(state, lease))
    if later is not None:
        raise RuleError(f"expected no start of {decision.job}, got one: {later.reason}")


def _distinct(nodes: tuple[int, ...]) -> None:
    if len(set(nodes)) != len(nodes):
        raise RuleError(f"expected every node once, got {nodes}")


def _listed(state: State, spec: JobSpec, decision: Start | Resize) -> None:
    if not allowed(state, spec).issuperset(decision.nodes):
        raise RuleError(f"expected nodes of its list for {decision.job}, got {decision.nodes}")


def _free(state: State, nodes: Sequence[int], decision: Start | Resize) -> None:
    vacant = state.vacant
    there = not nodes or (min(nodes) >= 0 and max(nodes) < len(vacant))
    if not there or not all(map(vacant.__getitem__, nodes)):
        raise RuleError(f"expected free nodes for {decision.job}, got {decision.nodes}")


def _clocked(state: State, decision: Start) -> None:
    """Refuse frequencies that nodes do not state, or of other than each node."""
    shares, levels = decision.frequencies, state.site.levels
    known = {ghz / levels[-1][0] for ghz, _ in levels}
    if len(shares) != len(decision.nodes) or not known.issuperset(shares):
        raise RuleError(
            f"expected a frequency of each node of {decision.job}, over the highest one, of "
            f"{sorted(known)}, got {shares}"
        )


def _allowed(sizes: Sequence[int], size: int, decision: Start | Resize) -> None:
    if size not in sizes:
        raise RuleError(f"expected a size of {list(sizes)} for {decision.job}, got {size}")
