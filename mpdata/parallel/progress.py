"""What a run prints while it goes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import IO, Any, Protocol


class Run(Protocol):
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

    def __init__(self, run: Run, steps: int, terminal: IO[str] | None = None) -> None:
        self._run, self._steps = run, steps
        self._bar: Any = None
        # A run on a GPU needs no extra, and may be without Rich.
        if terminal is not None and terminal.isatty() and find_spec("rich") is not None:
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
