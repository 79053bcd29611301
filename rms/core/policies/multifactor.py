"""Order ``multifactor``: by age, fair share and size, as Slurm's priority/multifactor plugin.

Fair share is the plugin's classic one: 2^(-U / S), with U what an account has used of all that was
used, older use counting less, and S its share of all shares. 1 for who has used nothing, 0.5 for
who has used what is its own. Of equal priorities the first that was handed in comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace

import msgspec

from rms.core.model import Job
from rms.core.state import State

DAY_S = 86_400.0


Factors = dict[str, tuple[float, float, float]]
"""The fair-share factor, the usage and the share of each account."""


class Priority(msgspec.Struct, frozen=True):
    """The priority of a job, and the weighted factors that it is the sum of.

    Attributes:
        usage, share: what its account has used of all that was, and its share, from 0 to 1.
        own: the priority of the job itself (``--priority``).
    """

    age: float
    fair_share: float
    size: float
    usage: float
    share: float
    own: int = 0

    @property
    def value(self) -> float:
        """The sum."""
        return self.age + self.fair_share + self.size + self.own

    @property
    def words(self) -> str:
        """What ``rms explain`` says of it."""
        return (
            f"priority {self.value:.0f} = age {self.age:.0f} + fair share {self.fair_share:.0f} "
            f"(has used {100 * self.usage:.0f} %, may {100 * self.share:.0f} %) "
            f"+ size {self.size:.0f}" + (f" + own {self.own}" if self.own else "")
        )


class Multifactor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The highest priority first.

    Attributes:
        age, fair_share, size: weights; each factor is from 0 to 1.
        max_age_days: a job that has waited for so long has all of ``age``.
        half_life_days: what was used so long ago counts half.
        shares: of accounts; one that is not named has 1.
    """

    age: float = 1000.0
    fair_share: float = 10_000.0
    size: float = 0.0
    max_age_days: float = 7.0
    half_life_days: float = 7.0
    shares: dict[str, float] = {}

    def __post_init__(self) -> None:
        weights = (self.age, self.fair_share, self.size, *self.shares.values())
        if not all(0.0 <= weight < 1e12 for weight in weights):
            raise ValueError(f"expected weights and shares of at least 0, got {self}")
        if not all(0.0 < days < 1e9 for days in (self.max_age_days, self.half_life_days)):
            raise ValueError(f"expected days above 0, got {self}")

    @property
    def half_life_s(self) -> float:
        """By what the engine counts usage."""
        return self.half_life_days * DAY_S

    def __call__(self, state: State) -> Iterable[Job]:
        """Return the queue."""
        if self.size or state.prioritised:
            fair = self.factors(state, state.accounts)
            ranked = [
                (-self.of(state, job, fair).value, job.number, job)
                for job in state.pending.values()
            ]
            return [job for _, _, job in sorted(ranked)]
        return ByAccount(self, state)

    def priority(self, state: State, job: Job) -> Priority:
        """Return the priority of a waiting job."""
        return self.of(state, job, self.factors(state, (job.spec.account,)))

    def of(self, state: State, job: Job, fair: Factors) -> Priority:
        """Return the priority of a job, given the factors of the accounts."""
        waited_s = state.now_s - job.spec.submit_s
        age = min(1.0, max(0.0, waited_s) / (self.max_age_days * DAY_S))
        factor, usage, share = fair.get(job.spec.account, (1.0, 0.0, 0.0))
        size = job.least / state.nodes
        parts = self.age * age, self.fair_share * factor, self.size * size
        return Priority(*parts, usage, share, job.spec.priority)

    def factors(self, state: State, accounts: Iterable[str]) -> Factors:
        """Return the fair-share factor, the usage and the share of accounts."""
        used = {} if state.usage is None else state.usage.used
        used_s, shares = sum(used.values()), float(len(used))
        for account, share in self.shares.items():
            shares += share - (account in used)
        found = {}
        for account in accounts:
            if account not in used and account not in self.shares:
                continue
            share = self.shares.get(account, 1.0) / shares if shares else 0.0
            usage = used.get(account, 0.0) / used_s if used_s else 0.0
            factor = 2.0 ** (-usage / share) if share else 0.0
            found[account] = factor, usage, share
        return found


class ByAccount:
    """The queue of one pass; it may be gone through again.

    Of the jobs of one account the oldest has the highest priority, so only those that are next of
    their accounts are compared, as far as the queue is looked at.
    """

    __slots__ = ("_order", "_state")

    def __init__(self, order: Multifactor, state: State) -> None:
        self._order, self._state = order, state

    def __iter__(self) -> Iterator[Job]:
        """Yield the jobs, each once."""
        order, state = self._order, self._state
        queues: dict[str, list[Job]] = {}
        for job in state.pending.values():
            queues.setdefault(job.spec.account, []).append(job)
        fair, now = order.factors(state, queues), state.now_s
        age, most_s = order.age, order.max_age_days * DAY_S
        heads = []
        for account, jobs in queues.items():
            own = order.fair_share * fair.get(account, (1.0,))[0]
            waiting = iter(jobs)
            job = next(waiting)
            value = own + age * min(1.0, max(0.0, now - job.spec.submit_s) / most_s)
            heads.append((-value, job.number, own, job, waiting))
        if len(heads) == 1:
            yield from next(iter(queues.values()))
            return
        heapify(heads)
        while heads:
            _, _, own, job, waiting = heads[0]
            yield job
            following = next(waiting, None)
            if following is None:
                heappop(heads)
            else:
                waited_s = max(0.0, now - following.spec.submit_s)
                value = own + age * min(1.0, waited_s / most_s)
                heapreplace(heads, (-value, following.number, own, following, waiting))
