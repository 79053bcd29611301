"""Run a training by ``torchrun`` as a malleable job of rms: ``python agents.py train.py ...``.

An agent of torchrun runs on each slot of the job, so the size of the job is the number of nodes of
``torchrun --nnodes=1:4``. On SIGUSR1 this program takes the request of rms, ends the agents of
slots that go, starts agents on slots that come, and lets PyTorch do the rest: the agents notice
that one has come or gone and restart the training, which goes on from its checkpoint.
The request is answered when the training says that it steps on the new number of ranks.

All agents run on this machine; on several hosts they would be started by ssh on ``RMS_HOSTS``.
What agents and ranks write to standard error is in ``agents.log``: those that are ended print a
traceback there, and so do ranks that lose another one.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from torch.distributed import TCPStore

FOLDER = Path(os.environ["RMS_RESIZE"])
MOST = 4
LOOK_S = 0.1
TOGETHER_S = 30.0
"""Time from the end of the first agent that completes to the end of the last."""

# An agent that is ended does not tell the others: they miss its sign of life after 3 s. After the
# last agent has come, the others wait a second for further ones.
CONF = "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1"

# Else an agent keeps the address of its first round, where another one had rank 0 (PyTorch 2.13).
ADDRESSES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def written(name, content):
    """Write a file of the folder so that rms reads all of it or nothing."""
    part = FOLDER / f"{name}.part"
    part.write_text(content)
    part.rename(FOLDER / name)


def places(slots):
    """Return slots with a number each: nodes that share a core have slots of one name."""
    return {(slot, slots[:at].count(slot)) for at, slot in enumerate(slots)}


def agent(place, command):
    """Start the agent of a slot, on the core of the slot, in a process group of its own."""
    core = place[0].removeprefix("cpu:")
    bind = ["taskset", "-c", core] if core.isdecimal() else []
    with Path("agents.log").open("ab") as log:
        return subprocess.Popen([*bind, *command], stderr=log, start_new_session=True)


def end(agents):
    """End agents, which end their ranks, and wait for them."""
    for one in agents:
        one.terminate()
    for one in agents:
        one.wait()


def main():
    """Follow requests until an agent has ended; return its exit status."""
    asked = []
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    world = FOLDER / "world"
    os.environ.update(WORLD_FILE=str(world), OMP_NUM_THREADS="1", **ADDRESSES)
    command = [
        *[sys.executable, "-P", "-m", "torch.distributed.run", f"--nnodes=1:{MOST}"],
        *["--nproc-per-node=1", "--max-restarts=1000", "--rdzv-backend=c10d"],
        *[f"--rdzv-id={os.environ['RMS_JOB_ID']}", f"--rdzv-endpoint=localhost:{store.port}"],
        *[f"--rdzv-conf={CONF}", *sys.argv[1:]],
    ]
    agents = {at: agent(at, command) for at in places(os.environ["RMS_SLOTS"].split())}
    answers = None  # the request that is to be answered
    try:
        while True:
            ended = [one.returncode for one in agents.values() if one.poll() is not None]
            if any(ended):
                return max(ended)
            if ended:  # the training is over; an agent that has just come never takes part in it
                until_s = time.monotonic() + TOGETHER_S
                while time.monotonic() < until_s and None in [a.poll() for a in agents.values()]:
                    time.sleep(LOOK_S)
                return 0
            ranks = int(world.read_text()) if world.exists() else 0
            if not asked and answers is None and ranks and not (FOLDER / "pid").exists():
                written("pid", f"{os.getpid()}\n")  # it steps: from now on it can be resized
            if asked and answers is None:
                asked.clear()
                try:
                    (FOLDER / "request").rename(FOLDER / "taken")
                except FileNotFoundError:  # rms has withdrawn it
                    continue
                answers = json.loads((FOLDER / "taken").read_text())
                world.unlink(missing_ok=True)
                wanted = places(answers["slots"])
                end([agents.pop(at) for at in set(agents) - wanted])
                agents.update({at: agent(at, command) for at in wanted - set(agents)})
            elif answers is not None and ranks == answers["ranks"]:
                written("answer", json.dumps({"number": answers["number"]}))
                answers = None
            time.sleep(LOOK_S)
    finally:
        end([one for one in agents.values() if one.poll() is None])


if __name__ == "__main__":
    sys.exit(main())
