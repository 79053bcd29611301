"""Shares of nodes that jobs share, by the measured activity of their owners."""

from __future__ import annotations

import random
from math import exp
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import job_spec
from test_energy_books import Daemon

from rms.core.books.measured import ReplacedAgentError
from rms.core.books.shares import Fit, Work, least_squares, split, terms_of, work
from rms.core.books.spans import IDLE
from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Ended,
    Requeued,
    ResizeAsked,
    ResizeBegun,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Started,
    Submitted,
    WorkLost,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower, Speedup
from rms.daemon.store.archive import energy_rows
from rms.wire.messages import Activity, DeviceEnergy, Metered

POWER = NodePower(idle_w=40.0, static_w=50.0, dynamic_w=30.0)
HOSTS = Cluster(
    ("h1", "h2"), tuple(tuple(f"cpu:{core}" for core in range(4)) for _ in "12"), (POWER,) * 2
).split()
"""Two hosts of four slots."""

CORES = Cluster(("n1", "n2", "n3"), (("cpu:0",), ("cpu:1",), ("cpu:2",)), (POWER,) * 3)
"""One machine whose cores are nodes."""

ONE, TWO = JobId("1"), JobId("2")


def job(name: JobId, size: int = 1, most: int = 4) -> JobSpec:
    law = Speedup(law=(100.0, 5.0))
    return job_spec(name, (1, size, most), Mode.FLEXIBLE, speedup=law, resize_every_s=None)


def active(owner: str, cpu_s: float, per_s: float | None = None, misses: float = 0.0) -> Activity:
    """Return activity, with a number of instructions per second of a processor if counted."""
    if per_s is None:
        return Activity(owner, cpu_s)
    return Activity(owner, cpu_s, cpu_s * per_s, cpu_s * 2e9, cpu_s * misses)


def node(joules: float, unseen_s: float = 0.0) -> DeviceEnergy:
    return DeviceEnergy("node", "rapl", joules, unseen_s, joules / 100.0)


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    """Two jobs with one slot each on the first of two hosts, and a report with nothing yet."""
    daemon = Daemon(tmp_path, HOSTS)
    for name in (ONE, TWO):
        daemon.happen(Submitted(0.0, (job(name),)), Started(0.0, name))
    report(daemon, 0)
    report(daemon, 1, node(0.0), active("1", 0.0), active("2", 0.0), active("", 0.0))
    return daemon


def report(daemon: Daemon, number: int, *parts: DeviceEnergy | Activity, agent: str = "a") -> None:
    devices = [part for part in parts if isinstance(part, DeviceEnergy)]
    activity = [part for part in parts if isinstance(part, Activity)]
    daemon.meters.take_report(
        Metered("h1", agent, number, daemon.now_s, "boot", devices, "", activity)
    )


def sources(daemon: Daemon, owner: str) -> set[str]:
    return {row.source for row in energy_rows(daemon.context, [owner]) if row.joules}


# --- the split -----------------------------------------------------------------------------------


def test_jobs_have_the_idle_power_of_none_and_the_rest_by_processor_time(daemon: Daemon) -> None:
    daemon.now_s = 10.0
    report(daemon, 2, node(700.0), active("1", 9.0), active("2", 1.0), active("", 10.0))
    owners = daemon.owners()  # 40 W idle by the model, no idle time was seen
    assert owners["1"] == pytest.approx(270.0) and owners["2"] == pytest.approx(30.0)
    assert sources(daemon, "1") == {"rapl by cpu time"}
    rows = [row for row in energy_rows(daemon.context) if row.source == "rapl by cpu time"]
    assert all(row.estimate for row in rows)
    (own,) = (row for row in rows if row.owner == "2")
    assert 0.3 < own.uncertainty_j < 270.0
    daemon.balances()
    daemon.rows_add_up()


def test_a_job_that_waits_has_nearly_nothing(daemon: Daemon) -> None:
    daemon.now_s = 10.0
    report(daemon, 2, node(700.0), active("1", 10.0), active("2", 0.0), active("", 10.0))
    assert daemon.owners()["2"] == 0.0


