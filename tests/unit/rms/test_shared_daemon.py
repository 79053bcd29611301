"""A daemon whose jobs share nodes: in process, with a launcher that starts nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from idle import Bench
from processes import ROOT
from routed import SCRIPT, routed
from submissions import hand_in

from rms.core.books.measured import Measured
from rms.core.model.cluster import Cluster
from rms.core.model.contention import Processors, SharedNode
from rms.core.model.events import (
    Ended,
    Later,
    PowerCapSet,
    Resize,
    ResizeBegun,
    Resized,
    ResizePoint,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower
from rms.core.policies import PolicyError, adjusted, named
from rms.core.scheduler.snapshot import freeze, thaw
from rms.daemon.ask import views
from rms.daemon.heart import Daemon
from rms.daemon.nodes.energy import devices_of
from rms.daemon.restart.recover import replay
from rms.daemon.store.archive import energy_rows
from rms.daemon.store.journal import Journal, JournalError
from rms.formats.config import FileError, read_cluster, read_workload
from rms.formats.energy import check_energies, owner_energies
from rms.formats.values import expand, fold_slots
from rms.launch import local
from rms.wire.messages import DeviceEnergy, Metered

POWER = NodePower(idle_w=10.0, static_w=30.0, dynamic_w=20.0, off_w=1.0)
WHOLE = Cluster(("n1", "n2"), (("cpu:0", "cpu:0"), ("cpu:1", "cpu:1")), (POWER,) * 2, (10.0, 10.0))
CLUSTER = """name = "two"
[[nodes]]
name = "n[1-2]"
cores = 1
slots = 2
memory_bandwidth_gb_s = 10.0
"""


def text(part: str, **parameters: object) -> str:
    return adjusted(named("easy"), placement={"part": part, **parameters}).text


LESS, FIRST = text("less-consume"), text("first-fit-shared")


class TwoHosts(Bench):
    """A daemon on two hosts of two slots each."""

    def __init__(self, journal: Journal, folder: Path, policy: str = LESS) -> None:
        super().__init__(journal, folder, WHOLE.split(), policy)

    def resumed(self, policy: str = "", cluster: Cluster | None = None, where: str = "") -> Daemon:
        self.policy, self.cluster = policy or self.policy, cluster or WHOLE.split()
        return super().resumed(where=where)

    def submit(
        self,
        number: int,
        size: int,
        gb_s: float,
        mode: Mode = Mode.FIXED,
        power_w: float | None = None,
    ) -> JobId:
        name = JobId(str(number))
        high = size + 1 if mode is Mode.MALLEABLE else size
        given = {"bandwidth_gb_s": gb_s, "power_w": power_w}
        spec = JobSpec(name, self.now_s, size, high, size, mode, **given)
        hand_in(self.daemon, [spec])
        return name

    def slots(self, name: JobId) -> list[str]:
        (row,) = [row for row in views.jobs(self.daemon.context) if row.id == name]
        return row.nodes

    def states(self) -> list[tuple[str, str, str | None, int]]:
        found = views.nodes(self.daemon.context)
        return [(row.name, row.state, row.job, row.allocated) for row in found]

    def balances(self) -> None:
        context = self.daemon.context
        context.scheduler.energy.check(self.now_s)
        found = views.acct(context)
        check_energies(found, owner_energies(energy_rows(context)), whole=True)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TwoHosts]:
    with Journal.open(tmp_path / "journal") as journal:
        yield TwoHosts(journal, tmp_path)
        assert replay(journal.read()).differing == []


@pytest.mark.promise("shared-nodes")
def test_power_slot_gives_slots_under_the_cap_of_each_host(tmp_path: Path) -> None:
    """Chiesi et al., figure 2: 60 W for a host that draws 10 W; the smallest slot takes a job."""
    policy = text("rms.studies.chiesi:PowerSlot", cap_w=60.0, shared=True)
    with Journal.open(tmp_path / "journal") as journal:
        bench = TwoHosts(journal, tmp_path, policy)
        jobs = [bench.submit(n, 1, 0.0, power_w=w) for n, w in enumerate((20, 25, 20, 40), 1)]
        assert [bench.slots(name) for name in jobs] == [["n2/0"], ["n2/1"], ["n1/0"], []]
        (row,) = [row for row in views.jobs(bench.daemon.context) if row.id == jobs[3]]
        assert row.reason.startswith("PowerCap")
        bench.now_s += 10.0
        bench.daemon.handle(Ended(bench.now_s, jobs[2], "COMPLETED"))
        assert bench.slots(jobs[3]) == ["n1/0"]
        bench.balances()
        with pytest.raises(PolicyError, match="expected a policy whose jobs share nodes, as here"):
            bench.daemon.set_policy(text("rms.studies.chiesi:PowerSlot", cap_w=60.0))
        assert replay(journal.read()).differing == []


@pytest.mark.promise("shared-nodes")
def test_shipped_policies_of_a_cap_put_several_jobs_on_a_node(tmp_path: Path) -> None:
    """850 W of each host: 10 idle, 20 for a busy slot of a job that states none."""
    for policy in ("p-bff", "p-fifo"):
        with Journal.open(tmp_path / policy) as journal:
            bench = TwoHosts(journal, tmp_path, policy)
            jobs = [bench.submit(n, 1, 0.0, power_w=w) for n, w in enumerate((820, None, None), 1)]
            assert [bench.slots(name) for name in jobs] == [["n2/0"], ["n2/1"], ["n1/0"]]
            over = [bench.submit(4, 1, 0.0, power_w=821.0), bench.submit(5, 1, 0.0, power_w=819.0)]
            wait = [["n1/1"], []] if policy == "p-bff" else [[], []]
            assert [bench.slots(name) for name in reversed(over)] == wait
            assert replay(journal.read()).differing == []


@pytest.mark.promise("shared-nodes")
def test_less_consume_pairs_jobs_by_their_bandwidth(bench: TwoHosts) -> None:
    greedy = [bench.submit(n, 1, 9.0) for n in (1, 2)]
    modest = [bench.submit(n, 1, 0.5) for n in (3, 4)]
    assert [bench.slots(name) for name in (*greedy, *modest)] == [
        ["n1/0"],
        ["n2/0"],
        ["n1/1"],
        ["n2/1"],
    ]
    assert bench.states() == [("n1", "allocated", "1,3", 2), ("n2", "allocated", "2,4", 2)]
    bench.now_s += 50.0
    bench.balances()


def test_first_fit_packs_them_and_hosts_have_states_as_slurms(bench: TwoHosts) -> None:
    bench.daemon.set_policy(FIRST)
    greedy = [bench.submit(n, 1, 9.0) for n in (1, 2)]
    assert [bench.slots(name) for name in greedy] == [["n1/0"], ["n1/1"]]
    assert bench.states() == [("n1", "allocated", "1,2", 2), ("n2", "idle", None, 0)]
    bench.now_s += 1.0
    bench.daemon.handle(Ended(bench.now_s, greedy[0], "COMPLETED"))
    assert bench.states()[0] == ("n1", "mixed", "2", 1)
    bench.daemon.nodes.drain(["n1"], drained=True)
    assert bench.states()[0] == ("n1", "draining", "2", 1)
    assert bench.slots(bench.submit(3, 2, 0.1)) == ["n2/0", "n2/1"]
    bench.daemon.handle(Ended(bench.now_s, greedy[1], "COMPLETED"))
    assert bench.states()[0] == ("n1", "drained", None, 0)
    bench.submit(4, 1, 0.1)
    assert bench.slots(JobId("4")) == []
    bench.daemon.nodes.drain(["n1"], drained=False)
    assert bench.slots(JobId("4")) == ["n1/0"]
    with pytest.raises(ValueError, match="expected nodes of this cluster, got n1/0"):
        bench.daemon.nodes.drain(["n1/0"], drained=True)


def test_power_of_jobs_comes_on_top_of_that_of_their_hosts(bench: TwoHosts) -> None:
    """Two slots busy add 40 W to the 10 W that an idle host draws: 20 W each."""
    name = bench.submit(1, 3, 0.0)
    bench.now_s += 10.0
    books, jobs = bench.daemon.scheduler.books(bench.now_s), views.jobs(bench.daemon.context)
    assert (books.idle_j, books.busy_j, books.cluster_j) == (200.0, 600.0, 800.0)
    assert jobs[0].energy_j == 600.0
    rows = {(row.node, row.owner): row.joules for row in energy_rows(bench.daemon.context)}
    assert rows["n1", "idle"] == 100.0 and rows["n1/0", name] == 200.0
    bench.balances()
    bench.daemon.handle(Ended(bench.now_s, name, "COMPLETED"))
    bench.now_s += 5.0
    bench.balances()


def test_a_meter_of_a_host_is_split_over_it_and_its_slots(bench: TwoHosts) -> None:
    cluster = bench.daemon.context.cluster
    here = [DeviceEnergy("package-0", "rapl", 0.0)]
    assert devices_of(Metered("n2", "a", 1, 0.0, "b", here), cluster, Measured()) == {
        "package-0": ["n2", "n2/0", "n2/1"]
    }
    bench.submit(1, 1, 0.0)
    meters = bench.daemon.meters
    for number, joules in ((0, 0.0), (1, 0.0), (2, 90.0)):
        bench.now_s += 10.0
        devices = [DeviceEnergy("package-0", "rapl", joules)] if number else []
        meters.take_report(Metered("n1", "a", number, bench.now_s, "boot", devices))
    (job,) = views.jobs(bench.daemon.context)
    # 20 s by the model; then 90 J, of which the model has 200 for the job and 100 for the host.
    assert job.energy_j == pytest.approx(20 * 20.0 + 60.0)
    bench.balances()
    bench.daemon = bench.resumed(LESS)
    (job,) = views.jobs(bench.daemon.context)
    assert job.energy_j == pytest.approx(20 * 20.0 + 60.0)
    bench.balances()


def test_a_user_resizes_a_job_on_shared_slots(bench: TwoHosts) -> None:
    bench.submit(2, 1, 9.0)
    name, daemon = bench.submit(1, 1, 0.5, Mode.MALLEABLE), bench.daemon
    assert bench.slots(name) == ["n1/1"]
    daemon.handle(ResizePoint(bench.now_s, name))
    decision = daemon.resize(name, 2)
    assert isinstance(decision, Resize) and decision.nodes == (1, 2)
    daemon.handle(ResizeBegun(bench.now_s, name))
    bench.now_s += 5.0
    daemon.handle(Resized(bench.now_s, name))
    assert bench.slots(name) == ["n1/1", "n2/0"]
    assert daemon.context.state.pool_free == [0, 1]
    assert daemon.context.state.pool_gb_s == [9.5, 0.5]
    bench.balances()
    assert isinstance(daemon.resize(name, 3), Later)
    move = daemon.resize(name, 2, on=["n2"])
    assert isinstance(move, Resize) and move.nodes == (2, 3)
    daemon.handle(ResizeBegun(bench.now_s, name))
    daemon.handle(Resized(bench.now_s, name))
    assert daemon.context.state.pool_gb_s == [9.0, 1.0]
    daemon.handle(Ended(bench.now_s, name, "COMPLETED"))
    assert daemon.context.state.pool_free == [1, 2]
    assert daemon.context.state.pool_gb_s == [9.0, 0.0]


def test_a_daemon_stays_with_shared_nodes_or_whole_ones(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal") as journal:
        bench = TwoHosts(journal, tmp_path)
        with pytest.raises(PolicyError, match="expected a policy whose jobs share nodes"):
            bench.daemon.set_policy("easy")
        bench.daemon.set_policy(FIRST)
        bench.submit(1, 3, 1.0)
        with pytest.raises(PolicyError, match="expected a policy that gives whole nodes, as here"):
            bench.resumed(LESS, WHOLE)
        with pytest.raises(PolicyError, match="expected memory_bandwidth_gb_s of nodes"):
            bench.resumed(LESS, Cluster(WHOLE.names, WHOLE.slots, WHOLE.power).split())
    with Journal.open(tmp_path / "journal") as journal:
        bench.journal = journal
        with pytest.raises(JournalError, match="expected a policy that lets jobs share nodes, as"):
            bench.resumed("easy", WHOLE)
        bench.daemon = bench.resumed(LESS)
        # Its processes are gone.
        assert bench.states() == [("n1", "idle", None, 0), ("n2", "idle", None, 0)]


def test_the_next_allocation_is_shared_too(tmp_path: Path) -> None:
    """As a pilot's: three nodes of one slot after two of two; jobs wait again."""
    with Journal.open(tmp_path / "journal") as journal:
        bench = TwoHosts(journal, tmp_path)
        bench.daemon.nodes.drain(["n2"], drained=True)
        name = bench.submit(1, 2, 1.0)
        assert bench.slots(name) == ["n1/0", "n1/1"]
        bench.now_s += 10.0
        bench.balances()
        other = Cluster(("n2", "n3", "n4"), (("cpu:0",),) * 3, (POWER,) * 3, (10.0,) * 3).split()
        bench.daemon = bench.resumed(LESS, other, "slurm:2")
        assert bench.states() == [
            ("n2", "drained", None, 0),
            ("n3", "idle", None, 0),
            ("n4", "idle", None, 0),
        ]
        again = bench.submit(2, 2, 1.0)
        assert bench.slots(again) == ["n3/0", "n4/0"]
        bench.now_s += 10.0
        bench.balances()
        assert replay(journal.read()).differing == []


