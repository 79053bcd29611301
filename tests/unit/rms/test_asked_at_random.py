"""The daemon asked at random, by its own description of what it can be asked: never a 5xx."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from routed import USERS_TOKEN, Routed, routed

from rms.core.policies import POLICIES
from rms.daemon.ask import routes
from rms.daemon.restart.recover import replay

ODD: list[Any] = [
    *(None, True, "", "\0", "\x1b[2J", "[/b]", "\ud800", "x" * 5000, -1, 0, 10**30, -1e308, 1e308),
    *([], {}, [[[[]]]], "n[1-999999999]", "1_[0-9999999]", "1_[", "%s", "../../x", "1_2", "n1"),
]
WORDS = {
    "id": ["1", "1_1", "1_[1-3]", "2", "3", "9"],
    "node": ["n1", "n2", "n[1-2]", "n[1-2],n1"],
    "on": ["n1", "n2,n1", "n1,n1"],
    "mode": ["fixed", "moldable", "malleable", "flexible"],
    "array": ["1-3", "0-9%2", "7"],
    "cwd": [".", "none", "\0"],
    "output": ["out", "%j", "none/x"],
    "errors": ["out"],
    "text": ["#!/bin/sh\ntrue\n", "#!/bin/sh\n#RMS --nodes=1-2 --mode=flexible\ntrue\n", "true"],
    "strategy": ["short-term", "banking", "spawn", "warm", "merge", "restart", "none.py"],
    "governor": ["high", "low"],
    "profile": ["none", "x", "x.json"],
    "name": [*POLICIES, '{"order":{"part":"shortest"}}', '{"order":{"part":"os:abort"}}', "job"],
    "address": ["h:1:t"],
}
"""What makes sense, by the name of what is sent; and no path that is not meant."""

PLAIN = st.text("ab1_-%[]{}:/ \n\t\x1béß", max_size=12)


def sent(schema: dict[str, Any], all_of: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Return what a schema describes: now and then, in its place, something odd."""
    return st.integers(0, 19).flatmap(
        lambda n: st.sampled_from(ODD) if n == 0 else _valid(schema, all_of, name)
    )


def _valid(schema: dict[str, Any], all_of: dict[str, Any], name: str) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return _valid(all_of[schema["$ref"].rpartition("/")[2]], all_of, name)
    if "anyOf" in schema:
        return st.one_of([_valid(each, all_of, name) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    kind, low, high = schema.get("type"), schema.get("minimum"), schema.get("maximum")
    if kind == "string":
        return st.sampled_from(WORDS[name]) if name in WORDS else PLAIN
    if kind == "integer":
        return st.integers(0, 4) | st.integers(low, high)
    if kind == "number":
        return st.floats(0.0, 9.0) | st.floats(low, high, allow_nan=False, allow_infinity=False)
    if kind == "array":
        if "prefixItems" in schema:
            return st.tuples(*(sent(each, all_of, name) for each in schema["prefixItems"]))
        least = schema.get("minItems", 0)
        return st.lists(sent(schema["items"], all_of, name), min_size=least, max_size=3)
    if kind == "object" and "properties" in schema:
        fields = {key: sent(each, all_of, key) for key, each in schema["properties"].items()}
        needed = {key: fields.pop(key) for key in schema.get("required", ())}
        return st.fixed_dictionaries(needed, optional=fields)
    if kind == "object":
        return st.dictionaries(PLAIN, sent(schema.get("additionalProperties", {}), all_of))
    return st.booleans() if kind == "boolean" else st.none()


class Asked(RuleBasedStateMachine):
    """Jobs come, run, are polled for, reported on and end, in any order and any words."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.stack.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        for name in ("HOLD_S", "MOST_HOLD_S", "FIRST_HOLD_S", "WATCH_S"):
            self.stack.enter_context(mock.patch.object(routes, name, 0.0))
        self.server: Routed = self.stack.enter_context(routed(Path(folder) / "state"))
        _, self.description = self.server.ask("GET", "/openapi.json")

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Submit a job that can be resized, and let it reach its program."""
        job = self.server.submit(nodes=[1, 2], mode="flexible")
        line = {"command": ["x"], "cwd": ".", "env": {}}
        self.server.ask("POST", f"/jobs/{job}/steps", line, token=self.server.token(job))

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(list(self.description["paths"])))
        method, described = data.draw(
            st.sampled_from(list(self.description["paths"][path].items()))
        )
        body: Any = b""
        if "requestBody" in described:
            schema = described["requestBody"]["content"]["application/json"]["schema"]
            body = data.draw(sent(schema, self.description["components"]["schemas"]))
        job = data.draw(st.sampled_from([*"11111", "2", "3_1", "x", "1/x", "ß"]))
        step = data.draw(st.sampled_from(["0", "1", "-1", "x", "9" * 5000]))
        query = data.draw(st.sampled_from(["", "", "?id=1", "?id=", "?id=1_[0-9999999]", "?x=%ff"]))
        known = self.server.daemon.jobs
        token = self.server.token(job) if job in known else USERS_TOKEN
        if path in ("/meter", "/clocks"):
            token = "of the meters"
        token = data.draw(st.sampled_from([token] * 9 + ["", "ß", "x"]))
        where = path.replace("{id}", job).replace("{step}", step) + query
        sending = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = self.server.request(method.upper(), where, sending, token=token)
        assert status in (200, 400, 401, 404, 405, 409), (status, method, where, body, answer)
        if path == "/metrics" and status == 200:
            assert answer.startswith(b"# ")  # the one answer that is no JSON
            return
        said = json.loads(answer)
        if status != 200:
            assert list(said) == ["error"] and said["error"], (status, said)

    @rule(seconds=st.floats(0.0, 1e5))
    def watch(self, seconds: float) -> None:
        self.server.clock[0] += seconds
        self.server.daemon.tick()

    @invariant()
    def it_goes_on(self) -> None:
        assert self.server.ask("GET", "/nodes")[0] == 200

    def teardown(self) -> None:
        try:
            assert self.server.ask("GET", "/acct")[0] == 200
            assert not replay(self.server.daemon.journal.read()).differing
        finally:
            self.stack.close()


@pytest.mark.wide
@pytest.mark.promise("no-one-in")
def test_no_request_is_a_fault_of_the_daemon() -> None:
    machine = Asked.TestCase
    machine.settings = settings(
        max_examples=25,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),  # on a machine that has other things to do
    )
    machine().runTest()
