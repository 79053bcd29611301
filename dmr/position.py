"""Where a program is in its loops: what a new world needs to go on at the very step.

A position is, for every loop that is open (the outermost first), the step it is at, and for every
depth how many loops have ended there since the loop around them took its present step.
"""

from __future__ import annotations

from dmr.progress import Progress


class Position:
    """Follows the loops of one process; a world that takes over finds its way back to them.

    Args:
        progress: holds the position, so that it travels; taken over where it holds one.

    Attributes:
        done, at: the position.
        goal: that of an earlier world which was further, until it is reached; else None.
    """

    def __init__(self, progress: Progress) -> None:
        done, at = progress.loops_done, progress.loops_at
        self.goal: tuple[list[int], list[int]] | None = (list(done) or [0], list(at))
        self.done: list[int] = [0]
        self.at: list[int] = []
        self.follow(progress)
        self._arrive()

    def follow(self, progress: Progress) -> None:
        """Keep the position in this progress from now on."""
        progress.loops_done, progress.loops_at = self.done, self.at

    def enter(self) -> tuple[int, int] | None:
        """Open a loop; return its depth and its first step, None if it has ended in the past."""
        depth = len(self.at)
        start = 0
        if self.goal is not None:
            done, at = self.goal
            if self.done[depth] < done[depth]:
                self.done[depth] += 1
                self._arrive()
                return None
            start = at[depth]
        self.at.append(start)
        self.done.append(0)
        self._arrive()
        return depth, start

    def passed(self) -> None:
        """The innermost loop has done a step."""
        self.goal = None
        self.at[-1] += 1
        self.done[-1] = 0

    def leave(self, depth: int) -> None:
        """The loop at this depth has ended, by its last step or a ``break``."""
        self.goal = None
        if depth < len(self.at):
            del self.at[depth:], self.done[depth + 1 :]
            self.done[depth] += 1

    def _arrive(self) -> None:
        if self.goal == (self.done, self.at):
            self.goal = None