def kinds(*lines: str) -> str:
    """Return a cluster file of two nodes with 12 GB/s and these kinds of processors."""
    text = CLUSTER.replace("10.0", "12.0")
    return text.replace("slots = 2", f"processors = [{', '.join(lines)}]")


PLAIN, SLOW = "{ count = 2 }", '{ count = 1, factor = 3, socket_gb_s = 2, name = "gpu" }'


def test_a_cluster_file_states_kinds_of_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shipped, *_) = read_cluster(ROOT / "jobs" / "two-kinds.toml").shared
    assert shipped.processors == (Processors(6, name="cpu"), Processors(6, 3.0, 7.1, "gpu"))
    path = tmp_path / "cluster.toml"
    path.write_text(kinds(PLAIN, SLOW) + '[[nodes]]\nname = "n3"\nslots = 2\n')
    of_each = (Processors(2), Processors(1, 3.0, 2.0, "gpu"))
    file = read_cluster(path)
    mixed, plain = SharedNode(12.0, of_each), SharedNode(inf, (Processors(2),))
    assert file.shared == (mixed, mixed, plain) and file.slots == (3, 3, 2)
    cores = Cluster(("core0", "core1"), (("cpu:0",), ("cpu:1",)), (POWER,) * 2)
    monkeypatch.setattr(local, "this_machine", lambda: cores)
    whole = local.from_file(path)
    assert whole.slots == (("cpu:0",), ("cpu:1",), ("cpu:0",)) and whole.kinds == ()
    found = local.from_file(path, shared=True).split()
    assert found.shared == file.shared
    assert found.names[:4] == ("n1/0", "n1/1", "n1/gpu0", "n2/0") and found.names[6:] == (
        "n3/0",
        "n3/1",
    )
    assert found.kinds == ("0", "0", "gpu", "0", "0", "gpu", "0", "0")
    assert found.kinds_of((2, 3)) == ("gpu", "0")
    assert found.host_of(2) == "n1" and found.nodes_of["n1"] == (0, 1, 2)
    assert local.from_file(path, shared=True).first(1).split().kinds == ("0", "0", "gpu")
    assert WHOLE.split().kinds == () and WHOLE.split().kinds_of((0, 1)) == ()
    named_slots = ["n1/0", "n1/1", "n1/gpu0", "n1/gpu1", "n2/gpu0"]
    assert fold_slots(named_slots) == "n1/[0,1],n1/gpu[0,1],n2/gpu0"
    assert expand(fold_slots(named_slots)) == named_slots


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (kinds(), "expected kinds of processors of nodes, got an empty list"),
        (kinds(PLAIN) + "slots = 2\n", "expected slots or processors of nodes, got both"),
        (kinds(PLAIN) + "gpus = 2\n", "expected processors of nodes without gpus, got gpus = 2"),
        (kinds("{ count = 0 }"), "expected count of processors of at least 1, got 0"),
        (kinds("{ count = 2, factor = 0 }"), "at least 1, the fastest kind's, got 0"),
        (kinds("{ count = 2, factor = 0.5 }"), "at least 1, the fastest kind's, got 0.5"),
        (kinds("{ count = 2, factor = inf }"), "expected a finite number in nodes[0].processors"),
        (kinds("{ count = 2, factor = nan }"), "expected a finite number in nodes[0].processors"),
        (
            kinds(SLOW.replace("= 2", "= 12.5")),
            "at most the node's 12 GB/s, got socket_gb_s = 12.5",
        ),
        (kinds(SLOW.replace("= 2", "= 0")), "a socket above 0 and at most"),
        (
            kinds(SLOW).replace("memory_bandwidth_gb_s = 12.0\n", ""),
            "expected memory_bandwidth_gb_s of nodes with a socket, got none and socket_gb_s = 2",
        ),
        (
            kinds(SLOW.replace("gpu", "gpu0")),
            "expected a name of processors of letters, got 'gpu0'",
        ),
        (kinds(SLOW, SLOW), "expected different names of kinds of processors, got ['gpu', 'gpu']"),
        (kinds("{ count = 2, speed = 3 }"), "unknown field `speed`"),
        (kinds("{ factor = 3 }"), "missing required field `count`"),
    ],
)
def test_kinds_of_processors_that_cannot_be_are_refused_in_a_sentence(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(FileError, match=re.escape(words)) as refused:
        read_cluster(path)
    assert "\n" not in str(refused.value)


def test_a_daemon_places_on_kinds_of_processors_and_keeps_them(tmp_path: Path) -> None:
    of_each = (Processors(1, name="cpu"), Processors(1, 3.0, 2.0, "gpu"))
    cluster = replace(WHOLE, processors=(of_each,) * 2).split()
    with Journal.open(tmp_path / "journal") as journal:
        bench = TwoHosts(journal, tmp_path)
    with Journal.open(tmp_path / "kinds") as journal:
        bench.journal = journal
        bench.daemon = bench.resumed(LESS, cluster)
        jobs = [bench.submit(n, 1, gb_s) for n, gb_s in enumerate((9.0, 9.0, 1.0), 1)]
        placed = [["n1/cpu0"], ["n2/cpu0"], ["n1/gpu0"]]
        assert [bench.slots(name) for name in jobs] == placed
        rows = views.nodes(bench.daemon.context)
        assert [row.kinds for row in rows] == [
            {"cpu": (1, 1), "gpu": (1, 1)},
            {"cpu": (1, 1), "gpu": (1, 0)},
        ]
        assert replay(journal.read()).scheduler.cluster.kinds == cluster.kinds
        assert thaw(freeze(bench.daemon.scheduler), lambda key, _: named(key)).cluster.shared == (
            cluster.shared
        )
    other = replace(WHOLE, processors=((of_each[0], Processors(1, 2.0, 2.0, "gpu")),) * 2)
    with Journal.open(tmp_path / "kinds") as journal:
        bench.journal = journal
        with pytest.raises(JournalError, match="expected nodes with the kinds of processors of"):
            bench.resumed(LESS, other.split())
        bench.daemon = bench.resumed(LESS, cluster)
        assert replay(journal.read()).differing == []


def test_a_submission_is_told_that_nothing_is_known_of_its_power(tmp_path: Path) -> None:
    words = "no --power, no profile and no power model of busy nodes: the job counts as 0 W under"
    with routed(tmp_path) as server:
        state = server.daemon.context.state
        unknown, state.power_models = state.power_models, (POWER,)
        server.daemon.handle(PowerCapSet(server.clock[0], 1000.0))
        assert "warnings" not in server.ask("POST", "/jobs", SCRIPT)[1]
        state.power_models = unknown
        (said,) = server.ask("POST", "/jobs", SCRIPT)[1]["warnings"]
        assert said.startswith(words)
        stated = SCRIPT | {"options": {"power_w": 5.0}}
        assert "warnings" not in server.ask("POST", "/jobs", stated)[1]
        server.daemon.handle(PowerCapSet(server.clock[0], None))
        assert "warnings" not in server.ask("POST", "/jobs", SCRIPT)[1]


def test_cluster_and_workload_files_state_slots_and_bandwidth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    assert read_cluster(path).shared == (SharedNode(10.0, (Processors(2),)),) * 2
    cores = Cluster(("core0", "core1"), (("cpu:0",), ("cpu:1",)), (POWER,) * 2)
    monkeypatch.setattr(local, "this_machine", lambda: cores)
    assert local.from_file(path).slots == (("cpu:0",), ("cpu:1",))
    found = local.from_file(path, shared=True).split()
    assert found.names == ("n1/0", "n1/1", "n2/0", "n2/1") and found.hosts == ("n1", "n2")
    assert found.slots_of((0, 1, 2)) == ("cpu:0", "cpu:0", "cpu:1")
    assert fold_slots(found.names[:3]) == "n1/[0,1],n2/0" and fold_slots(["n1", "n2"]) == "n1,n2"
    assert expand("n1/[0,1],n2/0") == ["n1/0", "n1/1", "n2/0"]
    path.write_text(CLUSTER.replace("slots = 2", "slots = 0"))
    with pytest.raises(FileError, match="expected slots of at least 1, got 0"):
        read_cluster(path)
    path.write_text(CLUSTER.replace("10.0", "0.0"))
    with pytest.raises(FileError, match="expected memory_bandwidth_gb_s above 0, got 0"):
        read_cluster(path)
    work = tmp_path / "work.toml"
    job = "[[jobs]]\nnodes = [1, 1]\nspeedup = { t1_s = 1.0, tc_s = 0.0 }\nmemory_bandwidth_gb_s = "
    work.write_text(f"{job}4.5\n")
    assert read_workload(work)[0].bandwidth_gb_s == 4.5
    work.write_text(f"{job}-1\n")
    with pytest.raises(FileError, match="expected memory_bandwidth_gb_s of at least 0, got -1"):
        read_workload(work)
