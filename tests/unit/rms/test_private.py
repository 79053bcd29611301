"""What only the owner of a daemon may read: its folder, environments and tokens."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
from pathlib import Path
from unittest import mock

import pytest
from routed import SCRIPT, routed
from sentences import one_sentence

from rms.daemon.store.private import (
    Private,
    ServeError,
    check_loopback,
    make_folder,
    owner_only,
    secret,
)
from rms.launch.base import LaunchError
from rms.wire.http import UnreachableError, request

SECRET = "swordfish-4711"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.promise("no-one-in")
def test_files_are_their_owners_alone_for_a_block(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with owner_only():
            (tmp_path / "own").touch()
        (tmp_path / "any").touch()
    finally:
        os.umask(before)
    assert (mode(tmp_path / "own"), mode(tmp_path / "any")) == (0o600, 0o666)


@pytest.mark.promise("no-one-in")
def test_secrets_are_in_files_of_their_owner_and_not_in_the_journal(tmp_path: Path) -> None:
    body = SCRIPT | {"env": {"KEY": SECRET}, "options": {"array": "1-3", "mode": "fixed"}}
    line = {"command": ["x"], "cwd": "/", "env": {"KEY": SECRET}}
    with routed(tmp_path) as server:
        assert server.ask("POST", "/jobs", body)[1] == {"ids": ["1_1", "1_2", "1_3"]}
        token = server.token("1_1")
        line["env"] = {"KEY": SECRET, "RMS_TOKEN": token}
        assert server.ask("POST", "/jobs/1_1/steps", line, token=token) == (200, {"step": 0})
        assert len({server.token(f"1_{n}") for n in (1, 2, 3)}) == 3
    assert all(
        SECRET.encode() not in path.read_bytes() and token.encode() not in path.read_bytes()
        for path in tmp_path.glob("journal*")
    )
    holding = [p for p in tmp_path.rglob("*") if p.is_file() and SECRET in p.read_text("latin-1")]
    assert sorted(str(path.relative_to(tmp_path)) for path in holding) == [
        "jobs/1/environment",
        "jobs/1_1/line-0",
    ]
    assert {mode(path) for path in [*holding, tmp_path / "key"]} == {0o600}
    with routed(tmp_path) as server:  # as before
        kept = server.daemon.context.private.kept("1/environment")
        assert server.token("1_1") == token and kept == {"KEY": SECRET}


def test_an_environment_that_is_gone_is_said(tmp_path: Path) -> None:
    with one_sentence(LaunchError, "expected the environment in"):
        Private(tmp_path, "x").kept("7/environment")


def test_another_journal_gives_other_tokens(tmp_path: Path) -> None:
    assert Private(tmp_path, "x").token("1") != Private(tmp_path, "y").token("1")
    assert Private(tmp_path, "x").token("1") != Private(tmp_path, "x").token("2")


def test_a_secret_that_was_not_written_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    found = secret(tmp_path / "token")
    assert len(found) == 32 and secret(tmp_path / "token") == found
    assert mode(tmp_path / "token") == 0o600


@pytest.mark.promise("no-one-in")
def test_a_folder_that_others_can_open_or_replace_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "new" / "state")
    assert mode(tmp_path / "new" / "state") == 0o700
    loose = tmp_path / "loose"
    loose.mkdir()
    for others in (0o755, 0o710, 0o702):
        loose.chmod(others)
        with one_sentence(ServeError, f"got mode {others:o}"):
            make_folder(loose)
    loose.chmod(0o777)
    with one_sentence(ServeError, "no other user can replace"):
        make_folder(loose / "state")
    loose.chmod(0o1777)
    make_folder(loose / "state")
    (tmp_path / "link").symlink_to(loose / "state")
    make_folder(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(loose / "state", 65534, 65534)
        with one_sentence(ServeError, "of user 65534"):
            make_folder(tmp_path / "link")


@pytest.mark.parametrize("listen", ["tcp:0.0.0.0:80", "tcp:10.0.0.1:80", "tcp:node7:80", "tcp::80"])
def test_tcp_is_of_this_machine_alone(listen: str) -> None:
    with one_sentence(ServeError, "ssh -L"):
        check_loopback(listen)
    for own in ("tcp:127.0.0.1:0", "tcp:localhost:80", "tcp:127.1.2.3:80", "unix:/x"):
        check_loopback(own)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not tell")
def test_a_client_says_nothing_to_a_daemon_of_somebody_else(tmp_path: Path) -> None:
    path, uid = str(tmp_path / "socket"), os.geteuid()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        with (
            mock.patch("os.geteuid", return_value=uid + 1),
            pytest.raises(UnreachableError, match=f"of user {uid + 1} .* got one of user {uid}"),
        ):
            request(f"unix:{path}", "POST", "/jobs", SECRET.encode())
        answering, _ = listening.accept()
        with answering:
            assert answering.recv(100) == b""


def test_what_can_be_asked_is_described(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        status, found = server.ask("GET", "/openapi.json")
        assert status == 200 and found["openapi"] == "3.1.0"
        submit = found["paths"]["/jobs"]["post"]
        sent = submit["requestBody"]["content"]["application/json"]["schema"]
        assert sent == {"$ref": "#/components/schemas/Submission"}
        refusals = ["400", "401", "404", "409", "410", "413", "503"]
        assert list(submit["responses"]) == ["200", *refusals]
        assert found["components"]["schemas"]["Submission"]["properties"]["name"] == {
            "type": "string",
            "maxLength": 1024,
        }
        content = {
            path: found["paths"][path]["get"]["responses"]["200"]["content"]
            for path in ("/metrics", "/jobs")
        }
        (kind,) = content["/metrics"]
        assert kind.startswith("text/plain") and content["/metrics"][kind]["schema"] == {
            "type": "string"
        }
        (kind,) = content["/jobs"]
        assert kind == "application/json" and content["/jobs"][kind]["schema"]["type"] == "array"
        named = {
            path: [
                (each["in"], each["name"]) for each in found["paths"][path][method]["parameters"]
            ]
            for path, method in (("/jobs/{id}/poll", "post"), ("/policy", "post"))
        }
        assert named == {"/jobs/{id}/poll": [("path", "id"), ("query", "run")], "/policy": []}
        refs = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found)))
        assert refs <= found["components"]["schemas"].keys() and len(refs) > 30
        assert server.ask("GET", "/openapi.json", over_tcp=True)[0] == 401
