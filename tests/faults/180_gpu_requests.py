"""``#SBATCH --gres=gpu:1`` was dropped with a warning: the job ran on nodes without a GPU."""

from __future__ import annotations

import pytest
from routed import SCRIPT, Routed

from rms.core.model.cluster import Cluster
from rms.core.model.jobs import JobId
from rms.formats.jobscript import Options, ScriptError, nodes_with_gpus

CORES = {"n1": ("cpu:0",), "n2": ("cpu:1",)}
MIXED = {**CORES, "g1": ("gpu:0", "gpu:1"), "g2": ("gpu:2", "gpu:3")}
SHARED = {"g1/0": ("gpu:0",), "g1/1": ("gpu:1",)}


def script(line: str) -> dict[str, object]:
    return SCRIPT | {"text": f"#!/bin/sh\n#SBATCH {line}\ntrue\n"}


@pytest.mark.parametrize(
    "line",
    [
        *("--gres=gpu:1", "--gres=gpu", "--gres gpu:a100:2", "--gres=gpu:a100", "--gpus=4"),
        *("-G 1", "-G1", "--gpus=a100:1", "--gpus-per-node=1", "--gpus-per-task=1"),
        *("--gpus-per-socket=1", "--tres-per-task=cpu=1,gres/gpu=1", "--gres=shm:1"),
    ],
)
def test_without_gpus_a_request_is_refused_in_one_sentence(server: Routed, line: str) -> None:
    status, answer = server.ask("POST", "/jobs", script(line))
    assert status == 400 and "\n" not in answer["error"], answer
    assert answer["error"].startswith("expected ") and "GPUs" in answer["error"]
    assert not server.daemon.jobs


def test_a_cluster_with_gpus_honours_the_request(server: Routed) -> None:
    context = server.daemon.context
    old = context.cluster
    context.scheduler.cluster = Cluster(old.names, (("cpu:0",), ("gpu:0",)), old.power)
    assert server.ask("POST", "/jobs", script("--gres=gpu:1")) == (200, {"ids": ["1"]})
    state = server.daemon.context.state
    spec = (state.running | state.pending)[JobId("1")].spec
    assert spec.nodelist == (old.names[1],) and spec.nodes_max == 1


@pytest.mark.parametrize(
    ("line", "options", "expected"),
    [
        ("--gres=gpu:2", Options(), Options(nodes=(1, 1), nodelist="g1,g2")),
        ("--gpus-per-node=2", Options(nodes=(2, 2)), Options(nodes=(2, 2), nodelist="g1,g2")),
        ("-G4", Options(), Options(nodes=(2, 2), nodelist="g1,g2")),
        ("--gpus-per-task=1", Options(ntasks=4), Options(ntasks=4, nodelist="g1,g2")),
        ("--gres=gpu:2", Options(nodelist="n1,g2"), Options(nodelist="g2")),
        ("--gpus=0", Options(), Options()),
    ],
)
def test_nodes_that_hold_as_many_gpus(line: str, options: Options, expected: Options) -> None:
    assert nodes_with_gpus(options, [line], MIXED)[0] == expected


def test_gpus_that_are_given_one_by_one() -> None:
    assert nodes_with_gpus(Options(), ["--gpus=2", "--nice"], SHARED) == (
        Options(nodes=(2, 2)),
        ["--nice"],
    )


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--gres=gpu:1"], Options()),
        (["--gpus=3"], Options()),
        (["--gpus=8"], Options(nodes=(1, 2))),
        (["--gpus-per-task=2"], Options()),
        (["--gres=gpu:2", "--gpus-per-node=1"], Options()),
        (["--gres=gpu:2"], Options(nodelist="n1")),
    ],
)
def test_what_nodes_with_gpus_cannot_give(words: list[str], options: Options) -> None:
    with pytest.raises(ScriptError, match=r"^expected .*, got "):
        nodes_with_gpus(options, words, MIXED)
