"""Run ``sh TASK.sh N`` for N from 0, one at a time on each slot of a job of rms, and follow its
resizes: ``python pool.py NUMBER TASK.sh``."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

folder = Path(os.environ["RMS_RESIZE"])
slots, running, size, signals = os.environ["RMS_SLOTS"].split(), [], None, []
tasks = list(range(int(sys.argv[1])))


def put(name, text):
    """Write a file so that rms reads all of it or nothing."""
    part = folder / f"{name}.part"
    part.write_text(text)
    part.rename(folder / name)


def start(slot, task):
    """Start a task on the core of a slot."""
    command = ["taskset", "-c", slot.removeprefix("cpu:"), "sh", sys.argv[2], str(task)]
    return slot, subprocess.Popen(command)


signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
put("pid", f"{os.getpid()}\n")  # from now on this process can be notified
while tasks or running:
    if signals:
        signals.clear()
        try:
            (folder / "request").rename(folder / "taken")
            size = json.loads((folder / "taken").read_text())
            slots = size["slots"]
        except FileNotFoundError:  # rms has withdrawn it
            pass
    running = [(slot, process) for slot, process in running if process.poll() is None]
    busy = Counter(slot for slot, _ in running)
    if size and not busy - Counter(slots):  # nothing runs on slots that go
        print(f"{size['ranks']} slots, {len(tasks)} tasks left", flush=True)
        put("answer", json.dumps({"number": size["number"]}))
        size = None
    free = Counter(slots) - busy
    running += [start(slot, tasks.pop(0)) for slot in free.elements() if tasks]
    time.sleep(0.05)
