"""A real daemon told anything in any order, killed, damaged: it knows what a small model does."""

from __future__ import annotations

import resource

import pytest
from daemon_model import KINDS, NODES, Modelled
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

SIZES = st.integers(1, 2)
NODES_ASKED = st.sampled_from(["1", "1-2", "2-3"])


class AnyOrder(RuleBasedStateMachine):
    """Users, jobs, kills and faults, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Modelled()

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(self.model.open))

    serves = precondition(lambda self: self.model.up)
    has_jobs = precondition(lambda self: self.model.open)
    has_room = precondition(lambda self: not self.model.full)

    @serves
    @rule(tasks=SIZES, nodes=NODES_ASKED, kind=st.sampled_from(["", "", "hold"]))
    def submit(self, tasks: int, nodes: str, kind: str) -> None:
        self.model.submit(tasks, nodes, kind)

    @serves
    @has_jobs
    @rule(tasks=SIZES, nodes=NODES_ASKED, kind=st.sampled_from([*KINDS]), data=st.data())
    def submit_after(self, tasks: int, nodes: str, kind: str, data: st.DataObject) -> None:
        self.model.submit(tasks, nodes, kind, self.pick(data))

    @serves
    @has_jobs
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        self.model.hold(self.pick(data))

    @has_jobs
    @rule(data=st.data(), code=st.sampled_from([0, 0, 3]))
    def end(self, data: st.DataObject, code: int) -> None:
        self.model.end(self.pick(data), code)

    @serves
    @has_jobs
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.model.cancel(self.pick(data))

    @serves
    @rule(node=st.sampled_from(NODES))
    def drain(self, node: str) -> None:
        self.model.drain(node)

    @serves
    @has_jobs
    @has_room
    @rule(data=st.data(), size=st.integers(1, 3), kill_at=st.integers(0, 9))
    def resize(self, data: st.DataObject, size: int, kill_at: int) -> None:
        self.model.resize(self.pick(data), size, kill_at)

    @serves
    @rule()
    def kill(self) -> None:
        self.model.kill()

    @precondition(lambda self: not self.model.up)
    @rule(how=st.sampled_from(["whole", "whole", "torn", "cut"]), size=st.integers(1, 9000))
    def restart(self, how: str, size: int) -> None:
        if how == "cut":
            self.model.cut_off(size)
        else:
            if how == "torn":
                self.model.tear()
            self.model.start()
        self.model.check()

    @serves
    @has_room
    @rule()
    def fill(self) -> None:
        self.model.fill()

    @precondition(lambda self: self.model.up and self.model.full)
    @rule()
    def free(self) -> None:
        self.model.free()

    def teardown(self) -> None:
        try:
            self.model.finish()
        finally:
            self.model.rms.close()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="expected Linux")
@pytest.mark.wide
@pytest.mark.promise("any-order")
def test_a_daemon_knows_what_it_was_told_in_any_order() -> None:
    machine = AnyOrder.TestCase
    machine.settings = settings(
        max_examples=3,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),  # on a machine that has other things to do
    )
    machine().runTest()


@pytest.mark.wide
@pytest.mark.promise("any-order")
def test_one_job_is_resized_again_and_again_by_daemons_that_are_killed() -> None:
    model = Modelled()
    try:
        model.submit(1, "1-2")
        model.rms.until(lambda: model.rms.row("1")["state"] == "RUNNING", "start of the job")
        for size, kill_at in ((2, 1), (1, 2), (2, 3), (1, 4), (2, 5)):
            model.resize("1", size, kill_at)
        assert model.rms.resizes("1") == [(2, 1), (1, 2), (2, 1), (1, 2)]
        model.finish()
    finally:
        model.rms.close()
