"""A world on one host listened on the loopback address: ranks spawned on another never reached it.

Under bare ``mpirun -hosts n1,n2 -n 1`` a resize waited until its deadline; real hosts are in
``tests/slurm/test_across_hosts.py``.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from mpi4py import MPI

from dmr.boot import spawn
from dmr.boot.environment import Runtime
from dmr.wire import channel


def runtime(*, launched: bool) -> Any:
    made = Runtime.here(MPI.COMM_SELF, {})
    made.launched = launched
    return made


@pytest.mark.parametrize("launched", [True, False])
def test_a_launched_world_can_be_reached_from_other_hosts(launched: bool) -> None:
    listener = spawn._listener(runtime(launched=launched))
    try:
        host = listener.address.partition(":")[0]
        assert host == (socket.gethostname() if launched else channel.LOOPBACK)
        # This host's own name need not resolve.
        assert channel.place_of(listener.address)[0] == channel.LOOPBACK
        met: list[channel.ControlChannel] = []
        meeting = threading.Thread(target=lambda: met.append(listener.accept(30)))
        meeting.start()
        with channel.connect(listener.address, 30):
            meeting.join(30)
        assert len(met) == 1
        met[0].close()
    finally:
        listener.close()


def test_the_name_of_another_host_stays() -> None:
    assert channel.place_of("n2.cluster:4711:token") == ("n2.cluster", 4711)
