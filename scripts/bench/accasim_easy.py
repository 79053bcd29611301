"""AccaSim's EASY backfilling on the first jobs of a trace; prints one line of JSON.

Run by scripts/bench/scheduling where AccaSim is installed (its Python: ACCASIM_PYTHON).
"""

from __future__ import annotations

import collections
import collections.abc
import gzip
import json
import os
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    for name in ("Mapping", "MutableMapping", "Sequence", "Iterable", "Callable"):
        if not hasattr(collections, name):  # it was written for Python before 3.10
            setattr(collections, name, getattr(collections.abc, name))
    from accasim.base.allocator_class import FirstFit
    from accasim.base.scheduler_class import EASYBackfilling
    from accasim.base.simulator_class import Simulator

    trace, count = Path(sys.argv[1]), int(sys.argv[2])
    with gzip.open(trace, "rt") as file:
        lines = file.readlines()
    head = [line for line in lines if line.startswith(";")]
    jobs = [line for line in lines if not line.startswith(";")][:count]
    for at, line in enumerate(jobs):  # it divides by the memory that is asked for
        fields = line.split()
        fields[9] = "1"
        jobs[at] = " ".join(fields) + "\n"
    processors = next(int(line.split(":")[1]) for line in head if "MaxProcs" in line)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("trace.swf").write_text("".join([*head, "; UnixStartTime: 0\n", *jobs]))
        system = {"groups": {"g": {"core": 1, "mem": 1}}, "resources": {"g": processors}}
        Path("system.json").write_text(json.dumps({**system, "start_time": 0}))
        simulator = Simulator(
            "trace.swf",
            "system.json",
            EASYBackfilling(FirstFit()),
            scheduling_output=False,
            statistics_output=False,
            show_statistics=False,
        )
        begun = time.process_time()
        simulator.start_simulation()
        print()
        print(json.dumps({"jobs": count, "jobs_per_s": count / (time.process_time() - begun)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
