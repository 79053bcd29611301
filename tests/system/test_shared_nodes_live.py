"""Jobs that share nodes, with a real daemon: virtual nodes of this machine, of two slots each."""

from __future__ import annotations

import signal

import pytest
from daemon import LocalRms, Rms, closing
from processes import ROOT, program

PACED = [*program("paced"), str(ROOT / "mpdata" / "__main__.py")]
SMALL = ["--case", "random", "--grid", "24", "20", "8", "--backend", "numpy", "--every", "2"]
WAITS = "grep Cpus_allowed_list /proc/self/status; while ! test -e go; do sleep 0.05; done"
KIND_OF_RANKS = (
    "mpirun sh -c 'rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; set -- $RMS_PROCESSORS; shift $rank; "
    "echo rank $rank $1'"
)
POWER = "{ idle_w = 10.0, static_w = 30.0, dynamic_w = 20.0 }"
GOES_OFF = "{ idle_w = 30.0, static_w = 50.0, off_w = 2.0, boot_s = 0.2, boot_j = 9.0 }"
TOGETHER = """admission = { part = "easy" }
placement = { part = "consolidate" }
node_power = { part = "off-when-idle" }
"""


class Shared(LocalRms):
    """Two nodes of one core and two slots, 10 GB/s each, under LessConsume."""

    nodes_text = f"""[[nodes]]
name = "n[1-2]"
cores = 1
slots = 2
memory_bandwidth_gb_s = 10.0
power = {POWER}
"""

    def serve_command(self) -> list[str]:
        return [*super().serve_command(), "--policy", str(ROOT / "jobs" / "less-consume.toml")]


def share(rms: Rms, *gb_s: float) -> list[str]:
    """Submit jobs of one process each, by their bandwidths; they run until told to end."""
    jobs = [rms.submit(WAITS, "--memory-bandwidth", str(each)) for each in gb_s]
    for job in jobs:
        rms.until(lambda job=job: rms.row(job)["state"] == "RUNNING", f"job {job} that runs")
    return jobs


@pytest.mark.promise("shared-nodes")
def test_jobs_share_nodes_by_their_bandwidth_and_outlive_the_daemon() -> None:
    with closing(Shared(2)) as rms:
        jobs = share(rms, 9.0, 9.0, 0.5)
        assert [rms.row(job)["nodes"] for job in jobs] == [["n1/0"], ["n2/0"], ["n1/1"]]
        cores = [rms.until(lambda job=job: rms.output(job), "a word of it") for job in jobs]
        assert cores[0] == cores[2] and cores[0].split()[1].isdecimal()
        states = {row["name"]: (row["state"], row["job"]) for row in rms.ask("nodes")}
        assert states == {"n1": ("allocated", "1,3"), "n2": ("mixed", "2")}
        refused = rms.rms("policy", "easy")
        assert refused.returncode == 2 and "expected a policy whose jobs share" in refused.stderr
        rms.end(signal.SIGKILL)
        rms.start()
        assert [rms.row(job)["nodes"] for job in jobs] == [["n1/0"], ["n2/0"], ["n1/1"]]
        (rms.work / "go").touch()
        assert rms.over(*jobs) == ["COMPLETED"] * 3
        rms.ends_well()


@pytest.mark.wide
@pytest.mark.promise("shared-nodes")
def test_a_malleable_job_goes_over_to_slots_beside_others() -> None:
    with closing(Shared(2)) as rms:
        (greedy,) = share(rms, 9.0)
        words = [*SMALL, "--steps", "400"]
        run = f"mkdir a; cd a; PACE_S=0.25 mpirun {' '.join(PACED)} run {' '.join(words)}"
        job = rms.submit(run, *("--mode", "malleable", "--nodes", "1-3", "--preferred", "1"))
        rms.running(job)
        assert rms.row(job)["nodes"] == ["n1/1"]
        rms.resized(job, 3)
        assert rms.row(job)["nodes"] == ["n1/1", "n2/0", "n2/1"]
        rms.resized(job, 2, "--on", "n2")
        assert rms.row(job)["nodes"] == ["n2/0", "n2/1"]
        (rms.work / "a" / "go").touch()
        rms.hurry()
        assert rms.over(job, greedy) == ["COMPLETED"] * 2
        rms.ends_well()