def test_activity_of_no_job_belongs_to_the_idle_node(daemon: Daemon) -> None:
    daemon.now_s = 10.0
    report(daemon, 2, node(700.0), active("1", 2.0), active("2", 2.0), active("", 8.0))
    owners = daemon.owners()
    assert owners["1"] == owners["2"] == pytest.approx(75.0)
    assert owners[IDLE] == pytest.approx(400.0 + 150.0 + 40.0 * 10.0)  # and the other host


def test_without_activity_of_a_running_job_the_model_splits(daemon: Daemon) -> None:
    daemon.now_s = 10.0
    report(daemon, 2, node(700.0), active("1", 9.0), active("", 9.0))
    owners = daemon.owners()
    assert owners["1"] == owners["2"] and sources(daemon, "1") == {"rapl"}
    daemon.now_s = 20.0  # the second job is back
    report(daemon, 3, node(1400.0), active("1", 19.0), active("2", 0.0), active("", 19.0))
    assert sources(daemon, "1") == {"rapl", "rapl by cpu time"}
    daemon.rows_add_up()


def test_reports_without_activity_count_none_twice(daemon: Daemon) -> None:
    daemon.now_s = 10.0
    report(daemon, 2, node(700.0), active("1", 9.0), active("2", 1.0), active("", 10.0))
    daemon.now_s = 20.0
    report(daemon, 3, node(1400.0))
    daemon.now_s = 30.0  # the time of both intervals is in this one, of which one is not known
    report(daemon, 4, node(2100.0), active("1", 10.0), active("2", 20.0), active("", 30.0))
    before = daemon.owners()["1"]
    daemon.now_s = 40.0
    report(daemon, 5, node(2800.0), active("1", 10.0), active("2", 30.0), active("", 40.0))
    assert daemon.owners()["1"] == pytest.approx(before)
    daemon.rows_add_up()


def test_a_counter_that_is_late_has_the_activity_of_all_its_time(daemon: Daemon) -> None:
    """A meter that moves every 20 s, and is reported every 10 s."""
    daemon.now_s = 10.0
    report(daemon, 2, node(0.0), active("1", 10.0), active("2", 0.0), active("", 10.0))
    daemon.now_s = 20.0
    report(daemon, 3, node(1400.0), active("1", 10.0), active("2", 10.0), active("", 20.0))
    owners = daemon.owners()
    assert owners["1"] == pytest.approx(owners["2"])
    daemon.rows_add_up()


def test_of_one_agent_after_another_activity_counts_from_its_begin(daemon: Daemon) -> None:
    daemon.now_s = 10.0
    report(daemon, 2, node(700.0), active("1", 9.0), active("2", 1.0), active("", 10.0))
    daemon.killed()
    report(daemon, 0, agent="b")
    before = daemon.owners()
    daemon.now_s = 20.0
    work = active("1", 1.0), active("2", 9.0), active("", 10.0)
    report(daemon, 1, node(1400.0), *work, agent="b")
    with pytest.raises(ReplacedAgentError):
        report(daemon, 3, node(1400.0), active("1", 99.0))
    gained = {name: joules - before[name] for name, joules in daemon.owners().items()}
    assert gained["2"] == pytest.approx(9 * gained["1"], rel=0.2)
    daemon.rows_add_up()


def test_a_killed_daemon_goes_on_from_the_activity_it_has_booked(daemon: Daemon) -> None:
    daemon.now_s = 10.0
    report(daemon, 2, node(700.0), active("1", 9.0), active("2", 1.0), active("", 10.0))
    daemon.killed()
    before = daemon.owners()
    daemon.now_s = 20.0
    report(daemon, 3, node(1400.0), active("1", 9.0), active("2", 11.0), active("", 20.0))
    assert daemon.owners()["1"] == pytest.approx(before["1"])
    daemon.rows_add_up()


def test_donor_and_receiver_within_one_interval(daemon: Daemon) -> None:
    """A slot passes from one job to another while the meter counts: each has what it did."""
    daemon.happen(ResizePoint(2.0, ONE), ResizeAsked(2.0, ONE, 3), ResizeBegun(3.0, ONE))
    daemon.happen(Resized(4.0, ONE), Ended(6.0, TWO, "COMPLETED"))
    daemon.now_s = 10.0
    report(daemon, 2, node(1000.0), active("1", 18.0), active("2", 2.0), active("", 20.0))
    owners = daemon.owners()
    assert owners["1"] == pytest.approx(9 * owners["2"])
    assert owners["1"] + owners["2"] == pytest.approx(600.0)
    resize_j = daemon.context.scheduler.energy.resize_j(ONE, 1)
    assert resize_j is not None and 0.0 < resize_j < owners["1"]
    daemon.balances()
    daemon.rows_add_up()


