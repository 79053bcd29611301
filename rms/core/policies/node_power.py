"""Parts that save energy: ``node_power``, placement ``consolidate`` and ``frequency``.

Part ``node_power`` chooses idle nodes to be powered off, and nodes to be powered on again.

The other parts decide as if every node that is off or booting were on already: sizes, reservations
and the order of starts are those of a cluster that is always on. Decisions on nodes that are off
are delayed until these have booted, and made anew then; no other job gets these nodes meanwhile. So
a job waits longer by a boot, without an effect on policies. Chauhan et al., figures 11 (power off)
and 12 (power on).
"""

from __future__ import annotations

import copy
import heapq
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from datetime import time as clock
from functools import lru_cache, partial
from itertools import chain
from math import floor, inf
from operator import itemgetter
from typing import ClassVar, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from rms.core.model.events import (
    Decision,
    Event,
    Never,
    PowerOff,
    PowerOn,
    Reason,
    Resize,
    Start,
)
from rms.core.model.jobs import Job, JobId, JobSpec, JobState, Node
from rms.core.model.speedup import drawn, longer
from rms.core.policies.placement import LimitedRoom, Lowest, Placement, Room
from rms.core.policies.shared import SharedRoom
from rms.core.rules.checks import without_jobs
from rms.core.rules.powercap import PowerBudget, boot_extra_w, growth_w, mean_w
from rms.core.state import State

Switches = tuple[Sequence[Node], Sequence[Node]]
"""Nodes to be powered off, and on."""


class NodePowerPart:
    """Part ``node_power``: the nodes that are powered off and on.

    Attributes:
        always_on: no node is powered off.
    """

    __slots__ = ()

    always_on: ClassVar[bool] = False

    @property
    def powers_off_idle(self) -> bool:
        """Whether nodes are powered off because they are idle."""
        return not self.always_on

    @property
    def ahead(self) -> bool:
        """Whether nodes are powered on before the end of a job after which they are needed."""
        return False

    def look_s(self, state: State) -> float:
        """Return the time of the next decision without an event, inf for never."""
        return inf

    def __call__(
        self, state: State, idle: Sequence[Node], needed: Sequence[Node], until_s: float
    ) -> Switches:
        """Return the idle nodes to be powered off, and the nodes to be powered on.

        A node stands for its whole host here: of shared ones the first slot is named.

        Args:
            idle: free nodes that no job is about to get, rising.
            needed: nodes that are off and needed now.
            until_s: the earliest expected time at which idle nodes may be needed.
        """
        raise NotImplementedError


