"""The daemon's routes, called as an HTTP server calls them: answers, tokens, refusals."""

from __future__ import annotations

import getpass
import json

import pytest
from routed import SCRIPT, USERS_TOKEN, Routed, answered

from rms.core.model.jobs import JobId
from rms.daemon.ask.http import Peer
from rms.daemon.ask.routes import Routes
from rms.wire.http import USER_TOKEN, Session, digest, job_name

JOB_ROW = (
    "id name state mode submit_s start_s end_s nodes size nodes_min nodes_max reason step steps "
    "energy_j energy_source energy uncertainty_j answer resizes resizing resize_to output slurm "
    "summary seen profile frequency exit_code account user limit_s priority expected_start_s "
    "nodelist exclude restartable lost"
)
BOOKS = "at_s busy_j idle_j off_j boot_j cluster_j busy_node_s power_source sources tasks_j lost"


def test_answers_have_the_names_of_the_contract(server: Routed) -> None:
    runs = server.submit(nodes=[1, 2], mode="flexible", job_name="runs", cooldown_s=2.5)
    waits = server.submit(nodes=[2, 2])
    status, rows = server.ask("GET", "/jobs")
    assert status == 200 and [row["id"] for row in rows] == [runs, waits]
    assert all(list(row) == JOB_ROW.split() for row in rows)
    assert rows[0] | {"energy_j": 0.0} == {
        "id": "1",
        "name": "runs",
        "state": "RUNNING",
        "mode": "flexible",
        "submit_s": 1000.0,
        "start_s": 1000.0,
        "end_s": None,
        "nodes": rows[0]["nodes"],
        "size": len(rows[0]["nodes"]),
        "nodes_min": 1,
        "nodes_max": 2,
        "reason": "",
        "step": 0,
        "steps": 0,
        "energy_j": 0.0,
        "energy_source": "model",
        "energy": [{"source": "model", "joules": 0.0, "uncertainty_j": 0.0, "estimate": False}],
        "uncertainty_j": None,
        "answer": "",
        "resizes": [],
        "resizing": "",
        "resize_to": None,
        "output": "/rms-1.out",
        "slurm": {},
        "summary": None,
        "seen": [],
        "profile": "",
        "frequency": None,
        "exit_code": None,
        "account": "",
        "user": getpass.getuser(),
        "limit_s": None,
        "priority": 0.0,
        "expected_start_s": None,
        "nodelist": [],
        "exclude": [],
        "restartable": None,
        "lost": None,
    }
    kept = server.daemon.context.private.kept(f"{runs}/environment")
    assert kept == {"A": "1", "DMR_COOLDOWN": "2.5"}
    assert server.ask("GET", f"/jobs?id={waits}")[1] == rows[1:]
    (entry,) = server.ask("GET", f"/history/{runs}")[1]
    assert list(entry) == ["at_s", "kind", "code", "reason", "size", "nodes"]
    assert server.ask("GET", "/nodes")[1][0] == {
        "name": "n1",
        "slots": ["cpu:0"],
        "state": "allocated",
        "job": runs,
        "power_source": "model",
        "allocated": 1,
        "frequency": None,
        "reason": "",
        "kinds": {},
    }
    books = server.ask("GET", "/books")[1]
    heads = ["energy", "spans", "nodes", "now_s", "policy", "power_w", "closed", "power_spans"]
    assert list(books) == heads
    assert list(books["energy"]) == BOOKS.split()
    assert books["spans"][0] == {"node": "n1", "job": "1", "start_s": 1000.0, "end_s": None}
    assert server.ask("POST", "/cancel", {"id": waits}) == (200, {"ids": [waits]})
    assert server.ask("POST", "/drain", {"node": "n[1-2]"}) == (200, {"nodes": ["n1", "n2"]})
    assert server.ask("GET", "/nodes")[1][0]["state"] == "draining"
    assert server.ask("POST", "/resume", {"node": "n1"}) == (200, {"nodes": ["n1"]})
    assert server.ask("POST", "/policy", {"name": "easy"}) == (
        200,
        {"name": "easy", "strategy": "short-term", "governor": "high"},
    )
    assert server.ask("GET", "/policy") == (
        200,
        {"name": "easy", "strategy": "short-term", "governor": "high"},
    )
    assert server.ask("POST", "/shutdown", b"") == (200, {}) and server.stopped == [True]


