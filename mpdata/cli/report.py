"""What a run prints while it goes and when it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, Protocol


class Told(Protocol):
    """What the ticker needs of a run."""

    @property
    def step(self) -> int:
        """Steps done."""
        ...

    def say(self, text: str) -> None:
        """Print a line once."""
        ...


class Ticker:
    """Progress: a bar where one can be drawn, else ten plain lines.

    Args:
        run: the run, for its ``say``.
        steps: steps of the whole run.
        terminal: the terminal to draw on, or None. Under mpirun output is a pipe: plain lines.
    """

    def __init__(self, run: Told, steps: int, terminal: IO[str] | None = None) -> None:
        self._run, self._steps = run, steps
        self._bar: Any = None
        if terminal is not None and terminal.isatty():
            from rich.console import Console
            from rich.progress import Progress, TimeRemainingColumn

            self._bar = Progress(
                *Progress.get_default_columns()[:-1],
                TimeRemainingColumn(),
                console=Console(file=terminal),
                transient=True,
            )
            self._task = self._bar.add_task("steps", total=steps, completed=run.step)
            self._bar.start()

    def tick(self, done: int) -> None:
        """Report that ``done`` steps are done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        elif done * 10 // self._steps > (done - 1) * 10 // self._steps:
            self._run.say(f"step {done} of {self._steps}")

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def summary(result: Mapping[str, Any]) -> str:
    """Return the readable end of a run."""
    mass = result["mass_initial"]
    change = (result["mass_final"] - mass) / mass if mass else result["mass_final"]
    speed = result["ns_per_cell_step"]
    tracers = result.get("tracers", [])
    of_tracer = ", tracer" if tracers else ""
    lines = [
        f"case {result['case']}, grid {' x '.join(map(str, result['grid']))}, "
        f"{result['steps']} steps, {result['dtype']}, {result['backend']}, "
        f"{result['ranks']} ranks at the end",
        f"loop {result['seconds']:.3f} s"
        + (f", {speed:.2f} ns per cell{of_tracer} and step" if speed else "")
        + f", {result['bytes_per_cell']:.0f} bytes per cell",
        f"min {result['min']:.9g}, max {result['max']:.9g}, mass {result['mass_final']:.12g} "
        f"(relative change {change:.2e})",
    ]
    if result["errors"]:
        norms = ", ".join(f"{name} {value:.6g}" for name, value in result["errors"].items())
        lines.append(f"error {norms}")
    lines.append(f"sha256 {result['sha256']}")
    for tracer in tracers[1:]:
        lines.append(
            f"{tracer['name']}: min {tracer['min']:.9g}, max {tracer['max']:.9g}, "
            f"mass {tracer['mass_final']:.12g}, sha256 {tracer['sha256']}"
        )
    return "\n".join(lines)
