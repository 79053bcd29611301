"""``mpdata`` as it is, noting begins and ends of steps: FOLDER, then mpdata's own words.

Every world appends to a file of its own, once, when it leaves; times are of the system's clock.
"""

import atexit
import sys
import time
from pathlib import Path

from mpdata.cli.main import main


def observe(folder: Path) -> None:
    from mpdata.parallel.app import Advection

    step = Advection.step
    spans: list[tuple[float, float]] = []

    def observed(self, run) -> None:  # type: ignore[no-untyped-def]
        begun = time.monotonic()
        step(self, run)
        spans.append((begun, time.monotonic()))

    def leave() -> None:
        if spans:
            lines = "".join(f"{begun!r} {ended!r}\n" for begun, ended in spans)
            (folder / f"steps-{spans[0][0]:.6f}").write_text(lines)

    Advection.step = observed  # type: ignore[method-assign]
    atexit.register(leave)


if __name__ == "__main__":
    observe(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
