"""The model of ranks in simulations sends the messages that real ranks send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import served
from processes import ROOT, program
from virtual import acts
from virtual.world import World, played

CASE = "--case random --grid 24 20 8 --backend numpy --every 2 --steps 400"
SIZES = (3, 1, 3, 2)


def shape(messages: Iterator[tuple[str, dict[str, object]]]) -> dict[str, list[str]]:
    """Return the reports, and what polls say of the world once it differs, both in order.

    They come from two threads.
    """
    reports, polls = list[str](), list[str]()
    for path, body in messages:
        if path == "poll":
            words = f"{body['launches']}, knows {body['known']}"
            polls += [words] if words not in polls[-1:] else []
        elif path == "report":
            words = f"{body['type']} {body['number']}"
            if body["type"] == "Done":
                row = body["resize"]
                assert isinstance(row, dict)
                sizes = f"{row['from']}>{row['to']} {row['strategy']}"
                words += f": {sizes}, launches {body.get('launches', ())}"
            reports.append(words)
    return {"reports": reports, "polls": polls}


def of_real_ranks(strategy: str) -> dict[str, list[str]]:
    with served(max(SIZES), "--policy", "fifo") as rms:
        paced = f"mpirun {' '.join(program('paced'))} {ROOT / 'mpdata' / '__main__.py'} run {CASE}"
        options = ("--nodes", f"1-{max(SIZES)}", "--mode", "malleable")
        job = rms.submit(paced, *options, SENT=str(rms.work / "sent"), PACE_S="0.05")
        for size in SIZES[1:]:
            rms.running(job, rms.row(job)["step"] + 4)  # polls say what ranks there are
            rms.resized(job, size, "--strategy", strategy)
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"]
        lines = (rms.work / "sent").read_text().splitlines()
    words = (line.partition(" ") for line in lines)
    return shape((path, json.loads(body)) for path, _, body in words)


def of_the_model(strategy: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    sent, true_call = list[tuple[str, dict[str, object]]](), World.call

    async def call(
        world: World, method: str, path: str, body: bytes = b"", token: str | None = None
    ) -> bytes:
        name = Path(path.partition("?")[0]).name
        if token is not None and name in ("report", "poll"):
            sent.append((name, json.loads(body)))
        return await true_call(world, method, path, body, token)

    monkeypatch.setattr(World, "call", call)
    most = max(SIZES)
    plan = acts.Plan((acts.Line(400, 0.6),))
    sequence: list[acts.Act] = [
        acts.Submit(at_s=1.0, key="s", nodes=(1, most), plan=plan, mode="malleable"),
        *(
            acts.Ask(at_s=20.0 * n, what="resize", key="s", size=size, strategy=strategy)
            for n, size in enumerate(SIZES[1:], 1)
        ),
    ]
    world = played(sequence, acts.Setup(nodes=most))
    assert not world.wrong and world.counted["job COMPLETED"] == 1
    return shape(iter(sent))


@pytest.mark.parametrize("strategy", acts.STRATEGIES)
def test_messages_of_a_resize(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_the_model(strategy, monkeypatch) == of_real_ranks(strategy)