class AlwaysOn(NodePowerPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No node is powered off; nodes that another policy has left off are powered on."""

    always_on: ClassVar[bool] = True

    def __call__(
        self, state: State, idle: Sequence[Node], needed: Sequence[Node], until_s: float
    ) -> Switches:
        """Return all nodes that are off, to be powered on."""
        return (), sorted(state.off - state.down)


ALWAYS_ON = AlwaysOn()


class OffWhenIdle(NodePowerPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes go off as soon as that saves energy, and come back when a job waits for them.

    Attributes:
        keep: number of idle nodes that stay on, for later jobs.
        delay_s: idle time before a node goes off (Slurm's SuspendTime).
        ahead: nodes are powered on a boot before the expected end of a running job after which
            a waiting job will get them; else when it does.
        at_most: largest number of hosts powered off in a minute, and on (Slurm's SuspendRate and
            ResumeRate); 0 for any number.
    """

    keep: int = 0
    delay_s: float = 0.0
    ahead: bool = False
    at_most: int = 0

    def __post_init__(self) -> None:
        for name in ("keep", "delay_s", "at_most"):
            if not 0 <= (value := getattr(self, name)) < inf:
                raise ValueError(f"expected {name} of at least 0, got {value:g}")

    def __call__(
        self, state: State, idle: Sequence[Node], needed: Sequence[Node], until_s: float
    ) -> Switches:
        """Return idle nodes whose time off saves energy, and needed ones."""
        gap_s = until_s - state.now_s
        off = [node for node in idle[self.keep :] if state.model(node).off_pays(gap_s)]
        times = state.idle
        if times is None:
            return off, needed
        if self.delay_s:
            since_s = {node: times.whole_since_s(state.together(node)) for node in off}
            off = [node for node in off if since_s[node] + self.delay_s <= state.now_s]
        if self.at_most:
            off = off[: max(0, times.switches_left(self.at_most, state.now_s, on=False))]
            needed = needed[: max(0, times.switches_left(self.at_most, state.now_s, on=True))]
        return off, needed

    def look_s(self, state: State) -> float:
        """Return the next time at which nodes may have to be switched, inf for never."""
        times, idle, now = [], state.idle, state.now_s
        if idle is not None and self.delay_s:
            for slots in _hosts(state, state.free_nodes()):
                since_s = idle.whole_since_s(slots)
                if since_s + self.delay_s > now and all(state.vacant[node] for node in slots):
                    times.append(since_s + self.delay_s)
        if idle is not None and self.at_most:
            times.append(idle.next_s(self.at_most, now))
        if self.ahead and state.pending and state.off:
            boot_s = longest_boot_s(state)
            ends = (end_s - boot_s for end_s, _, _ in state.ends if end_s - boot_s > now)
            times.append(next(ends, inf))
        return min(times, default=inf)


# --- recurring windows in which a share of the nodes is off --------------------------------------
#
# A window is announced: a job starts only if it ends before the next window, or if the window
# still gets its nodes beside the jobs that run then; a job that can be resized counts with its
# least size. From its begin on, the window takes free nodes before any job, and running jobs make
# room at their resize points; before it no job is narrowed so that it would run into the window and
# keep nodes of it. No job is killed: a rigid job that overruns its limit keeps its nodes. An
# oversized job, which would keep nodes of some window at any start, starts at a time at which it
# keeps those of the fewest, or is refused. Nodes boot so that they are on at the end.
# Schäfer et al., "Saving Energy Costs and Time on Supercomputers: Scheduler-Integrated Recurring
# Node Shutdown Exploiting Malleable Jobs", 2026.

DAYS_AHEAD = 7
"""Windows recur after so many days."""

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
SPAN = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")


class Window(NamedTuple):
    """A time in which nodes are to be off, in Unix time."""

    begin_s: float
    end_s: float


class Windows(OffWhenIdle, msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A share of the nodes is off in recurring windows; the other nodes are always on.

    Attributes:
        off: windows of a day, as ``22:00-06:00``; one may end on the next day.
        share: of the nodes, rounded down.
        days: on which windows begin, as ``mon``; all by default.
        zone: time zone of the windows. Simulated time 0 is the begin of 1970 in UTC.
        idle: nodes also go off when they are idle, as with part ``off-when-idle``.
        oversized: ``start`` or ``refuse`` jobs that would keep nodes of some window at any start:
            too wide for the nodes that stay on, and too long between two windows.
        keep, delay_s, ahead, at_most: with ``idle``, as with that part.
    """

    off: tuple[str, ...]
    share: float
    days: tuple[str, ...] = DAYS
    zone: str = "UTC"
    idle: bool = False
    oversized: Literal["start", "refuse"] = "start"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.share < 1.0:
            raise ValueError(f"expected a share of at least 0 and below 1, got {self.share:g}")
        if not self.off:
            raise ValueError("expected windows such as 22:00-06:00, got none")
        for text in self.off:
            if not (match := SPAN.fullmatch(text)) or not _clock(*match.groups()):
                raise ValueError(f"expected a window such as 22:00-06:00, got {text!r}")
        for day in self.days:
            if day not in DAYS:
                raise ValueError(f"expected days of {', '.join(DAYS)}, got {day!r}")
        if not self.days:
            raise ValueError("expected days on which windows begin, got none")
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError):
            expected = "expected a time zone such as Europe/Berlin"
            raise ValueError(f"{expected}, got {self.zone!r}") from None

    def __call__(
        self, state: State, idle: Sequence[Node], needed: Sequence[Node], until_s: float
    ) -> Switches:
        """Return idle nodes whose time off saves energy, and nodes that are off and needed."""
        if self.idle:
            return super().__call__(state, idle, needed, until_s)
        return ALWAYS_ON(state, idle, needed, until_s)

    @property
    def powers_off_idle(self) -> bool:
        """Whether nodes are powered off because they are idle."""
        return self.idle

    def window(self, now_s: float) -> Window:
        """Return the window of a time, or the next one."""
        day = floor(now_s / 86400.0)
        return next(window for window in _windows(self, day) if window.end_s > now_s)

    def nodes(self, of: int) -> int:
        """Return the number of nodes, of so many, that are to be off in a window."""
        return int(self.share * of + 1e-9)

    def look_s(self, state: State) -> float:
        """Return the next time at which nodes may have to be switched, inf for never."""
        window, boot_s = self.window(state.now_s), most_boot_s(state)
        times = [super().look_s(state)] if self.idle else []
        times += [window.begin_s, window.end_s - boot_s, window.end_s]
        return min(time_s for time_s in times if time_s > state.now_s)


def _clock(hour: str, minute: str, end_hour: str, end_minute: str) -> bool:
    """Return whether a window has times of a day, and a length."""
    hours, minutes = max(int(hour), int(end_hour)), max(int(minute), int(end_minute))
    return hours < 24 and minutes < 60 and (hour, minute) != (end_hour, end_minute)


@lru_cache(maxsize=64)
def _windows(part: Windows, day: int) -> tuple[Window, ...]:
    """Return the windows about a day of UTC, rising; those that overlap or touch are one."""
    zone, windows = ZoneInfo(part.zone), list[Window]()
    first = date(1970, 1, 1) + timedelta(days=day)
    for at in range(-2, 2 * DAYS_AHEAD + 3):
        today = first + timedelta(days=at)
        if DAYS[today.weekday()] not in part.days:
            continue
        for text in part.off:
            begin, end = (clock.fromisoformat(one) for one in text.split("-"))
            last = today + timedelta(days=end <= begin)
            windows.append(
                Window(
                    datetime.combine(today, begin, zone).timestamp(),
                    datetime.combine(last, end, zone).timestamp(),
                )
            )
    joined = list[Window]()
    for window in sorted(windows):
        if joined and window.begin_s <= joined[-1].end_s:
            joined[-1] = Window(joined[-1].begin_s, max(window.end_s, joined[-1].end_s))
        else:
            joined.append(window)
    return tuple(joined)


def most_boot_s(state: State) -> float:
    """Return the longest boot time of any node."""
    return max(model.boot_s for model in state.power_models)


class WindowView(NamedTuple):
    """What a window leaves to the other parts in a pass.

    Attributes:
        state, events: without the nodes of a window that is under way, and without the waiting
            jobs that would keep nodes of the next.
        off: free nodes that go off for the window.
        shrinks: jobs that make room for it.
        words: the nodes and the begin of the next window.
        hidden: waiting jobs that would keep nodes of it.
    """

    state: State
    events: Sequence[Event]
    off: tuple[Node, ...] = ()
    shrinks: Sequence[tuple[Job, int]] = ()
    words: str = ""
    hidden: frozenset[JobId] = frozenset()


def window_view(
    part: Windows, state: State, events: Sequence[Event], more: Set[JobId] = frozenset()
) -> WindowView:
    """Return the state that the other parts of a policy see in a pass.

    Args:
        more: waiting jobs that are hidden as well.
    """
    now_s, wanted, window = state.now_s, part.nodes(state.nodes), part.window(state.now_s)
    if not wanted:
        return WindowView(state, events)
    view, off, shrinks = state, tuple[Node, ...](), list[tuple[Job, int]]()
    there_s = window.end_s - most_boot_s(state)
    if window.begin_s <= now_s < there_s:
        down = sorted(state.off - state.down)
        off = tuple(_to_be_off(state, wanted - len(down)))
        shrinks = _making_room(state, wanted - len(down) - len(off) - state.releasing)
        held = set(down[:wanted])
        if state.host_slots:  # with all slots of a host
            held.update(*[state.together(node) for node in down[:wanted]])
        view, _ = without_jobs(state, (), frozenset(), off)
        view.off = state.off - held
        jobs = state.running or state.pending
        if jobs:
            stand_in = Job(next(iter(jobs.values())).spec, size=len(held) + len(off))
            view.returning = there_s, -1, stand_in
            view.ends = sorted([*state.ends, view.returning], key=itemgetter(0))
    if window.begin_s <= now_s:
        window = part.window(window.end_s)
    late, wider = _too_long(part, state, window, wanted)
    hidden = frozenset(late | more)
    if hidden or wider:
        view, events = without_jobs(view, events, hidden)
    if wider:
        view.set_pending(
            {
                name: _not_below(job, wider[name]) if name in wider else job
                for name, job in view.pending.items()
            }
        )
    opens = datetime.fromtimestamp(window.begin_s, ZoneInfo(part.zone))
    words = f"{wanted} of {state.nodes} nodes are powered off from {opens:%H:%M} on"
    return WindowView(view, events, off, shrinks, words, hidden)


def _not_below(job: Job, size: int) -> Job:
    """Return a waiting job that starts at no smaller size."""
    other = copy.copy(job)
    other.least, other.longest_s = size, job.spec.expected_s(size)
    return other


def _to_be_off(state: State, nodes: int) -> list[Node]:
    """Return idle nodes to be powered off, at most so many: whole racks as far as possible."""
    if nodes <= 0:
        return []
    free = list(state.free_nodes())
    there, site = set(free), state.site
    hosts = [slots for slots in _hosts(state, free) if there.issuperset(slots)]
    if site.rack:
        racks = [site.rack[site.host[slots[0]] if site.host else slots[0]] for slots in hosts]
        busy = Counter(site.rack)
        busy.subtract(racks)
        order = sorted(range(len(hosts)), key=lambda at: (busy[racks[at]], racks[at], at))
        hosts = [hosts[at] for at in order]
    off = list[Node]()
    for slots in hosts:
        if len(off) + len(slots) <= nodes:
            off += slots
    return sorted(off)


def _making_room(state: State, nodes: int) -> list[tuple[Job, int]]:
    """Return new sizes of running jobs that give back so many nodes, or all they can.

    One size at a time, the widest job first. Some have to come to a resize point before.
    """
    if nodes <= 0:
        return []
    jobs = [
        job
        for job in state.running.values()
        if job.spec.mode.resizable and job.state is JobState.RUNNING and job.requested_size is None
    ]
    able = [(-job.size, job.number, job, job.size) for job in jobs]
    heapq.heapify(able)
    made = dict[Job, int]()
    while able and nodes > 0:
        _, number, job, size = heapq.heappop(able)
        sizes = job.spec.sizes()
        smaller = reversed(sizes[: bisect_left(sizes, size)])
        less = next((n for n in smaller if n not in job.refused_sizes), None)
        if less is not None:
            made[job], nodes = less, nodes - (size - less)
            heapq.heappush(able, (-less, number, job, less))
    return list(made.items())


def _into(spec: JobSpec, size: int, state: State, window: Window) -> bool:
    """Return whether a job that starts now may run when a window begins."""
    return state.now_s + spec.expected_s(size, exact=state.exact) > window.begin_s


def _kept(job: Job, size: int) -> int:
    """Return the nodes of a job that runs when a window begins."""
    return job.spec.smallest if job.spec.mode.resizable else size


def kept_nodes(state: State, window: Window) -> int:
    """Return the nodes of running jobs that a window does not get, by their expected ends."""
    at = bisect_right(state.ends, window.begin_s, key=itemgetter(0))
    kept = sum(_kept(job, job.size) for _, _, job in state.ends[at:])
    if state.releasing:
        kept += sum(
            job.spec.smallest
            for job in state.running.values()
            if job.requested_size is not None
            and _narrowed_into(job, job.requested_size, state, window)
        )
    return kept


def _narrowed_into(job: Job, size: int, state: State, window: Window) -> bool:
    """Return whether a job that would end before a window runs into it once it is narrowed."""
    if size >= job.size or job.expected_end_s > window.begin_s:
        return False
    now_s, narrow_s = job.time_s(job.size), job.time_s(size)
    if not now_s or narrow_s is None:
        return False
    left_s = (job.expected_end_s - state.now_s) * narrow_s / now_s
    return state.now_s + left_s > window.begin_s


def _run_into(part: Windows, begin_s: float, end_s: float) -> int:
    """Return the number of windows that begin in a time."""
    windows = _windows(part, floor(begin_s / 86400.0))
    return sum(begin_s <= window.begin_s < end_s for window in windows)


@lru_cache(maxsize=4096)
def _fewest_run_into(part: Windows, day: int, span_s: float) -> float:
    """Return the fewest windows that a job runs into if it starts between two of them.

    Its best starts are ends of windows. A job longer than a week has no better start: inf.
    """
    last_s = (day + DAYS_AHEAD) * 86400.0
    if span_s > DAYS_AHEAD * 86400.0:
        return inf
    ends = [window.end_s for window in _windows(part, day) if window.end_s <= last_s]
    return min([_run_into(part, end_s, end_s + span_s) for end_s in ends], default=inf)


def _start_sizes(job: Job) -> Sequence[int]:
    """Return the sizes at which a job may start, rising, up to the preferred one."""
    if not job.spec.mode.any_start:
        return (job.least,)
    sizes = job.spec.sizes()
    return sizes[bisect_left(sizes, job.least) : bisect_right(sizes, job.spec.preferred)]


def fewest_windows(part: Windows, job: Job, state: State) -> float:
    """Return the number of windows of which a job keeps nodes at its best start: 0 for most.

    More than 0 for an oversized one: it is too wide for the nodes that stay on, and too long for
    every time between two windows.
    """
    if _kept(job, job.least) <= state.nodes - part.nodes(state.nodes):
        return 0
    size = [job.least, *_start_sizes(job)][-1]
    span_s = job.spec.expected_s(size, exact=state.exact)
    return _fewest_run_into(part, floor(state.now_s / 86400.0), span_s)


def never_starts(part: Windows, job: Job, state: State) -> bool:
    """Return whether a job is refused, as it is oversized."""
    return part.oversized == "refuse" and fewest_windows(part, job, state) > 0


def keeps_by_need(part: Windows, job: Job, state: State) -> bool:
    """Return whether no plan gives a window the nodes of a running job.

    It is oversized and, where it is rigid, began at one of its best starts; or it is rigid and past
    its limit.
    """
    fewest = fewest_windows(part, job, state)
    if job.spec.mode.resizable:
        return fewest > 0
    begin_s = state.now_s if job.start_s is None else job.start_s
    best = fewest > 0 and _run_into(part, begin_s, job.expected_end_s) <= fewest
    return best or job.limit_end_s <= state.now_s


def _latest_end_s(part: Windows, job: Job, state: State, window: Window) -> float:
    """Return the time until which a job that would keep nodes of the next window has to end.

    The begin of that window; for an oversized job that of the first one that it does not run into
    at its best start; -inf for one that never starts.
    """
    if never_starts(part, job, state):
        return -inf
    fewest = fewest_windows(part, job, state)
    if fewest == inf:
        return inf
    begins = [other.begin_s for other in _windows(part, floor(state.now_s / 86400.0))]
    return begins[bisect_left(begins, window.begin_s) + int(fewest)]


def _ending_size(job: Job, state: State, end_s: float) -> int | None:
    """Return the least size at which a job that starts now ends by a time, None for none."""

    def ends(size: int) -> bool:
        return state.now_s + job.spec.expected_s(size, exact=state.exact) <= end_s

    sizes = _start_sizes(job)
    at = bisect_left(sizes, True, key=ends)
    return sizes[at] if at < len(sizes) and ends(sizes[at]) else None


def _too_long(
    part: Windows, state: State, window: Window, wanted: int
) -> tuple[set[JobId], dict[JobId, int]]:
    """Return the waiting jobs that cannot start, as they would keep nodes of the next window.

    The first of them keeps its nodes: jobs behind it do not take these. The other jobs returned
    can start from the size on at which they end before the window.
    """
    left = state.nodes - wanted - kept_nodes(state, window)
    late, wider = set[JobId](), dict[JobId, int]()
    if left >= state.free_count + state.releasing + len(state.off) + len(state.booting):
        return late, wider
    first = True
    for name, job in state.pending.items():
        least = job.least
        if least > state.nodes or not _into(job.spec, least, state, window):
            continue
        need = _kept(job, least)
        if need <= left:
            continue
        size = _ending_size(job, state, _latest_end_s(part, job, state, window))
        if size is None:
            late.add(name)
            if first and need <= state.nodes - wanted:
                left, first = left - need, False
        elif size > least:
            wider[name] = size
    return late, wider


def overruns(
    part: Windows, state: State, decisions: Sequence[Decision]
) -> tuple[set[JobId], set[JobId]]:
    """Return the starts and the resizes of a pass that would keep nodes of the next window."""
    wanted, window = part.nodes(state.nodes), part.window(state.now_s)
    if window.begin_s <= state.now_s:
        window = part.window(window.end_s)
    left = state.nodes - wanted - kept_nodes(state, window)
    late, narrow = set[JobId](), set[JobId]()
    for decision in decisions if wanted else ():
        if isinstance(decision, Start):
            job, size = state.pending[decision.job], decision.size
            if _into(job.spec, size, state, window):
                need = _kept(job, size)
                end_s = state.now_s + job.spec.expected_s(size, exact=state.exact)
                if need > left and end_s > _latest_end_s(part, job, state, window):
                    late.add(decision.job)
                else:
                    left -= need
        elif isinstance(decision, Resize):
            job = state.running[decision.job]
            if _narrowed_into(job, decision.size, state, window):
                if job.spec.smallest > left:
                    narrow.add(decision.job)
                else:
                    left -= job.spec.smallest
    return late, narrow


def all_on(state: State) -> State:
    """Return the state as if nodes that are off or booting were on, and free.

    They are taken last, booting nodes before nodes that are off.
    """
    asleep = tuple(
        node for node in (*sorted(state.booting), *sorted(state.off)) if node not in state.down
    )
    view = copy.copy(state)
    view.idle = None
    view.vacant, view.asleep, view.needs_pass = bytearray(state.vacant), asleep, True
    view.pool_free = list(state.pool_free)
    view.free_count += len(asleep)
    view.give_back(asleep)
    return view


def longest_boot_s(state: State) -> float:
    """Return the longest boot time of the nodes that are off."""
    return max([model.boot_s for model in set(map(state.model, state.off))], default=0.0)


def after_ends(state: State, wanted: Sequence[Decision]) -> State | None:
    """Return the state after the ends of jobs that are expected within the time of a boot.

    All nodes are on in it, and decided starts have taken place. None without such a job, a waiting
    job or a node that is off.
    """
    gone = _leaving(wanted)
    if not state.off or state.pending.keys() <= gone:
        return None
    boot_s = longest_boot_s(state)
    over = {job.spec.id: job for end_s, _, job in state.ends if end_s - boot_s <= state.now_s}
    if not over:
        return None
    view = all_on(state)
    used = {node for start in wanted if isinstance(start, Start) for node in start.nodes}
    view.take(tuple(used))
    view.free_count -= len(used)
    view.asleep = tuple(node for node in view.asleep if node not in used)
    view.set_pending({name: job for name, job in state.pending.items() if name not in gone})
    view.running = {name: job for name, job in state.running.items() if name not in over}
    view.ends = [entry for entry in state.ends if entry[2].spec.id not in over]
    view.keep_sizes()
    for job in over.values():
        view.free_count += job.size + job.gain
        view.releasing -= job.loss
        view.give_back(job.held)
    view.now_s = max(state.now_s, *[job.expected_end_s for job in over.values()])
    return view


def switched(
    part: NodePowerPart,
    state: State,
    wanted: Sequence[Decision],
    *,
    soon: Iterable[Node] = (),
    starts: bool,
    widens: bool,
) -> list[Decision]:
    """Return the decisions of a pass that are possible now, and nodes to be powered off or on.

    Args:
        wanted: the decisions of the policy for :func:`all_on`.
        soon: nodes that a waiting job will get before they could boot.
        starts: the pass may start jobs.
        widens: the policy may widen running jobs.
    """
    asleep = (state.off | state.booting.keys()) - state.down
    placed = [decision for decision in wanted if isinstance(decision, Start | Resize)]
    now: list[Decision] = [
        decision
        for decision in wanted
        if not (isinstance(decision, Start | Resize) and asleep.intersection(decision.nodes))
    ]
    used = {node for decision in placed for node in decision.nodes}
    idle: list[Node] = []
    if (
        part.powers_off_idle
        and starts
        and not any(decision.code is Reason.POWER for decision in placed)
    ):
        idle = [node for node in state.free_nodes() if node not in used]
        able = [job for until_s, _, job in state.expandable if until_s > state.now_s]
        widening = sum(job.spec.sizes()[-1] - job.size for job in able)  # where that pays
        idle = idle[widening:] if widens else idle
    free = set(idle)
    idle = [slots[0] for slots in _hosts(state, idle) if free.issuperset(slots)]
    early = set(soon) - used
    needed = [slots[0] for slots in _hosts(state, sorted(used & state.off))]
    needed += [s[0] for s in _hosts(state, sorted(early & state.off)) if s[0] not in needed]
    off, on = part(state, idle, needed, _next_need_s(state, wanted))
    if off:
        nodes = tuple(chain(*_hosts(state, off)))
        now.append(PowerOff(nodes, "idle: being off saves more than a boot costs"))
    hosts = _within_cap(state, now, _hosts(state, on))
    if hosts:
        nodes = tuple(chain(*hosts))
        why = "wanted by jobs" if used & set(nodes) else "nodes stay on"
        why = "wanted soon" if early & set(nodes) and not used & set(nodes) else why
        now.append(PowerOn(nodes, why))
    return now


def _hosts(state: State, nodes: Iterable[Node]) -> list[tuple[Node, ...]]:
    """Return the slots of the hosts of some nodes, by host; the nodes where none are shared."""
    if not state.host_slots:
        return [(node,) for node in nodes]
    return list(dict.fromkeys([state.together(node) for node in nodes]))


def _next_need_s(state: State, wanted: Sequence[Decision]) -> float:
    """Return the earliest time at which jobs that wait after a pass may need idle nodes.

    No waiting job can use them before the end of a running job, of a job that starts now, of a
    shrink or of a boot. If no job waits, they may not be needed at all.
    """
    gone = _leaving(wanted)
    if state.pending.keys() <= gone:
        return inf
    if state.releasing:
        return state.now_s
    ends = [state.ends[0][0]] if state.ends else []
    ends += state.booting.values()
    for start in wanted:
        if isinstance(start, Start):
            spec = state.pending[start.job].spec
            span_s = spec.expected_s(start.size, exact=state.exact) * start.slowdown
            ends.append(state.now_s + span_s)
    return min(ends, default=inf)


def _leaving(decisions: Sequence[Decision]) -> set[JobId]:
    """Return the jobs that leave the queue by decisions."""
    return {decision.job for decision in decisions if isinstance(decision, Start | Never)}


def _within_cap(
    state: State, now: Sequence[Decision], on: Sequence[tuple[Node, ...]]
) -> list[tuple[Node, ...]]:
    """Return the hosts to be powered on whose boots fit under the power cap."""
    if state.power_cap_w is None:
        return list(on)
    budget = PowerBudget(state)
    for decision in now:
        if isinstance(decision, Start):
            budget.take(budget.start_w(state.pending[decision.job], decision.size))
        elif isinstance(decision, Resize):
            job = state.running[decision.job]
            budget.take(growth_w(state, job, decision.size, decision.nodes))
    return [nodes for nodes in on if budget.affords(boot_extra_w(state, nodes))]


# --- placement ``consolidate``: jobs are moved together, so that hosts can go off ----------------
#
# After every event at which a policy decides (the paper: at submissions and ends of jobs), hosts
# with free slots are processed as in figure 9: the jobs of one host move to another where they fit,
# by figure 10 to the host whose operating point matches best. A migration is a resize to the same
# size on other slots. The emptied host goes off by part ``node_power`` (figures 11, 12). Only
# programs that use dmr can be moved; the paper moves any program with DMTCP.
#
# The pseudocode has slips, which are read as follows. Figure 9: ``top`` and ``bottom`` are the ends
# of the rest of the sorted list. ``Migration_feasibility`` takes a node and a list: the bottom one
# and those above it, not the top one and one node. The ELSE with "Set top to 0" is that of a
# destination that still has free cores: it stays in the list, which is sorted anew. The ELSE after
# the loop is that of a bottom node without a feasible migration: it leaves the list. Figure 10: a
# bottom node that could both give and take gives, as printed; ``ovfs`` of a host is the highest
# frequency that its jobs request; raising the destination's needs no step of its own, as a host
# runs at the highest requested one. M. Chauhan, N. Parveen, S. K. Saurav, Ganga Prasad G. L.:
# "Energy Efficient Rescheduling Algorithm for High Performance Computing".


@dataclass(slots=True)
class Host:
    """A host with jobs, as planned so far.

    Attributes:
        used: number of its slots that are held.
        clock: the highest frequency that its jobs request, over the highest there is.
        ends_s: expected end of the last of its jobs.
        movable: whether all its jobs may be moved.
        jobs: the jobs that run there.
    """

    at: int
    free: list[Node]
    used: int
    clock: float = 1.0
    ends_s: float = inf
    movable: bool = True
    jobs: list[Job] = field(default_factory=list)


def migrations(hosts: Sequence[Host]) -> Iterator[tuple[Host, Host]]:
    """Yield pairs of hosts, of which the first is emptied into the second (figure 9).

    The caller updates ``used`` and ``free`` of a pair before it takes the next, or sets the
    source's ``movable`` to False to refuse the migration.
    """
    left = sorted((host for host in hosts if host.free), key=_by_free)
    while len(left) > 1:
        bottom = left[-1]
        pair = feasible(bottom, left[:-1])
        if pair is None:
            left.pop()
            continue
        source, destination = pair
        yield pair
        if not source.used:
            left.remove(source)
        if not destination.free:
            left.remove(destination)
        left.sort(key=_by_free)


def feasible(node: Host, others: Sequence[Host]) -> tuple[Host, Host] | None:
    """Return a host that can be emptied and its destination, or None (figure 10)."""
    takes, gives = [], []
    for other in others:
        if node.movable and node.used <= len(other.free):
            takes.append(other)
        elif other.movable and other.used <= len(node.free):
            gives.append(other)
    if takes:
        return node, min(takes, key=lambda other: _match(other, node))
    return (min(gives, key=lambda other: _match(other, node)), node) if gives else None


def _by_free(host: Host) -> tuple[int, int]:
    return len(host.free), host.at


def _match(other: Host, host: Host) -> tuple[float, bool, int, int]:
    """Return the key of a match of operating points: of equals the higher, then the fuller."""
    return abs(other.clock - host.clock), other.clock < host.clock, len(other.free), other.at


class Consolidate(Placement, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lowest free slots; running jobs are moved together where a host can go off for that.

    A migration has to save more, by expected ends, than it and a boot cost.

    Attributes:
        moves: largest number of resizes of a job (0 for none).
        narrow: a job is also narrowed, if no job waits, only that frees a host, and it saves energy
            by the job's run times. Not in the paper.
    """

    moves: int = 10
    narrow: bool = False

    shared: ClassVar[bool] = True
    migrates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.moves < 0:
            raise ValueError(f"expected moves of at least 0, got {self.moves}")

    def __call__(self, state: State) -> Lowest:
        """Open the room of a pass."""
        return Lowest(state)

    def migrations(
        self,
        state: State,
        free: Sequence[Node],
        decided: Sequence[Decision],
        budget: PowerBudget | None,
    ) -> list[Resize]:
        """Return the migrations of a pass."""
        hosts = self._hosts(state, free, decided)
        waits = state.pending.keys() - _leaving(decided)
        until_s = state.ends[0][0] if waits and state.ends else inf
        left = state.resizes_left - sum(isinstance(item, Resize) for item in decided)
        resizes: list[Resize] = []
        for source, destination in migrations(hosts):
            if (
                len(source.jobs) > left - len(resizes)
                or not _pays(state, source, min(until_s, destination.ends_s))
                or not _within(state, source, budget)
            ):
                source.movable = False
                continue
            moved = source.jobs
            for job in moved:
                nodes = _moved(state, job, source, destination)
                resizes.append(Resize(job.spec.id, nodes, _TEXT, Reason.CONSOLIDATES))
            destination.clock = max(destination.clock, source.clock)
            destination.ends_s = max(destination.ends_s, source.ends_s)
            destination.jobs = [*destination.jobs, *moved]
            source.used, source.jobs = 0, []
            for host in hosts:  # one resize of a job at a time
                host.movable &= not any(job in moved for job in host.jobs)
        if self.narrow and not resizes and left > 0 and until_s == inf:
            resizes = _narrowed(state, hosts, left)
        return resizes

    def _hosts(self, state: State, free: Sequence[Node], decided: Sequence[Decision]) -> list[Host]:
        """Return the hosts that are up and have jobs."""
        at, spare = state.site.host, set(free)
        asleep = {at[node] for node in (*state.off, *state.booting)}
        hosts: dict[int, Host] = {}
        movable: dict[int, int] = {}
        running: dict[int, int] = {}
        emptied = {
            at[node]
            for job in state.running.values()
            for node in set(job.nodes).difference(job.requested_nodes or job.nodes)
        }
        resized = {resize.job for resize in decided if isinstance(resize, Resize)}
        for job in state.running.values():
            moves = (
                job.resizable_now and job.resize_count < self.moves and job.spec.id not in resized
            )
            for node, share in zip(
                job.nodes, job.requested_frequencies or (1.0,) * job.size, strict=True
            ):
                host = hosts.get(at[node])
                if host is None:
                    slots = state.host_slots[at[node]]
                    open_slots = [slot for slot in slots if slot in spare]
                    used = len(slots) - len(open_slots)
                    host = hosts[at[node]] = Host(at[node], open_slots, used, 0.0, -inf)
                host.clock = max(host.clock, share)
                host.ends_s = max(host.ends_s, job.expected_end_s)
                if job not in host.jobs:
                    host.jobs.append(job)
                running[host.at] = running.get(host.at, 0) + 1
                movable[host.at] = movable.get(host.at, 0) + moves
        for host in hosts.values():
            host.movable = movable[host.at] == host.used
            if running[host.at] < host.used:  # other jobs start there, or are moved there
                host.ends_s = inf
            if host.at in emptied:  # no job is moved to a host that others leave
                host.free = []
        return [host for host in hosts.values() if host.at not in asleep]


_TEXT = "moved together: a host can go off"


def _moved(state: State, job: Job, source: Host, destination: Host) -> tuple[Node, ...]:
    """Move a job's slots on one host to another and return all its slots."""
    kept = [node for node in job.nodes if state.site.host[node] != source.at]
    number = len(job.nodes) - len(kept)
    taken, destination.free = destination.free[:number], destination.free[number:]
    destination.used += number
    return tuple(sorted((*kept, *taken)))


def _pays(state: State, source: Host, until_s: float) -> bool:
    """Return whether a host that is off saves more than moving its jobs away costs.

    Without a migration one of the hosts would go off after the last of its jobs. While a job is
    moved both its old and its new slots draw power.

    Args:
        until_s: the end of the other host's jobs, or the time at which both may be needed.
    """
    model, now = state.model(state.host_slots[source.at][0]), state.now_s
    price_s = max(job.spec.resize_price_s for job in source.jobs)
    gap_s = min(until_s, source.ends_s) - now - price_s
    if not model.off_pays(gap_s):
        return False
    cost_j = sum(
        [2.0 * job.spec.resize_price_s * mean_w(state, job.spec, job.size) for job in source.jobs]
    )
    boot_j = 0.0 if gap_s == inf else model.boot_j
    return (model.idle_w - model.off_w) * gap_s - boot_j > cost_j


def _within(state: State, source: Host, budget: PowerBudget | None) -> bool:
    """Return whether the power cap has room for both worlds of a host's jobs; take it."""
    growths = (growth_w(state, job, job.size, (Node(-1),)) for job in source.jobs)
    return budget is None or budget.affords(sum(growths))


def _narrowed(state: State, hosts: Sequence[Host], left: int) -> list[Resize]:
    """Return resizes of malleable jobs that free one host, where that saves energy."""
    for host in sorted(hosts, key=lambda host: (host.used, host.at)):
        if not host.movable or len(host.jobs) > left:
            continue
        smaller = {job.spec.id: _without(state, job, host) for job in host.jobs}
        if all(smaller.values()) and _narrow_pays(state, host, smaller):
            text = "narrowed: a host can go off"
            return [
                Resize(job_id, nodes, text, Reason.CONSOLIDATES)
                for job_id, nodes in smaller.items()
            ]
    return []


def _without(state: State, job: Job, host: Host) -> tuple[Node, ...]:
    """Return the slots of a job without a host, none where it does not allow the size."""
    kept = [node for node in job.nodes if state.site.host[node] != host.at]
    sizes = [n for n in job.spec.sizes() if n <= len(kept) and n not in job.refused_sizes]
    return tuple(kept[: sizes[-1]]) if sizes else ()


def _narrow_pays(state: State, host: Host, smaller: dict[JobId, tuple[Node, ...]]) -> bool:
    """Return whether a host that is off saves more than its jobs' longer run times cost."""
    model = state.model(state.host_slots[host.at][0])
    cost_j, off_s = 0.0, 0.0
    for job in host.jobs:
        nodes = smaller[job.spec.id]
        now_s = job.remaining_s(job.size, state.now_s)
        then_s = job.remaining_s(len(nodes), state.now_s)
        if now_s is None or then_s is None:
            return False
        others = len({state.site.host[node] for node in nodes})
        own_j = then_s * mean_w(state, job.spec, len(nodes)) - now_s * mean_w(
            state, job.spec, job.size
        )
        cost_j += own_j + others * model.idle_w * (then_s + job.spec.resize_price_s - now_s)
        off_s = max(off_s, now_s - job.spec.resize_price_s)
    return model.off_pays(off_s) and (model.idle_w - model.off_w) * off_s - model.boot_j > cost_j


# --- part ``frequency``: the frequencies of starts, where nodes have several ---------------------
#
# A part takes the room of a pass and returns a room whose starts have frequencies. A job runs at
# the highest frequency that a job on its host requests (:mod:`rms.core.rules.transition`).


class FrequencyPart:
    """Part ``frequency``: the frequencies of starts.

    Attributes:
        sets: it sets frequencies, which nodes have to state.
    """

    __slots__ = ()

    sets: ClassVar[bool] = True

    def __call__(self, state: State, room: Room) -> Room:
        """Return a room whose starts have frequencies."""
        raise NotImplementedError


class Nominal(FrequencyPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every job at the highest frequency."""

    sets: ClassVar[bool] = False

    def __call__(self, state: State, room: Room) -> Room:
        """Return the room as it is."""
        return room


NOMINAL = Nominal()


class PowerAware(FrequencyPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processes that would wait for slower ones of their job run slower (Guim et al., IV-A-2).

    On nodes whose processes share bandwidth and have frequencies of their own; the same as
    ``power_aware = true`` of a placement there.
    """

    def __call__(self, state: State, room: Room) -> Room:
        """Let the room of shared nodes set frequencies."""
        if isinstance(room, SharedRoom):
            room.power_aware = state.settable_frequencies
        return room


class OptimalOperatingPoint(FrequencyPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every job at the frequency at which it needs least energy (Chauhan et al., section III).

    By its time and power over frequency; a job without operating points requests the highest.

    Attributes:
        slowdown: largest run time there relative to the one at the highest frequency.
    """

    slowdown: float = inf

    def __post_init__(self) -> None:
        if not self.slowdown >= 1.0:
            raise ValueError(f"expected a slowdown of at least 1, got {self.slowdown}")

    def __call__(self, state: State, room: Room) -> Room:
        """Return a room whose starts have the frequency."""
        if not state.settable_frequencies:
            return room
        return LimitedRoom(room, clock=partial(self._clock, state))

    def _clock(self, state: State, job: Job) -> tuple[float, float]:
        """Return the frequency for a job, over the highest one, and the slowdown by it."""
        share = self.asks(state, job)
        return share, longer(state.site.levels, job.spec.operating_points, share)

    def asks(self, state: State, job: Job) -> float:
        """Return the frequency for a job, over the highest one; of equal ones the higher.

        The energy includes the job's share of its host's idle power.
        """
        levels, points = state.site.levels, job.spec.operating_points
        if not points:
            return 1.0
        slots, model = state.least_slots, state.power_models[0]
        own_w = model.slot_w(job.spec, job.spec.preferred, slots) or 1.0
        best, least = 1.0, inf
        for ghz, _ in reversed(levels):
            share = ghz / levels[-1][0]
            time = longer(levels, points, share)
            energy = time * (model.idle_w / slots + own_w * drawn(levels, points, share))
            if time <= self.slowdown * (1.0 + 1e-12) and energy < least:
                best, least = share, energy
        return best
