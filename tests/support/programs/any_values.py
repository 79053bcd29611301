"""A job whose values are of all kinds: any_values.py STRATEGY [bad]; ends with what it has of them.

With ``bad`` a value that cannot be pickled is among them until step 25.
"""

import os
import sys
import threading
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

STRATEGY, BAD = sys.argv[1], "bad" in sys.argv


class Reading:
    """A class of the program's own."""

    def __init__(self, value):
        self.value = value


def state_of(run):
    """Return the values as text that names their types."""
    found = {name: value for name, value in run.state.items() if name != "lock"}
    found["reading"] = (type(found["reading"]).__name__, found["reading"].value)
    return repr(found)


class Job(dmr.Application):
    def fields(self):
        return {"u": dmr.FieldSpec((12,), "f8", lambda box: np.arange(box.start[0], box.stop[0]))}

    def build(self, run):
        if not run.state:
            run.state.update(
                mean=np.float32(0.1),
                count=np.int64(7),
                history=[1.5, float("nan"), float("-inf")],
                table=np.arange(6, dtype="i2").reshape(2, 3),
                pair=(1, "two"),
                names={"a", "b"} - {"b"},
                reading=Reading(np.array([0.25])),
            )
            self.expected = state_of(run)
            if BAD:
                run.state["lock"] = threading.Lock()

    def steps(self, run):
        return 40

    def step(self, run):
        run.fields["u"].interior[...] += 1
        run.state["count"] += 1
        if run.step == 25:
            run.state.pop("lock", None)

    def finish(self, run):
        run.say(f"ended on {run.world.size} ranks with {state_of(run)}")


saved = Path(os.environ.get("SAVED", "saved"))
plan = dmr.Plan(
    every=5,
    resizes={} if STRATEGY == "plain" else {10: 3, 30: 1},
    strategy="auto" if STRATEGY == "plain" else STRATEGY,
    checkpoint=dmr.Schedule(saved, 15),
    restart="again" in sys.argv,
)
try:
    dmr.run(Job(), dmr.Runtime.here(MPI.COMM_WORLD), plan)
except dmr.UsageError as error:
    sys.exit(f"refused: {error}")