def test_by_counters_a_job_that_misses_the_cache_draws_more(daemon: Daemon) -> None:
    """Processor time is the same; what each kind draws was seen while the other stood still."""
    at, joules, cpu = 1, 0.0, {"1": 0.0, "2": 0.0}
    for _ in range(3):
        for owner, watts in (("1", 60.0), ("2", 90.0)):
            for _ in range(20):
                at, joules, daemon.now_s = at + 1, joules + watts, daemon.now_s + 1.0
                cpu[owner] += 1.0
                works = active("1", cpu["1"], 3e9), active("2", cpu["2"], 1e9, 5e7)
                host = Activity("", sum(cpu.values()))
                report(daemon, at, node(joules), *works, host)
    before = daemon.owners()
    for _ in range(20):
        at, joules, daemon.now_s = at + 1, joules + 110.0, daemon.now_s + 1.0
        cpu = {owner: cpu_s + 1.0 for owner, cpu_s in cpu.items()}
        works = active("1", cpu["1"], 3e9), active("2", cpu["2"], 1e9, 5e7)
        report(daemon, at, node(joules), *works, Activity("", sum(cpu.values())))
    gained = {name: own - before[name] for name, own in daemon.owners().items()}
    assert gained["1"] == pytest.approx(20 * 20.0, rel=0.1)
    assert gained["2"] == pytest.approx(20 * 50.0, rel=0.1)
    assert sources(daemon, "2") == {"rapl by counters"}
    daemon.rows_add_up()


def test_cores_of_one_machine_keep_their_idle_power(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, CORES)
    for name in (ONE, TWO):
        daemon.happen(Submitted(0.0, (job(name, most=3),)), Started(0.0, name))
    report = daemon.meters.take_report
    report(Metered("", "a", 0, 0.0, "boot"))
    device = DeviceEnergy("package-0", "rapl", 0.0)
    report(Metered("", "a", 1, 0.0, "boot", [device], "", [active("1", 0.0), active("2", 0.0)]))
    daemon.now_s = 10.0
    device = DeviceEnergy("package-0", "rapl", 2400.0)
    report(Metered("", "a", 2, 10.0, "boot", [device], "", [active("1", 10.0), active("2", 5.0)]))
    owners = daemon.owners()
    assert owners == {
        "1": pytest.approx(400.0 + 800.0),
        "2": pytest.approx(400.0 + 400.0),
        IDLE: pytest.approx(400.0),
    }
    daemon.rows_add_up()


# --- the fit -------------------------------------------------------------------------------------


def test_a_fit_learns_the_idle_power_and_what_each_figure_adds() -> None:
    def watts(cpu_s: float, per_s: float, misses: float) -> float:
        return 55.0 + cpu_s * (4.0 + 2.0 * per_s * 1e-9 + 3.0 * misses * 1e-7)

    fit = Fit()
    for at in range(200):
        own = at % 5 * 0.5, (1e9, 3e9)[at % 2], (1e6, 4e7, 0.0)[at % 3]
        fit.observe(1.0, watts(*own), [work(active("1", *own), None)], idle_w=40.0)
    fitted = fit.coefficients("counters", 40.0)
    assert fitted[0] == pytest.approx(55.0, rel=0.05)
    for own in ((2.0, 1e9, 4e7), (1.0, 3e9, 0.0), (1.5, 2e9, 2e7)):
        (terms,) = terms_of([work(active("1", *own), None)], 1.0)
        added_w = sum(a * x for a, x in zip(fitted[1:], terms, strict=True))
        assert added_w == pytest.approx(watts(*own) - 55.0, rel=0.1)


def test_a_little_processor_time_has_its_part_of_what_the_first_core_wakes() -> None:
    def watts(cpu_s: float) -> float:
        return 3.0 * cpu_s + 8.0 * (1.0 - exp(-cpu_s / 1.5))

    fit = Fit()
    for at in range(300):
        cpu_s = (0.0, 0.5, 1.0, 2.0, 3.0)[at % 5]
        fit.observe(1.0, 55.0 + watts(cpu_s), [Work(cpu_s, None)], idle_w=55.0)
    works = {"1": Work(0.2, None), "2": Work(1.0, None)}
    shares = split(fit, 1.0, 55.0 + watts(1.2), works, 55.0)
    alone_j, added_j = watts(0.2), watts(1.2) - watts(1.0)
    assert shares.dynamic_j["1"] == pytest.approx((alone_j + added_j) / 2, rel=0.15)


