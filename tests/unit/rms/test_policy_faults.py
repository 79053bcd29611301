"""Users' policies that raise, hang, exit, answer nonsense or are gone: then another decides."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import Fault
from killed import Bench
from killed import bench as opened
from said import Said

from rms.cli.daemon import _policy
from rms.core.model.events import Start
from rms.core.model.jobs import JobId, Mode
from rms.core.policies import MissingPartError, PolicyError, named, read_policy
from rms.daemon.ask import views
from rms.daemon.restart.recover import replay
from rms.daemon.store import sandbox
from rms.daemon.store.journal import PolicySet
from rms.daemon.store.sandbox import FailedPolicyError, GuardedPolicy, forked, guarded

PARTS = '''
import os, sys, time
from rms.cli.daemon import _policy
from rms.core.model.events import Start

def serve(state, queue, plan, room, *, how):
    """Serve the first job, and go wrong at the second."""
    jobs = list(queue)
    if len(state.running) + len(jobs) > 1:
        if how == "raises":
            raise KeyError("mine")
        if how == "exits":
            sys.exit(3)
        if how == "dies":
            os._exit(3)
        if how == "loops":
            while True:
                try:
                    time.sleep(1.0)
                except BaseException:
                    pass
        if how == "changes":
            state.pending.clear()
            state.running.clear()
            raise RuntimeError("changed")
        if how == "none":
            return None
        if how == "words":
            return ["start it"]
        if how == "twice":
            return [Start(jobs[0].spec.id, (0, 0), "twice")]
        if how == "unknown":
            return [Start("nobody", (1,), "who")]
        if how == "huge":
            return [Start(jobs[0].spec.id, (10**30,), "where")]
    return [Start(job.spec.id, room.place(job, job.least), "mine") for job in jobs]
'''
HOW = {
    "raises": "serve failed: it raised KeyError('mine')",
    "exits": "serve failed: it raised SystemExit(3)",
    "dies": "serve failed: expected decisions, got the end of its process",
    "loops": "serve failed: expected an answer within 0.2 s, got none",
    "changes": "serve failed: it raised RuntimeError('changed')",
    "none": "serve failed: it raised TypeError",
    "words": "serve failed: expected decisions, got something else",
    "twice": "serve failed: expected every node once, got (0, 0)",
    "unknown": "serve failed: expected a pending job to start, got nobody",
    "huge": "serve failed: it raised OverflowError",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sandbox, "LIMIT_S", 120.0)  # a loaded machine is no fault
    (tmp_path / "my_bad_parts.py").write_text(PARTS)
    sys.modules.pop("my_bad_parts", None)
    return tmp_path


def policy(folder: Path, how: str) -> str:
    path = folder / "serve.toml"
    path.write_text(f'admission = {{ part = "my_bad_parts:serve", how = "{how}" }}\n')
    return str(path)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "state").mkdir()
    with opened(tmp_path / "state") as found:
        yield found


def states(bench: Bench) -> dict[str, str]:
    return {row.id: row.state for row in views.jobs(bench.daemon.context)}


def submit(bench: Bench, name: str) -> None:
    bench.submit(name, (1, 1, 1), Mode.FIXED)


QUICK = ("raises", "loops", "twice")


@pytest.mark.promise("faults-contained")
@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[] if how in QUICK else pytest.mark.wide) for how in HOW]
)
def test_a_policy_that_fails_is_replaced(
    folder: Path, bench: Bench, how: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.policy = policy(folder, how)
    bench.start()
    submit(bench, "1")
    assert states(bench) == {"1": "RUNNING"} and len(bench.said) == 0
    if how == "loops":
        monkeypatch.setattr(sandbox, "LIMIT_S", 0.2)
    submit(bench, "2")  # taken, and started by another
    assert states(bench) == {"1": "RUNNING", "2": "RUNNING"}
    (words,) = bench.said
    assert words.startswith(f"policy {HOW[how]}")
    assert words.endswith("; backfill-share decides from now on")
    submit(bench, "3")
    assert states(bench)["3"] == "RUNNING" and len(bench.said) == 1
    entries = list(bench.daemon.journal.read())
    (entry,) = (each for each in entries if isinstance(each, PolicySet))
    assert entry.policy == "backfill-share" and HOW[how] in entry.reason
    found = replay(entries)
    assert (found.differing, found.refused, found.unrecorded) == ([], [], {})
    assert set(found.engine.state.running) == {"1", "2", "3"}
    bench.policy = "fifo"
    bench.start()
    assert set(states(bench).values()) == {"RUNNING"}
    fault(f"a user's policy: {how}", "job taken and started by backfill-share, which is said")


def test_a_policy_whose_module_is_gone(
    folder: Path, bench: Bench, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.policy = policy(folder, "fine")
    bench.start()
    submit(bench, "1")
    (folder / "my_bad_parts.py").unlink()
    monkeypatch.delitem(sys.modules, "my_bad_parts")
    sys.path_importer_cache.clear()
    bench.policy, running = "fifo", states(bench)
    bench.start()
    assert states(bench) == running == {"1": "RUNNING"}
    found = replay(bench.daemon.journal.read())
    assert found.differing == [] and "my_bad_parts" in found.missing[0]
    fault("the module of a user's policy gone", "recorded decisions are followed")


def test_rms_serve_with_a_policy_whose_module_is_gone(tmp_path: Path) -> None:
    said, path = Said(), tmp_path / "gone.toml"
    path.write_text('order = { part = "my_gone_parts:order" }\n')
    with pytest.raises(MissingPartError, match="my_gone_parts"):  # a daemon that is new
        _policy(Namespace(policy=str(path)), False)
    arguments = Namespace(policy=str(path))
    assert _policy(arguments, True).name == arguments.policy == "backfill-share"
    assert "policy backfill-share decides instead: " in said[0]
    with pytest.raises(PolicyError, match="does not exist"):
        _policy(Namespace(policy=str(tmp_path / "typo.toml")), True)


def test_decisions_that_were_not_recorded_are_a_shipped_policys_then(
    folder: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.policy = policy(folder, "fine")
    bench.start()
    submit(bench, "1")
    bench.daemon.journal._run("DELETE FROM decisions")  # killed before they were
    monkeypatch.setitem(sys.modules, "my_bad_parts", None)
    bench.policy = "fifo"
    bench.start()
    assert states(bench) == {"1": "RUNNING"}
    assert any("a policy is gone" in words and "my_bad_parts" in words for words in bench.said)


def test_why_jobs_wait_is_asked_in_a_fork_once(folder: Path, bench: Bench) -> None:
    (folder / "my_bad_parts.py").write_text(
        PARTS + "\ndef order(state):\n    assert not state.pending\n    return []\n"
    )
    path = folder / "odd.toml"
    path.write_text('order = { part = "my_bad_parts:order" }\n')
    found = guarded(read_policy(path))
    assert isinstance(found, GuardedPolicy) and found.key == read_policy(path).key
    submit(bench, "1")
    bench.submit("2", (4, 4, 4), Mode.FIXED)
    bench.daemon.scheduler.engine.policy = found
    rows = {row.id: row.reason for row in views.jobs(bench.daemon.context)}
    assert rows["2"] == "Resources: its turn has not come" and len(found.silent) == 1
    views.jobs(bench.daemon.context)
    assert len(found.silent) == 1
    assert guarded(named("fifo")) is named("fifo")


def test_what_a_fork_answers_is_checked() -> None:
    assert forked(lambda: [Start(JobId("1"), (), "")], list[Start])[0].job == "1"
    assert forked(lambda: "x" * 1_000_000, str) == "x" * 1_000_000
    with pytest.raises(FailedPolicyError, match="something else"):
        forked(lambda: "x", int)  # type: ignore[arg-type,return-value]


def test_a_part_that_a_policy_cannot_be_made_of(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    for text in ('passes = { part = "my_bad_parts:serve" }', 'order = { part = "my_exit:order" }'):
        path.write_text(text)
        (tmp_path / "my_exit.py").write_text("import sys\nsys.exit(1)\n")
        with pytest.raises(ValueError, match="expected"):
            read_policy(path)
