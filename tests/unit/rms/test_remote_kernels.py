"""Kernels in a process of another node: the data that travels, and what goes wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import remote_kernels
from processes import started

from rms.kernels import Kernel, KernelCollection, Resource, remote
from rms.kernels.places import Place, put_back
from rms.kernels.remote import RemoteError, run_remotely

HERE = Place(Resource.NODE, "node-n1", (f"cpu:{min(os.sched_getaffinity(0))}",))
THERE = Place(Resource.NODE, "node-n1", ("n1/core:0",))


class Bed:
    """Starts processes as a daemon would."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.process: subprocess.Popen[str] | None = None
        self.variables: Mapping[str, str] = {}

    def begin(self, command: list[str], variables: Mapping[str, str]) -> None:
        self.variables = variables
        env = {**os.environ, **variables}
        self.process = self._stack.enter_context(started(command, env=env))

    def ended(self) -> str:
        code = None if self.process is None else self.process.poll()
        return "" if code is None else f"exit status {code}"

    def run(
        self,
        function: Callable[[Any], Any],
        data: Any,
        stop: Callable[[], bool] = bool,
        where: Place = HERE,
        **moves: Any,
    ) -> bool:
        kernel = Kernel(function, Resource.NODE, **moves)
        return run_remotely(kernel, data, where, self.begin, stop, self.ended)


@pytest.fixture
def bed() -> Iterator[Bed]:
    with ExitStack() as stack:
        yield Bed(stack)


@pytest.mark.promise("remote-kernels")
def test_data_travels_to_another_process_and_back(bed: Bed) -> None:
    u = np.arange(5.0)
    data = {"u": u, "name": "plate"}
    assert bed.run(remote_kernels.fill, data)
    assert data["u"] is u and list(u) == [0.0, 2.0, 3.0, 4.0, 5.0]
    assert list(data["new"]) == [0.0, 3.0, 5.0] and data["name"] == "plate"
    pid, device, cores = data["by"]  # type: ignore[misc]
    assert bed.process is not None and pid == bed.process.pid != os.getpid()
    assert device == "node-n1" and cores == list(HERE.cpus)
    assert bed.process.wait(60.0) == 0  # it ends with its connection


@pytest.mark.wide
@pytest.mark.promise("remote-kernels")
def test_what_goes_wrong_there_leaves_the_data_as_it_was(
    bed: Bed, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data: dict[str, Any] = {"u": np.zeros(3)}
    with pytest.raises(KeyError, match="3") as raised:
        bed.run(remote_kernels.fails, data)
    assert "on node-n1" in raised.value.__notes__[0]
    with pytest.raises(RemoteError, match="expected a result from another node, got none"):
        bed.run(remote_kernels.dies, data)
    with pytest.raises(RemoteError, match="that can be sent back"):
        bed.run(remote_kernels.unsendable, data)
    assert list(data) == ["u"] and not data["u"].any()
    # A stop is answered at the next yield point, with the data as it is by then.
    data |= {"at": 0, "go": str(tmp_path / "go"), "log": str(tmp_path / "log")}
    begun = (tmp_path / "log").exists
    assert not bed.run(remote_kernels.steps, data, begun) and data["at"] > 0
    with pytest.raises(RemoteError, match="got its end: exit status 1"):
        monkeypatch.setattr(bed, "ended", lambda: "exit status 1")
        bed.run(remote_kernels.fill, data)
    with pytest.raises(ValueError, match="expected a module's own function as a kernel"):
        KernelCollection({}, Kernel(lambda data: None, Resource.NODE))


@pytest.mark.wide
@pytest.mark.promise("remote-kernels")
def test_whoever_does_not_know_the_key_is_turned_away(bed: Bed) -> None:
    strangers = list[bytes]()

    def begin(command: list[str], variables: Mapping[str, str]) -> None:
        host, _, port = variables[remote.ADDRESS_VARIABLE].rpartition(":")
        for said in (b"", b"\0\0\0\x20" + b"x" * 32 + b"\0\0\0\x20" + b"y" * 32, b"\xff" * 9):
            stranger = socket.create_connection((host, int(port)))
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)

            def read(stranger: socket.socket = stranger) -> None:
                got = b""
                while more := stranger.recv(1 << 16):
                    got += more
                strangers.append(got)
                stranger.close()

            threading.Thread(target=read, daemon=True).start()
        bed.begin(command, {**variables, remote.ADDRESS_VARIABLE: f"localhost:{port}"})

    data = {"u": np.arange(3.0), "secret": "in clear"}
    kernel = Kernel(remote_kernels.fill, Resource.NODE)
    assert run_remotely(kernel, data, THERE, begin, bool, bed.ended)
    assert list(data["u"]) == [0.0, 2.0, 3.0]
    assert not any(b"secret" in got for got in strangers)


def test_data_of_any_kind_is_put_back() -> None:
    array, items, named = np.zeros(2), [1, 2], SimpleNamespace(u=np.zeros(2), n=1)
    put_back(np.ones(2), array)
    put_back([3], items)
    u = named.u
    put_back(SimpleNamespace(u=np.full(2, 7.0), n=2), named)
    assert list(array) == [1.0, 1.0] and items == [3]
    assert named.u is u and list(u) == [7.0, 7.0] and named.n == 2