def test_a_meter_of_a_whole_node_gives_a_gpu_to_the_job_that_computes_on_it() -> None:
    def between(gpu_s: float) -> Work:
        return work(Activity("1", 0.5 + gpu_s, gpu_s={"gpu-0": 7.0 + gpu_s}), gpus)

    gpus = Activity("1", 0.5, gpu_s={"gpu-0": 7.0})
    fit = Fit()
    for at in range(200):
        cpu_s, gpu_s = at % 4 * 0.5, at % 3 * 0.4
        works = [Work(cpu_s, None), between(gpu_s)]
        fit.observe(1.0, 55.0 + 6.0 * (cpu_s + gpu_s) + 250.0 * gpu_s, works, idle_w=55.0)
    shares = split(fit, 1.0, 55.0 + 6.0 + 256.0, {"1": between(1.0), "2": Work(1.0, None)}, 55.0)
    assert shares.dynamic_j == {
        "1": pytest.approx(256.0, rel=0.02),
        "2": pytest.approx(6.0, rel=0.2),
    }


@given(
    rows=st.lists(st.tuples(*[st.floats(0.0, 8.0) for _ in range(5)]), min_size=1, max_size=12),
    real=st.tuples(*[st.floats(0.0, 50.0) for _ in range(5)]),
)
@settings(max_examples=60, deadline=None)
def test_least_squares_are_not_negative_and_no_worse_than_the_truth(
    rows: list[tuple[float, ...]], real: tuple[float, ...]
) -> None:
    measured = [sum(a * x for a, x in zip(real, row, strict=True)) for row in rows]
    xx = [[sum(row[a] * row[b] for row in rows) for b in range(5)] for a in range(5)]
    xy = [sum(row[a] * y for row, y in zip(rows, measured, strict=True)) for a in range(5)]
    fitted = least_squares(xx, xy, range(5))
    assert min(fitted) >= 0.0

    def squares(law: tuple[float, ...] | list[float]) -> float:
        sums = [sum(a * x for a, x in zip(law, row, strict=True)) for row in rows]
        return sum((own - y) ** 2 for own, y in zip(sums, measured, strict=True))

    assert squares(fitted) <= squares([0.0] * 5) + 1e-9
    assert squares(fitted) == pytest.approx(0.0, abs=1e-3 * (1.0 + squares([0.0] * 5)))


figures = st.one_of(st.none(), st.tuples(*[st.floats(0.0, 1e10) for _ in range(3)]))
works = st.dictionaries(
    st.sampled_from(["", "1", "2", "3"]),
    st.builds(Work, st.floats(0.0, 100.0), figures, st.floats(0.0, 100.0)),
    min_size=1,
)


@given(
    seen=st.lists(st.tuples(st.floats(0.01, 60.0), st.floats(0.0, 1e5), works), max_size=5),
    seconds=st.floats(0.01, 600.0),
    joules=st.floats(1e-3, 1e6),
    own=works,
    idle_w=st.floats(0.0, 500.0),
)
@settings(max_examples=100, deadline=None)
def test_a_split_adds_up_whatever_was_seen(
    seen: list[tuple[float, float, dict[str, Work]]],
    seconds: float,
    joules: float,
    own: dict[str, Work],
    idle_w: float,
) -> None:
    fit = Fit()
    for span_s, counted_j, each in seen:
        fit.observe(span_s, counted_j, each.values(), idle_w)
    parts = split(fit, seconds, joules, own, idle_w)
    assert min(parts.base_j, *parts.dynamic_j.values()) >= 0.0
    assert parts.base_j + sum(parts.dynamic_j.values()) == pytest.approx(joules, rel=1e-9)
    assert all(0.0 <= error_j <= joules * (1 + 1e-9) for error_j in parts.errors_j.values())


# --- anything in any order -----------------------------------------------------------------------


