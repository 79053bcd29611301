"""Frequencies of a machine's cores and GPUs, set for those who use them and put back afterwards.

Each core (each group of them that has one frequency) runs at the highest that one of its users asks
for. What nobody uses, or somebody at the highest frequency, is as it was found. The first that is
set starts the process that puts all back, however this one ends (:mod:`rms.power.frequency`); when
nobody asks for less than the highest any more, it ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rms.power import frequency
from rms.power.frequency import Domain, FrequencyError

Shares = Mapping[str, float | None]
"""Of each slot (``cpu:3``, ``gpu:0``) the frequency over the highest, None where nobody uses it."""

CPU = "cpu"


class Clocks:
    """What is set, and who puts it back.

    Attributes:
        mhz: what each slot is held at, MHz; slots that are as found are not in it.
    """

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env
        self._guards: dict[str, contextlib.ExitStack] = {}
        self._found: dict[Path, tuple[int, int]] = {}
        self._set: dict[Path, int] = {}
        self._gpu_mhz: dict[str, Sequence[int]] = {}
        self.mhz: dict[str, int] = {}

    def refusal(self, slots: Iterable[str]) -> str:
        """Return why the frequencies of slots cannot be set, "" where they can."""
        kinds = {slot.partition(":")[0] for slot in slots}
        wanted = [d for d in frequency.available(self._env) if d.name.partition("-")[0] in kinds]
        if not wanted:
            return f"expected frequencies of {' and '.join(sorted(kinds))}, got none here"
        return "; ".join(f"{d.name}: {d.reason}" for d in wanted if not d.settable)

    def set(self, shares: Shares, highest_mhz: float | None = None) -> None:
        """Set frequencies; all slots of the machine are named each time.

        Args:
            highest_mhz: what they are shares of; None for the highest of each slot itself.

        Raises:
            FrequencyError: one could not be set; all are then as they were found.
        """
        try:
            cores = {slot: share for slot, share in shares.items() if slot.startswith("cpu:")}
            self._set_cores(cores, highest_mhz)
            for slot, share in shares.items():
                if slot.startswith("gpu:"):
                    self._set_gpu(slot, share, highest_mhz)
        except FrequencyError:
            with contextlib.suppress(FrequencyError):  # the first of them says why
                self.close()
            raise

    def close(self) -> None:
        """Put back what was found.

        Raises:
            FrequencyError: something could not be; the rest is put back nevertheless.
        """
        wrong = []
        for guard in list(self._guards):
            try:
                self._release(guard)
            except FrequencyError as error:
                wrong.append(str(error))
        self.mhz.clear()
        if wrong:
            raise FrequencyError("; ".join(wrong))

    # --- cores -----------------------------------------------------------------------------------

    def _set_cores(self, shares: Shares, highest_mhz: float | None) -> None:
        slots = _by_policy(shares, self._env)
        without = set(shares).difference(*slots.values())
        if any((shares[slot] or 1.0) < 1.0 for slot in without):
            reason = self.refusal(shares) or f"no frequencies of {', '.join(sorted(without))} here"
            raise FrequencyError(reason)
        wanted = {}
        for policy, own in slots.items():
            asked = [share for slot in own if (share := shares[slot]) is not None]
            if asked and max(asked) < 1.0:
                wanted[policy] = _step(frequency.steps_of(policy), max(asked), highest_mhz)
        if not wanted:
            self._release(CPU)
        elif CPU not in self._guards:
            self._guard(Domain(CPU), list(slots))
            self._found = {policy: frequency.limits_of(policy) for policy in slots}
        for policy in self._set.keys() - wanted.keys():
            frequency.set_limits(policy, *self._found[policy])
            del self._set[policy]
        for policy, mhz in wanted.items():
            if self._set.get(policy) != mhz:
                frequency.set_limits(policy, mhz * 1000, mhz * 1000)
                frequency.check_limits(policy, mhz)
                self._set[policy] = mhz
        held = {slot: wanted[policy] for policy in wanted for slot in slots[policy]}
        self.mhz = {**{s: mhz for s, mhz in self.mhz.items() if s not in shares}, **held}

    # --- GPUs ------------------------------------------------------------------------------------

    def _set_gpu(self, slot: str, share: float | None, highest_mhz: float | None) -> None:
        name = slot.replace(":", "-")
        if share is None or share >= 1.0:
            self._release(name)
            self.mhz.pop(slot, None)
            return
        if name not in self._guards:
            known = [d for d in frequency.available(self._env) if d.name == name and d.mhz]
            if not known:
                raise FrequencyError(f"expected frequencies of {name}, got none here")
            self._guard(known[0], [])
            self._gpu_mhz[name] = known[0].mhz
        mhz = _step(self._gpu_mhz[name], share, highest_mhz)
        if self.mhz.get(slot) != mhz:
            frequency.lock_gpu(int(slot.removeprefix("gpu:")), mhz)
            self.mhz[slot] = mhz

    # --- who puts back ---------------------------------------------------------------------------

    def _guard(self, domain: Domain, policies: list[Path]) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(frequency.restored(domain, policies, self._env))
            self._guards[domain.name] = stack.pop_all()

    def _release(self, name: str) -> None:
        guard = self._guards.pop(name, None)
        if guard is None:
            return
        if name == CPU:
            self._set.clear()
        guard.close()


def _by_policy(slots: Iterable[str], env: Mapping[str, str]) -> dict[Path, list[str]]:
    """Return which slots each policy of cpufreq is about."""
    of_core: dict[int, Path] = {}
    for policy in frequency.policies_of(env):
        try:
            cores = [int(core) for core in (policy / "related_cpus").read_text().split()]
        except (OSError, ValueError):
            cores = [int(policy.name.removeprefix("policy"))]  # as the kernel names it: its first
        of_core.update(dict.fromkeys(cores, policy))
    found: dict[Path, list[str]] = {}
    for slot in slots:
        policy_of = of_core.get(int(slot.removeprefix("cpu:")))
        if policy_of is not None:
            found.setdefault(policy_of, []).append(slot)
    return found


def _step(steps: Iterable[int], share: float, highest_mhz: float | None) -> int:
    """Return the lowest frequency that is no lower than asked for, MHz: nobody is slower than that.

    Args:
        share: of ``highest_mhz``, None for the highest of the steps.
    """
    known = sorted(steps)
    least = share * (highest_mhz or known[-1])
    return next((mhz for mhz in known if mhz >= least - 0.5), known[-1])
