"""Part ``order``: the order of the waiting jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import islice
from math import sqrt
from typing import ClassVar

import msgspec

from rms.core.model.jobs import Job
from rms.core.state import State


class Queue:
    """The queue of one pass, which can be iterated again."""

    __slots__ = ("_jobs",)

    def __init__(self, jobs: Callable[[], Iterator[Job]]) -> None:
        self._jobs = jobs

    def __iter__(self) -> Iterator[Job]:
        return self._jobs()


class Order:
    """Part ``order``: the waiting jobs in order.

    Attributes:
        ranks: it includes the priorities of jobs.
    """

    __slots__ = ()

    ranks: ClassVar[bool] = False

    @property
    def half_life_s(self) -> float | None:
        """The half-life of the usage of accounts that it goes by, or None."""
        return None

    @property
    def of_twin(self) -> Order:
        """The order of the twin (:mod:`rms.core.scheduler.twin`), if a sizing has one."""
        return self

    def __call__(self, state: State) -> Iterable[Job]:
        """Return the queue: a view or a list, which can be iterated again, no generator."""
        raise NotImplementedError


class Fcfs(Order, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First come, first served; jobs of one instant in the order of submission."""

    def __call__(self, state: State) -> Iterable[Job]:
        """Return the queue."""
        return state.pending.values()


class ShortestFirst(Order, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shortest expected run time first; equal ones in the order of submission."""

    def __call__(self, state: State) -> Iterable[Job]:
        """Return the queue."""
        return [job for _, _, job in state.by_estimate]


class SmallestFirst(Order, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Due jobs first, then small ones; of these, first accounts that hold less than their share.

    The size is the least number of nodes times the square root of the requested time (one of the
    orders with the shortest waits of Carastan-Santos & de Camargo, SC'17). Among n accounts with
    jobs, an account whose jobs hold less than 1 / n of the nodes, at their least sizes, comes
    first, so that many jobs of one user do not hold up the jobs of others.

    Attributes:
        depth: number of jobs considered in a pass.
    """

    depth: int = 200
    of_twin: ClassVar[Fcfs] = Fcfs()

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"expected depth above 0, got {self}")

    def __call__(self, state: State) -> Iterable[Job]:
        """Return the queue."""
        if state.one_array:
            return state.pending.values()
        return Queue(lambda: islice(self._jobs(state), self.depth))

    def _jobs(self, state: State) -> Iterator[Job]:
        jobs = state.queue_by(size)
        full = _full_arrays(state) if state.array_limited else ()
        above: set[str] = set()
        if len(state.accounts) > 1:
            most = state.nodes / len(state.accounts)
            above = {account for account, nodes in state.held_by.items() if nodes >= most}
        due = state.due or {}
        for job_id in due:  # first, so that limits of arrays do not hold them back
            if (first := state.pending.get(job_id)) is not None:
                yield first
        if not above and not full:
            for _, _, job in jobs:
                if not due or job.spec.id not in due:
                    yield job
            return
        for later in (False, True):
            for _, _, job in jobs:
                spec = job.spec
                own = (spec.account in above) is later and spec.array not in full
                if own and spec.id not in due:
                    yield job


def _full_arrays(state: State) -> set[str | None]:
    """Return the arrays with as many running jobs as their limits allow.

    Their waiting jobs are left out: they would count against ``depth`` before other jobs.
    """
    running = Counter(job.spec.array for job in state.running.values())
    limits = {job.spec.array: job.spec.array_limit for job in state.running.values()}
    return {name for name, most in limits.items() if most is not None and running[name] >= most}


def size(job: Job) -> float:
    """Return the key of :class:`SmallestFirst`: least nodes x sqrt(time requested on them)."""
    return job.least * sqrt(job.spec.expected_s(job.least))


# --- multifactor: by age, fair share and size, as Slurm's priority/multifactor plugin ------------
#
# Fair share is the plugin's classic one: 2^(-U / S), with U the account's part of all usage, older
# usage counting less, and S its part of all shares: 1 for an account without usage, 0.5 for an
# account that has used its share. Jobs of equal priority come in the order of submission.

DAY_S = 86_400.0

Factors = dict[str, tuple[float, float, float]]
"""The fair-share factor, the usage and the share by account."""


class Priority(msgspec.Struct, frozen=True):
    """The priority of a job: a sum of weighted factors.

    Attributes:
        usage, share: its account's part of all usage, and of all shares, from 0 to 1.
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
        """The priority as ``rms explain`` prints it."""
        return (
            f"priority {self.value:.0f} = age {self.age:.0f} + fair share {self.fair_share:.0f} "
            f"(has used {100 * self.usage:.0f} %, may {100 * self.share:.0f} %) "
            f"+ size {self.size:.0f}" + (f" + own {self.own}" if self.own else "")
        )


class Multifactor(Order, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The highest priority first.

    Attributes:
        age, fair_share, size: weights; factors are from 0 to 1.
        max_age_days: a job that has waited for this time has all of ``age``.
        half_life_days: usage of this age counts half.
        shares: of accounts; an account that is not named has 1.
    """

    age: float = 1000.0
    fair_share: float = 10_000.0
    size: float = 0.0
    max_age_days: float = 7.0
    half_life_days: float = 7.0
    shares: dict[str, float] = {}

    ranks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        weights = (self.age, self.fair_share, self.size, *self.shares.values())
        if not all(0.0 <= weight < 1e12 for weight in weights):
            raise ValueError(f"expected weights and shares of at least 0, got {self}")
        if not all(0.0 < days < 1e9 for days in (self.max_age_days, self.half_life_days)):
            raise ValueError(f"expected days above 0, got {self}")

    @property
    def half_life_s(self) -> float:
        """The half-life of usage."""
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
        return Queue(lambda: self._by_account(state))

    def priority(self, state: State, job: Job) -> Priority:
        """Return the priority of a waiting job."""
        return self.of(state, job, self.factors(state, (job.spec.account,)))

    def of(self, state: State, job: Job, fair: Factors) -> Priority:
        """Return the priority of a job by the factors of accounts."""
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
        factors = {}
        for account in accounts:
            if account not in used and account not in self.shares:
                continue
            share = self.shares.get(account, 1.0) / shares if shares else 0.0
            usage = used.get(account, 0.0) / used_s if used_s else 0.0
            factor = 2.0 ** (-usage / share) if share else 0.0
            factors[account] = factor, usage, share
        return factors

    def _by_account(self, state: State) -> Iterator[Job]:
        """Yield the jobs by priority.

        Of the jobs of one account the oldest has the highest priority, so only the next jobs of
        accounts are compared.
        """
        queues: dict[str, list[Job]] = {}
        for job in state.pending.values():
            queues.setdefault(job.spec.account, []).append(job)
        fair, now = self.factors(state, queues), state.now_s
        age, most_s = self.age, self.max_age_days * DAY_S
        heads = []
        for account, jobs in queues.items():
            own = self.fair_share * fair.get(account, (1.0,))[0]
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
