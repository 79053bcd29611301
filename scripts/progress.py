"""Progress lines for long scripts: what runs, since when, and how long it is expected to take.

Standard library only: the set-up of the environment has one too.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time

SILENCE_S = 4.0
"""Where the output is no terminal, a line is printed after so long without any other."""
SHARE_S = 0.5
"""Time for which :func:`share_of_cores` computes."""


class Progress:
    """Prints lines, and below them what runs: in place on a terminal, else now and then.

    Args:
        words: returns what runs; "" for nothing. None for that of :meth:`doing`.
        silence_s: longest time without a line where the output is no terminal.
    """

    def __init__(self, words=None, silence_s=SILENCE_S):
        self.terminal = sys.stdout.isatty()
        self.file = None
        self.detail = ""
        self._words = words or self._doing
        self._silence_s = silence_s
        self._what, self._begun, self._expected_s = "", 0.0, None
        self._printed = time.monotonic()
        self._lock, self._over = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()
        with self._lock:
            self._clear()

    def __call__(self, line, coloured=None):
        """Print a line, on a terminal the coloured one, and keep it in the file if there is one."""
        with self._lock:
            self._clear()
            print(coloured if coloured and self.terminal else line, flush=True)
            self._printed = time.monotonic()
            if self.file is not None:
                print(line, file=self.file, flush=True)

    @contextlib.contextmanager
    def doing(self, what, expected_s=None):
        """Show for a block what runs, and how long it is expected to take."""
        before = self._what, self._begun, self._expected_s, self.detail
        self._what, self._begun, self._expected_s = what, time.monotonic(), expected_s
        self.detail = ""
        try:
            yield
        finally:
            self._what, self._begun, self._expected_s, self.detail = before

    def _doing(self):
        if not self._what:
            return ""
        seconds = time.monotonic() - self._begun
        expected = f" of about {self._expected_s:.0f} s" if self._expected_s else " s"
        detail = f", {self.detail}" if self.detail else ""
        return f"   ... {self._what}{detail}: {seconds:.0f}{expected}"

    def _clear(self):
        if self.terminal:
            print("\r\033[K", end="", flush=True)

    def _tick(self):
        while not self._over.wait(0.5):
            with self._lock:
                words = self._words()
                if self.terminal:
                    width = shutil.get_terminal_size().columns - 1
                    print(f"\r\033[K{words[:width]}", end="", flush=True)
                elif words and time.monotonic() - self._printed >= self._silence_s:
                    print(words, flush=True)
                    self._printed = time.monotonic()


def cores_here():
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def cores_words(cores):
    """Return a number of cores in words."""
    return "1 core" if cores == 1 else f"{cores} cores"


def share_of_cores(cores):
    """Return the part of its core that a process gets, where as many compute as there are cores."""
    program = (
        f"import time as t; b = t.perf_counter(); c = t.process_time()\n"
        f"while t.perf_counter() - b < {SHARE_S}: pass\n"
        "print((t.process_time() - c) / (t.perf_counter() - b))"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            for _ in range(cores)
        ]
        shares = [float(process.communicate()[0]) for process in started]
    return sum(shares) / len(shares)


def load_words(cores, share):
    """Return a sentence on a machine whose cores others use too, or ""."""
    if share > 0.85:
        return ""
    load = f" (load average {os.getloadavg()[0]:.1f})" if hasattr(os, "getloadavg") else ""
    return (
        f"Others use this machine's {cores_words(cores)} too{load}: a process gets {share:.0%} of a "
        "core, so all takes longer than on a quiet machine."
    )