class Kinds(Shared):
    """Two nodes of two plain processors and two slower ones behind a socket of 2 GB/s."""

    def prepare(self) -> None:
        super().prepare()
        kinds = '{ count = 2, name = "cpu" }, '
        kinds += '{ count = 2, factor = 3.0, socket_gb_s = 2.0, name = "gpu" }'
        text = self.cluster.read_text().replace("slots = 2", f"processors = [{kinds}]")
        self.cluster.write_text(text.replace("= 10.0\npower", "= 12.0\npower"))
        for part in ("less-consume", "first-fit-shared"):
            text = (ROOT / "jobs" / "less-consume.toml").read_text()
            (self.folder / f"{part}.toml").write_text(text.replace("less-consume", part))

    def place(self, gb_s: float | None, size: int = 2) -> tuple[str, list[str]]:
        """Submit a job that waits until it is cancelled; return it and its slots."""
        bandwidth = () if gb_s is None else ("--memory-bandwidth", f"{gb_s}")
        job = self.submit(f"{KIND_OF_RANKS}; {WAITS}", "--nodes", f"{size}", *bandwidth)
        self.until(lambda: self.row(job)["state"] == "RUNNING", f"job {job} that runs")
        return job, self.row(job)["nodes"]

    def kinds(self, job: str) -> list[str]:
        """Return the kind of processor that each rank of a job reports, by rank."""

        def lines() -> list[str]:
            return sorted(line for line in self.output(job).splitlines() if line.startswith("rank"))

        size = self.row(job)["size"]
        self.until(lambda: len(lines()) == size, f"all ranks of job {job}")
        return [line.split()[2] for line in lines()]


@pytest.mark.promise("shared-nodes")
def test_processes_are_placed_on_two_kinds_of_processors() -> None:
    with closing(Kinds(2)) as rms:
        first, on_first = rms.place(6.0)
        assert on_first == ["n1/cpu0", "n1/cpu1"]  # all of the 12 GB/s of the node
        # On n1 the next free slots are behind the socket, and 2 x 6 / 3 GB/s are more than its 2.
        second, on_second = rms.place(6.0)
        assert on_second == ["n2/cpu0", "n2/cpu1"]
        third, on_third = rms.place(None)
        assert on_third == ["n1/gpu0", "n1/gpu1"]
        assert [rms.kinds(job) for job in (first, second, third)] == [
            ["cpu", "cpu"],
            ["cpu", "cpu"],
            ["gpu", "gpu"],
        ]
        assert "n1/cpu[0,1]" in rms.rms("queue").stdout
        assert "2/0 cpu, 0/2 gpu" in rms.rms("nodes").stdout  # of n2
        rms.end(signal.SIGKILL)
        rms.start()
        held = [rms.row(job)["nodes"] for job in (first, second, third)]
        assert held == [on_first, on_second, on_third]
        for job in (second, third):
            rms.ask("cancel", job)
        rms.over(second, third)
        rms.ask("policy", str(rms.folder / "first-fit-shared.toml"))
        again, slots = rms.place(6.0)
        assert (slots, rms.kinds(again)) == (["n1/gpu0", "n1/gpu1"], ["gpu", "gpu"])
        rms.ask("policy", str(rms.folder / "less-consume.toml"))
        mixed, slots = rms.place(1.0, 3)  # its processes do not wait there
        assert (slots, rms.kinds(mixed)) == (
            ["n2/cpu0", "n2/cpu1", "n2/gpu0"],
            ["cpu", "cpu", "gpu"],
        )
        (rms.work / "go").touch()
        assert rms.over(first, again, mixed) == ["COMPLETED"] * 3
        rms.ends_well()
        text = rms.cluster.read_text()
        rms.cluster.write_text(text.replace("factor = 3.0", "factor = 2.0"))
        words = rms.serve_command()
        refused = rms.rms(*words[words.index("serve") :])
        assert refused.returncode == 2 and "the kinds of processors of the first" in refused.stderr


