"""What a pilot makes of the allocation that it finds itself in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from sentences import one_sentence

from rms.formats.config import FileError
from rms.launch.local import JobEngine
from rms.launch.slurm import engines
from rms.launch.slurm.commands import CommandResult, Slurm, SlurmError
from rms.launch.slurm.engines import EngineOptions, allocated, counts, gpus_per_node

HOSTS = ("n1", "n2", "n3")
NODES = "".join(f"n{n}|all|alloc|{cpus}|(null)|none\n" for n, cpus in ((1, 8), (2, 4), (3, 8)))


def site(said: Mapping[str, str]) -> Slurm:
    """A Slurm whose commands print these texts, by the command's second word or first."""

    def run(
        command: Sequence[str], environment: Mapping[str, str], deadline_s: float
    ) -> CommandResult:
        return CommandResult(0, said.get(command[1], said.get(command[0], "")), "")

    return Slurm({}, "me", run)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("4", [4]),
        ("72(x2),36", [72, 72, 36]),
        ("1,2(x3)", [1, 2, 2, 2]),
        ("many", []),
        ("2(x)", []),
    ],
)
def test_counts_of_nodes(text: str, found: list[int]) -> None:
    assert counts(text) == found


@pytest.mark.parametrize(
    ("env", "gpus"),
    [
        ({}, 0),
        ({"SLURM_GPUS_PER_NODE": "2"}, 2),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:1,h100:2"}, 3),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({"SLURM_GPUS_PER_NODE": "a100:4", "SLURM_GPUS_ON_NODE": "1"}, 4),
    ],
)
def test_gpus_of_each_node(env: dict[str, str], gpus: int) -> None:
    assert gpus_per_node(env) == gpus


@pytest.mark.parametrize(
    ("env", "tasks", "slots"),
    [
        ({"SLURM_JOB_CPUS_PER_NODE": "2,1(x2)"}, None, ("core:0 core:1", "core:0", "core:0")),
        ({"SLURM_JOB_CPUS_PER_NODE": "2(x3)", "SLURM_NTASKS_PER_NODE": "1"}, None, ["core:0"] * 3),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 1, ["core:0"] * 3),
        (
            {"SLURM_GPUS_PER_NODE": "v100:2", "SLURM_NTASKS_PER_NODE": "8"},
            None,
            ["gpu:0 gpu:1"] * 3,
        ),
        ({"SLURM_GPUS_ON_NODE": "1"}, 2, ["core:0 core:1"] * 3),
    ],
)
def test_slots_of_each_node(env: dict[str, str], tasks: int | None, slots: Sequence[str]) -> None:
    found = allocated(env, site({}), HOSTS, tasks)
    assert [" ".join(each) for each in found] == list(slots)


def test_without_a_word_of_slurm_a_node_has_its_cpus() -> None:
    assert [len(each) for each in allocated({}, site({"sinfo": NODES}), HOSTS)] == [8, 4, 8]
    of_another = {"SLURM_JOB_CPUS_PER_NODE": "16(x2)"}
    assert [len(e) for e in allocated(of_another, site({"sinfo": NODES}), HOSTS)] == [8, 4, 8]


def test_no_allocation() -> None:
    with one_sentence(SlurmError, "none"):
        engines.pilot({}, "me", EngineOptions("slurm", 10.0))


def test_a_margin_that_leaves_no_time() -> None:
    with one_sentence(SlurmError, "got 29"):
        engines.pilot({}, "me", EngineOptions("slurm", 10.0), margin_s=29.0)


JOB = """JobId=7 JobName=interactive
   JobState=RUNNING Reason=None Dependency=(null)
   StartTime=1700000000 EndTime=1700003600
   NodeList=n[1-3]
   BatchHost=n1

"""


def test_powers_and_slots_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cluster.toml"
    monkeypatch.setattr(
        engines, "Slurm", lambda env, user: site({"--details": JOB, "show": "", "sinfo": NODES})
    )

    def engine(tasks: int | None = None) -> JobEngine:
        env = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "8,4,8"}
        return engines.pilot(env, "me", EngineOptions("slurm", 10.0, tasks, file))

    file.write_text(
        'name = "x"\n[[nodes]]\nname = "n[2-9]"\ncores = 3\npower = { idle_w = 5.0 }\n'
        '[[nodes]]\nname = "n1"\ngpus = 2\npower = { idle_w = 7.0 }\n'
    )
    found = engine()
    assert found.cluster.names == HOSTS and found.where == "slurm:7"
    assert [power.idle_w for power in found.cluster.power] == [7.0, 5.0, 5.0]
    assert found.cluster.slots[0] == ("n1/gpu:0", "n1/gpu:1")
    assert found.cluster.slots[2] == ("n3/core:0", "n3/core:1", "n3/core:2")
    assert found.cluster.widths == (2, 3, 3)
    assert engine(tasks=1).cluster.widths == (1, 1, 1)
    kinds = 'processors = [{ count = 2, name = "cpu" }, { count = 1, factor = 3.0, name = "gpu" }]'
    file.write_text(f'name = "x"\n[[nodes]]\nname = "n[1-3]"\n{kinds}\n')
    split = engine().sharing().cluster
    assert split.names[:4] == ("n1/cpu0", "n1/cpu1", "n1/gpu0", "n2/cpu0")
    assert split.kinds_of((1, 2)) == ("cpu", "gpu")
    with one_sentence(FileError, "as many processors of n1 in the cluster file as slots, 2, got 3"):
        engine(tasks=2)
    file.write_text('name = "x"\n[[nodes]]\nname = "n[1-2]"\n')
    with one_sentence(SlurmError, "n3"):
        engine()
