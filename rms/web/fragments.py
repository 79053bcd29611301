"""Words and buttons that several views have."""

from __future__ import annotations

from rms import drawings
from rms.client.actions import actions
from rms.web.content import words
from rms.wire.users import JobRow


def state_words(state: str, resizing: str = "") -> str:
    """Return a state with its sign, and the state of a resize."""
    also = f", resize: {words(resizing, 30)}" if resizing else ""
    _, sign = drawings.TASK_SIGNS.get(state, drawings.OTHER_SIGN)
    return f'<span aria-hidden="true">{sign}</span> {words(state, 30)}{also}'


def size_words(job: JobRow) -> str:
    """Return the number of nodes of a job and the target of a resize, or the requested range."""
    if job.size and job.resize_to is not None:
        return f"{job.size} -> {job.resize_to}{'' if job.resizing else ' pending'}"
    if job.size:
        return str(job.size)
    low, high = job.nodes_min, job.nodes_max
    return str(high) if low == high else f"{low} to {high}"


def duration(seconds: float) -> str:
    """Return a length of time in its largest whole unit."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"


def act_button(do: str, target: str, label: str, say: str, ask: str = "") -> str:
    """Return a button that does something once it is confirmed.

    Args:
        say: what will happen.
        ask: the name of a figure or word that is asked for too, with its first value.
    """
    extra = f' data-ask="{words(ask)}"' if ask else ""
    return (
        f'<button type="button" data-do="{do}" data-target="{words(target, 10_000)}" '
        f'data-say="{words(say, 400)}"{extra} aria-label="{label} {words(target, 40)}">'
        f"{label}</button>"
    )


def job_buttons(job: JobRow, ids: str) -> str:
    """Return what can be done to a job."""
    return "".join(
        act_button(each.do, ids, each.label, each.say, f"nodes={each.nodes}" if each.nodes else "")
        for each in actions(job, ids)
    )