@pytest.mark.wide
@pytest.mark.promise("shared-nodes")
def test_the_next_world_of_a_job_learns_its_kinds_of_processors() -> None:
    with closing(Kinds(2)) as rms:
        rms.place(6.0)
        words = [*SMALL, "--steps", "400"]
        run = f"mkdir a; cd a; PACE_S=0.25 mpirun {' '.join(PACED)} run {' '.join(words)}"
        job = rms.submit(run, *("--mode", "malleable", "--nodes", "1-3", "--preferred", "1"))
        rms.running(job)

        def of_ranks() -> set[str]:
            found = rms.processes()
            return {found[pid]["RMS_PROCESSORS"] for pid in rms.ranks() if pid in found}

        assert of_ranks() == {"gpu"}
        rms.resized(job, 3)
        assert rms.row(job)["nodes"] == ["n1/gpu0", "n1/gpu1", "n2/cpu0"]
        assert of_ranks() == {"gpu gpu cpu"}
        rms.hurry()
        (rms.work / "a" / "go").touch()
        rms.over(job)


class Powered(Shared):
    """Four nodes of two slots that go off when idle, by commands that note it."""

    def prepare(self) -> None:
        super().prepare()
        text = self.cluster.read_text().replace("n[1-2]", "n[1-4]").replace(POWER, GOES_OFF)
        self.cluster.write_text(text)
        command = self.folder / "power"
        command.write_text(f"#!/bin/sh\necho $1 $2 >> {self.folder}/powered\n")
        command.chmod(0o755)
        (self.folder / "together.toml").write_text(TOGETHER)

    def serve_command(self) -> list[str]:
        words = [*LocalRms.serve_command(self), "--policy", str(self.folder / "together.toml")]
        for word in ("off", "on"):
            words += [f"--power-{word}", f"{self.folder / 'power'} {word}"]
        return words

    def half_are_off(self) -> None:
        """Wait until two nodes are full and two are off."""
        wanted = ["allocated", "allocated", "powered_down", "powered_down"]
        self.until(
            lambda: sorted(row["state"] for row in self.get("/nodes")) == wanted, "two nodes off"
        )


@pytest.mark.wide
@pytest.mark.promise("shared-nodes", "consolidate")
def test_running_jobs_are_moved_together_and_nodes_go_off_and_come_back() -> None:
    """Beside each of four jobs is another one at first, so that they are on four nodes."""
    with closing(Powered(4)) as rms:
        run = f"PACE_S=0.2 mpirun {' '.join(PACED)} run {' '.join(SMALL)} --steps 600"
        jobs = []
        for n in range(4):
            jobs.append(rms.submit(f"mkdir a{n}; cd a{n}; {run}", "--mode", "malleable"))
            filler = rms.submit(WAITS, "--mode", "fixed")
        rms.until(lambda: rms.row(filler)["state"] == "RUNNING", "eight jobs that run")
        for job in jobs:
            rms.running(job)
        before = [rms.row(job)["nodes"] for job in jobs]
        assert before == [["n1/0"], ["n2/0"], ["n3/0"], ["n4/0"]]
        rms.hurry()
        rms.half_are_off()
        moved = [job for job in jobs if rms.resizes(job)]
        assert len(moved) == 2 and all(rms.resizes(job) == [(1, 1)] for job in moved)
        wide = rms.submit("true", "--nodes", "4", "--mode", "fixed")
        assert rms.over(wide) == ["COMPLETED"]
        rms.half_are_off()
        for n in range(4):
            (rms.work / f"a{n}" / "go").touch()
        assert rms.over(*jobs) == ["COMPLETED"] * 4
        assert len({rms.row(job)["answer"] for job in jobs}) == 1  # the same bits, moved or not
        powered = (rms.folder / "powered").read_text().splitlines()
        assert sum(line.startswith("on") for line in powered) == 4 + 2  # at first, and for the wide
        energy = rms.books()["energy"]
        assert energy["off_j"] > 0.0 and energy["boot_j"] > 0.0
        rms.ends_well()