class Faulty:
    """Jobs on shared slots and the agents of their hosts, whose faults are drawn at random."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.daemon, self.draw, self.jobs = Daemon(folder, HOSTS), random.Random(seed), 0
        self.counted_j = dict.fromkeys(("h1", "h2"), 0.0)
        self.unseen_s = dict.fromkeys(self.counted_j, 0.0)
        self.booked_j = dict.fromkeys(self.counted_j, 0.0)
        self.agents = dict.fromkeys(self.counted_j, 0)
        self.numbers = dict.fromkeys(self.counted_j, 0)
        self.works: dict[str, dict[str, Activity]] = {host: {} for host in self.counted_j}
        self.old: list[Metered] = []
        self.resizes = self.splits = 0
        for host in self.counted_j:
            self.send(host)
        for _ in range(3):
            self.submit(0.0)

    @property
    def now_s(self) -> float:
        return max(self.daemon.now_s, self.daemon.context.state.now_s)

    def message(self, host: str) -> Metered:
        devices = [node(self.counted_j[host], self.unseen_s[host])] if self.numbers[host] else []
        work = list(self.works[host].values()) if self.draw.random() < 0.9 else []
        agent = f"{host}-{self.agents[host]}"
        number, self.numbers[host] = self.numbers[host], self.numbers[host] + 1
        return Metered(host, agent, number, self.daemon.now_s, "boot", devices, "", work)

    def send(self, host: str) -> None:
        self.old.append(self.message(host))
        self.take(self.old[-1])

    def take(self, message: Metered) -> None:
        """Take a report in, and count what the counter has counted since the last one."""
        hosts = self.daemon.context.scheduler.energy.measured.hosts
        known = hosts.get(message.node)
        device = None if known is None else known.devices.get("node")
        before_j, number = (0.0, -1) if device is None else (device.energy.joules, known.number)
        if device is not None and known.agent != message.agent:
            number = -1
        self.daemon.meters.take_report(message)
        if message.devices and message.number > number:
            self.booked_j[message.node] += max(0.0, message.devices[0].joules - before_j)

    def step(self) -> None:
        """Do one thing."""
        state, draw = self.daemon.context.state, self.draw
        running = sorted(state.running)
        often = {"time": 8, "report": 8, "resize": 9, "over": 12, "submit": 2, "end": 1}
        often |= dict.fromkeys(("repeat", "agent", "kill", "lose"), 1)
        (kind,) = draw.choices(list(often), list(often.values()))
        at_s = self.now_s
        if kind == "time":
            self.time(draw.choice([0.2, 1.0, 1.0, 5.0, 90.0]))
        elif kind == "submit":
            self.submit(at_s)
        elif kind in ("repeat", "report", "agent"):
            host = draw.choice(sorted(self.counted_j))
            if kind == "repeat":
                try:
                    self.take(draw.choice(self.old))
                except ReplacedAgentError:
                    return
            if kind == "agent":
                self.agents[host], self.numbers[host] = self.agents[host] + 1, 0
                self.works[host].clear()
                hosts = self.daemon.context.scheduler.energy.measured.hosts
                known = hosts[host].devices  # an agent goes on from what is booked
                if draw.random() < 0.3 or not known:  # or after a boot, from nothing
                    self.counted_j[host], self.unseen_s[host] = 0.0, 0.0
            self.send(host)
        elif kind == "kill":
            before = self.daemon.owners()
            self.daemon.killed()
            assert self.daemon.owners() == pytest.approx(before, rel=1e-9, abs=1e-6)
        elif running:
            self.change(kind, JobId(draw.choice(running)), at_s)
        for each in list(state.running.values()):
            if each.start_s is None:
                self.daemon.happen(Started(self.now_s, each.spec.id))

    def submit(self, at_s: float) -> None:
        self.jobs += 1
        name = JobId(str(self.jobs))
        self.daemon.happen(Submitted(at_s, (job(name, self.draw.randint(1, 3)),)))

    def time(self, seconds: float) -> None:
        """Let meters count and jobs compute, or stand still."""
        self.daemon.now_s = self.now_s + seconds
        counts = self.draw.random() < 0.5
        for host in self.counted_j:
            self.counted_j[host] += self.draw.choice([0.0, 60.0, 130.0]) * seconds
            if self.draw.random() < 0.1:
                self.unseen_s[host] += seconds
            for owner in ("", *self.daemon.context.state.running):
                cpu_s = self.draw.choice([0.0, 0.3, 1.0, 3.9]) * seconds
                self.add(host, owner, cpu_s, self.draw.choice([5e8, 4e9]) if counts else None)

    def add(self, host: str, owner: str, cpu_s: float, per_s: float | None) -> None:
        before = self.works[host].get(owner, Activity(owner, 0.0, 0.0, 0.0, 0.0))
        more = active(owner, cpu_s, per_s, 1e6)
        sums = [
            None if old is None or new is None else old + new
            for old, new in (
                (before.instructions, more.instructions),
                (before.cycles, more.cycles),
                (before.misses, more.misses),
            )
        ]
        self.works[host][owner] = Activity(owner, before.cpu_s + cpu_s, *sums)

    def change(self, kind: str, name: JobId, at_s: float) -> None:
        """Change a running job."""
        own = self.daemon.context.state.running[name]
        if kind == "end":
            again = self.draw.random() < 0.3
            self.daemon.happen(Requeued(at_s, name) if again else Ended(at_s, name, "COMPLETED"))
        elif kind == "lose" and own.requested_size is None:
            self.daemon.happen(WorkLost(at_s, name, at_s - 5.0, at_s - 1.0, 1))
        elif kind == "resize" and own.requested_size is None:
            size = self.draw.randint(1, 4)
            self.daemon.happen(ResizePoint(at_s, name), ResizeAsked(at_s, name, size))
        elif kind == "over" and own.requested_size is not None:
            if not own.resize_begun:
                self.daemon.happen(ResizeBegun(at_s, name))
            elif self.draw.random() < 0.8:
                self.daemon.happen(Resized(at_s, name))
                self.resizes += 1
            else:
                self.daemon.happen(ResizeRolledBack(at_s, name))


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_books_of_shared_nodes_add_up_to_the_counter(tmp_path: Path, first: int) -> None:
    """200 sequences of resizes, kills of the daemon and faults of meters."""
    resizes, ways = 0, set[str]()
    for seed in range(first, first + 20):
        (folder := tmp_path / str(seed)).mkdir()
        world = Faulty(folder, seed)
        for _ in range(60):
            world.step()
            world.daemon.balances()
        world.daemon.rows_add_up()
        for host, known in world.daemon.context.scheduler.energy.measured.hosts.items():
            for device in known.devices.values():
                assert device.booked_j == pytest.approx(world.booked_j[host], rel=1e-9, abs=1e-9)
        resizes += world.resizes
        ways |= {row.source for row in world.daemon.journal.energy()}
        world.daemon.journal.close()
    assert resizes > 10, resizes
    assert {"rapl by cpu time", "rapl by counters", "rapl", "model"} <= ways


def test_a_gpu_that_jobs_share_is_split_by_the_time_it_computes_for_each(tmp_path: Path) -> None:
    """Processor time has no part in it, and without its processes the model splits."""
    daemon = Daemon(tmp_path, HOSTS)
    for name in (ONE, TWO):
        daemon.happen(Submitted(0.0, (job(name),)), Started(0.0, name))

    def gpu(joules: float) -> DeviceEnergy:
        return DeviceEnergy("gpu-0", "nvml-counter", joules)

    def at(gpu_s: dict[str, float]) -> list[Activity]:
        cpu_s = {"1": 0.0, "2": 9.0 * daemon.now_s, "": 9.0 * daemon.now_s}
        return [
            Activity(owner, own, gpu_s={"gpu-0": gpu_s[owner]} if owner in gpu_s else {})
            for owner, own in cpu_s.items()
        ]

    report(daemon, 0)
    report(daemon, 1, gpu(0.0), *at({"": 0.0}))
    daemon.now_s = 10.0
    report(daemon, 2, gpu(3000.0), *at({"1": 9.0, "": 9.0}))
    assert sources(daemon, "1") == {"nvml-counter by gpu time"}
    (own,) = (r for r in energy_rows(daemon.context, ["1"]) if r.source != "model")
    assert own.joules > 2000.0 and own.uncertainty_j > 0.0
    assert daemon.owners()["2"] == 0.0
    daemon.now_s = 20.0
    report(daemon, 3, gpu(6000.0), *at({}))
    assert "nvml-counter" in sources(daemon, "2")
    daemon.balances()
    daemon.rows_add_up()
