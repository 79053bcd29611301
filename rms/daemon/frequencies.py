"""Frequencies that a policy decides, set for real where this user may.

What a job is to have on each of its nodes is in the state (``Job.frequencies``); here the cores and
GPUs of all nodes follow it, each at the highest that one of its users is to have, and are as they
were found where nobody is to have less than the highest. Where they cannot be set, that is entered
as an event: policies then count with the highest for everybody, which is what there is.
"""

from __future__ import annotations

import contextlib

from rms.core.model.events import FrequenciesSettable
from rms.core.state import State
from rms.daemon.context import Context, Handle
from rms.power.frequency import FrequencyError
from rms.wire.messages import ClockOrders, ClockReport

NOT_SET = "--set-frequencies no"


class FrequencyControl:
    """Has the frequencies of nodes follow the jobs there."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._set: dict[str, float | None] = {}

    def begin(self) -> None:
        """See whether frequencies can be set, if the policy decides any; again after a restart."""
        context = self._context
        settable = context.state.settable_frequencies
        if settable and not context.scheduler.engine.policy.clocked:
            return
        reason = NOT_SET
        if context.settings.set_frequencies:
            slots = [slot for each in context.cluster.slots for slot in each]
            reason = context.launcher.frequency_refusal(slots)
        if settable != (not reason):
            self._enter(reason)

    def watch(self) -> None:
        """Set what has changed."""
        state = self._context.state
        if not self._set and not any(job.frequencies for job in state.running.values()):
            return
        wanted = self._wanted(state)
        if wanted == self._set:
            return
        reason = "" if self._context.settings.set_frequencies else NOT_SET
        if not reason:
            try:
                levels = state.site.levels
                highest_mhz = levels[-1][0] * 1000.0 if levels else None
                self._context.launcher.set_frequencies(wanted, highest_mhz)
            except FrequencyError as error:
                reason = str(error)
        lower = any((share or 1.0) < 1.0 for share in wanted.values())
        self._set = wanted if lower and not reason else {}
        if reason:
            self._enter(reason)

    def report(self, said: ClockReport) -> ClockOrders:
        """Take in whether a node's own process could set them; return what they are to be now."""
        if said.reason and self._context.state.settable_frequencies:
            self._set = {}
            self._enter(f"{said.node}: {said.reason}")
        return self._context.launcher.clock_orders(said.node)

    def _wanted(self, state: State) -> dict[str, float | None]:
        """Return the highest that one of the users of each slot is to have, None without users."""
        slots = self._context.cluster.slots
        found: dict[str, float | None] = {slot: None for each in slots for slot in each}
        for job in state.running.values():
            shares = dict(zip(job.nodes, job.frequencies, strict=False))
            for node in job.held:
                share = shares.get(node, max(job.frequencies, default=1.0))
                for slot in slots[node]:
                    found[slot] = max(share, found[slot] or 0.0)
        return found

    def _enter(self, reason: str) -> None:
        """Let the scheduler know, and the operator."""
        if reason:
            self._context.say(f"frequencies are not set here: {reason}")
            with contextlib.suppress(FrequencyError):
                self._context.launcher.set_frequencies({}, None)
        at_s = self._context.time()
        self._handle(FrequenciesSettable(at_s, not reason, reason))