def test_an_array_is_one_number(server: Routed) -> None:
    status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": {"array": "3-5%1"}})
    assert (status, answer) == (200, {"ids": ["1_3", "1_4", "1_5"]})
    spec = server.daemon.context.state.job(JobId("1_4"))
    assert spec is not None and (spec.spec.array, spec.spec.array_limit) == ("1", 1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "expected"),
    [
        ("POST", "/jobs", b"{", 400, "truncated"),
        ("POST", "/jobs", {}, 400, "missing required field `text`"),
        ("POST", "/jobs", SCRIPT | {"colour": "red"}, 400, "unknown field `colour`"),
        ("POST", "/jobs", SCRIPT | {"options": {"mode": "odd"}}, 400, "'odd'"),
        ("POST", "/jobs", SCRIPT | {"options": {"preferred": 9}}, 400, "expected"),
        ("POST", "/jobs", SCRIPT | {"options": {"array": "x"}}, 400, "expected indices"),
        ("GET", "/jobs?id=9", None, 404, "expected the id of a job, got 9"),
        ("GET", "/jobs?id=x", None, 400, "expected a job id like 7"),
        ("POST", "/cancel", {"id": "9"}, 404, "expected the id of a job, got 9"),
        ("POST", "/hold", {"id": "9"}, 404, "expected the id of a job, got 9"),
        ("POST", "/hold", {"id": "1"}, 409, "expected a job that waits, got 1, RUNNING"),
        ("POST", "/requeue", {"id": "9"}, 404, "expected the id of a job, got 9"),
        ("POST", "/jobs", SCRIPT | {"options": {"dependency": "afterok:9"}}, 400, "got 9"),
        ("POST", "/jobs", SCRIPT | {"options": {"begin": "x"}}, 400, "--begin: expected a time"),
        ("POST", "/resize", {"id": "9", "nodes": 1}, 404, "expected the id of a job, got 9"),
        ("POST", "/resize", {"id": "1", "nodes": 2, "strategy": "x"}, 400, "expected a strategy"),
        ("POST", "/resize", {"id": "1", "nodes": "2"}, 400, "Expected `int | null`, got `str`"),
        ("POST", "/resize", {"id": "1", "nodes": 2, "on": "n7,n8"}, 400, "expected 2 nodes"),
        ("GET", "/history/9", None, 404, "expected the id of a job, got 9"),
        ("POST", "/drain", {"node": "n9"}, 400, "expected nodes of this cluster, got n9"),
        ("POST", "/policy", {"name": "nix"}, 400, "expected a policy of"),
        ("POST", "/policy", {"name": "/tmp/mine.toml"}, 400, "expected a policy of"),
        ("POST", "/policy", {"name": '{"order":{"part":"os:abort"}}'}, 400, "--policy-modules"),
        ("POST", "/policy", {"strategy": "/tmp/mine.py"}, 400, "expected the text of"),
        ("POST", "/policy", b'{"name":' * 100_000, 400, "Expected `str`"),
        ("POST", "/cancel", b'{"id":' + b"[" * 100_000, 400, "Expected `str | null`"),
        ("POST", "/shutdown", b'{"x":' + b"[" * 100_000, 400, "expected JSON that is nested less"),
        ("POST", "/drain", {"node": "n[1-999999999]"}, 400, "expected at most 100000 nodes"),
        ("POST", "/drain", {"node": "n[" + "1-90000," * 999 + "1]"}, 400, "expected at most"),
        ("POST", "/resize", {"id": "1", "nodes": 10**30}, 400, "Expected `int` <="),
        ("POST", "/resize", {"id": "1", "nodes": -1}, 400, "Expected `int` >= 0"),
        ("POST", "/power-cap", {"cap_w": 1e308}, 400, "Expected `float` <="),
        ("POST", "/jobs", SCRIPT | {"options": {"nodes": [1, 10**10]}}, 400, "Expected `int` <="),
        ("POST", "/jobs", SCRIPT | {"options": {"power_w": 1e308}}, 400, "Expected `float` <="),
        ("POST", "/jobs", SCRIPT | {"name": "\x1b[2J"}, 400, "expected a printable text"),
        ("POST", "/jobs", SCRIPT | {"options": {"job_name": "a\nb"}}, 400, "expected a printable"),
        ("POST", "/jobs", SCRIPT | {"options": {"profile": "/etc/x.json"}}, 400, "--profile"),
        ("POST", "/jobs", SCRIPT | {"text": "#!/bin/sh\n" + "x" * (1 << 22)}, 400, "length <="),
        ("POST", "/jobs", b" " * ((1 << 24) + 1), 413, "at most 16777216 bytes"),
        ("GET", "/jobs/1/x", None, 404, "expected a path"),
        ("POST", "/nodes", {}, 405, "expected a path"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    server: Routed, method: str, path: str, body: object, status: int, expected: str
) -> None:
    server.submit()
    found, answer = server.ask(method, path, body)
    assert (found, list(answer)) == (status, ["error"])
    assert expected in answer["error"] and "\n" not in answer["error"]


def test_an_answer_is_sent_after_all_entries_are_on_the_disk(server: Routed) -> None:
    journal, job = server.daemon.journal, server.submit(nodes=[2, 2])
    for method, path in (("POST", "/cancel"), ("GET", "/jobs")):
        before = journal.written
        server.daemon.nodes.drain(["n2"], drained=method == "POST")
        assert server.ask(method, path, {"id": job} if method == "POST" else None)[0] == 200
        assert before < journal.written == journal.synced


def test_a_client_that_goes_before_its_request_is_whole_is_no_error(server: Routed) -> None:
    routes = Routes(server.daemon, lambda: None, "users", ["socket"], "metrics")
    work = answered(routes.app(), "POST", "/jobs", None, None, ("socket", None))
    status, _, text = server.loop.run_until_complete(work)
    assert (status, json.loads(text)["error"]) == (
        400,
        "expected a whole request, got a part of one",
    )


def test_over_tcp_users_show_the_servers_token(server: Routed) -> None:
    for token in (None, "wrong", "of the meters", "fälsch"):
        status, answer = server.ask("GET", "/jobs", token=token, over_tcp=True)
        assert status == 401 and "signed with the server's token" in answer["error"]
    assert server.ask("GET", "/jobs", token=USERS_TOKEN, over_tcp=True) == (200, [])
    assert server.ask("GET", "/jobs") == (200, [])  # a Unix socket is its owner's


@pytest.mark.promise("no-one-in")
@pytest.mark.parametrize("where", [None, ("10.0.0.1", 80), ("another socket", None), ("", None)])
def test_users_are_not_let_in_from_elsewhere(
    server: Routed, where: tuple[str, int | None] | None
) -> None:
    server.where = where
    status, answer = server.ask("GET", "/jobs", token=USERS_TOKEN)
    assert status == 401 and "got a request over the network" in answer["error"]
    job = server.submit_here()
    found, _ = server.ask("GET", f"/jobs/{job}/steps/0", token=server.token(job))
    assert found == 404  # jobs on other nodes speak about themselves


@pytest.mark.parametrize("over_tcp", [False, True])
def test_jobs_show_their_own_token(server: Routed, over_tcp: bool) -> None:
    first, second = server.submit(), server.submit()
    line = {"command": ["x"], "cwd": "/", "env": {}}
    for token in (None, USERS_TOKEN, server.token(second)):
        found = server.ask("POST", f"/jobs/{first}/steps", line, token=token, over_tcp=over_tcp)
        assert found == (401, {"error": f"expected the token of job {first}"})
    found = server.ask("GET", "/jobs/9/steps/0", token="x", over_tcp=over_tcp)
    assert found == (401, {"error": "expected the token of job 9"})
    found = server.ask("GET", f"/jobs/{first}/steps/0", token=server.token(first))
    assert found == (404, {"error": "expected a step below 0, got 0"})


@pytest.mark.promise("no-one-in")
def test_requests_over_tcp_are_signed_and_so_are_answers(server: Routed) -> None:
    job, other = server.submit(), server.submit()
    token, path, body = server.token(job), f"/jobs/{job}/report", b'{"type":"Begun","number":1}'

    def send(
        by: Session, method: str, where: str, signed: bytes, sent: bytes | None = None
    ) -> tuple[int, bytes]:
        shown = by.sign_request(method, where, digest(signed))
        assert token not in shown
        found = server.request(
            method, where, signed if sent is None else sent, shown=shown, over_tcp=True, peer=peer
        )
        if found[0] != 401:
            assert server.headers["rms-signature"] == by.sign_answer(*found)
        return found

    peer = Peer()
    session = server.session(token, job_name(job), peer)
    assert server.proof == session.proof
    assert [send(session, "POST", path, body) for _ in range(2)] == [(200, b"{}")] * 2
    for where, status in ((f"/jobs/{job}/steps/9", 404), ("/jobs/7/x", 404), ("/nodes", 401)):
        assert send(session, "GET", where, b"")[0] == status
    assert send(session, "POST", path, b"{")[0] == 400
    assert send(session, "POST", path, body, body.replace(b"1", b"2"))[0] == 401
    assert send(session, "POST", f"/jobs/{other}/report", body)[0] == 401
    for wrong in (server.token(other), USERS_TOKEN, "x"):
        peer = Peer()
        session = server.session(wrong, job_name(job), peer)
        assert server.proof != session.proof
        assert send(session, "POST", path, body)[0] == 401
    for name in ("job-9", "job-", "nobody", "job-7\u00e9"):  # whether there is one is not told
        session = server.session("", name, peer := Peer())
        assert send(session, "GET", "/jobs/9/steps/0", b"")[0] == 401
    users = server.session(USERS_TOKEN, USER_TOKEN, peer := Peer())
    assert send(users, "GET", "/jobs?id=1", b"")[0] == 200
    assert send(users, "HEAD", "/jobs?id=2", b"")[0] == 200
    assert send(users, "GET", "/none", b"")[0] == 404
    assert send(users, "GET", f"/jobs/{job}/steps/0", b"")[0] == 401
    for odd in ("RMS-HMAC", "RMS-HMAC a b", "RMS-HMAC a \u00e9", f"Bearer {USERS_TOKEN}"):
        assert server.request("GET", "/jobs", shown=odd, over_tcp=True, peer=peer)[0] == 401
        assert server.headers["connection"] == "close"


def test_meters_show_theirs(server: Routed) -> None:
    def reading(number: int, at_s: float, joules: float, node: str = "n1") -> dict[str, object]:
        device = {"device": "package-0", "source": "rapl", "joules": joules}
        devices = [device] if number else []
        return {
            "node": node,
            "agent": "a",
            "number": number,
            "at_s": at_s,
            "boot": "b",
            "devices": devices,
        }

    for token in (None, USERS_TOKEN):
        found = server.ask("POST", "/meter", reading(1, 0.0, 0.0), token=token)
        assert found == (401, {"error": "expected the token of this daemon's meters"})
    nothing = {"known": [], "boot": "", "at_s": 0.0}
    token = "of the meters"
    assert server.ask("POST", "/meter", reading(0, 0.0, 0.0), token=token) == (200, nothing)
    for number, at_s in ((1, 1_000.0), (2, 1_001.0)):
        said = reading(number, at_s, 70.0 * number)
        assert server.ask("POST", "/meter", said, token=token) == (200, nothing)
    assert server.ask("GET", "/nodes")[1][0]["power_source"] == "rapl"
    _, known = server.ask("POST", "/meter", reading(0, 0.0, 0.0), token=token)
    assert (known["boot"], known["at_s"], known["known"][0]["joules"]) == ("b", 1_001.0, 140.0)
    found = server.ask("POST", "/meter", reading(1, 0.0, 0.0, "n9"), token=token)
    assert found == (400, {"error": "expected a node of this cluster, got n9"})
