"""Words and buttons that several views have."""

from __future__ import annotations

from rms import drawings
from rms.web.content import words
from rms.wire.users import OVER, JobRow


def state_words(state: str, resizing: str = "") -> str:
    """Return a state with its sign, and the state of a resize."""
    also = f", resize: {words(resizing, 30)}" if resizing else ""
    _, sign = drawings.TASK_SIGNS.get(state, drawings.OTHER_SIGN)
    return f'<span aria-hidden="true">{sign}</span> {words(state, 30)}{also}'


def size_words(job: JobRow) -> str:
    """Return how many nodes a job has, or wants."""
    if job.size:
        return str(job.size)
    low, high = job.nodes_min, job.nodes_max
    return str(high) if low == high else f"{low} to {high}"


def energy_words(energy_j: float) -> str:
    """Return an energy in a unit that fits."""
    for unit, name in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ")):
        if energy_j >= unit:
            return f"{energy_j / unit:.2f} {name}"
    return f"{energy_j:.0f} J"


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
    if job.state in OVER:
        return ""
    runs = job.state == "RUNNING"
    nodes = f"{job.size} node{'s' if job.size != 1 else ''}"
    end = (
        f"it is told to end, killed if it does not, and its {nodes} are given to others"
        if job.nodes
        else "it waits and will not run"
    )
    found = [act_button("cancel", ids, "Cancel", f"Cancel job {ids} ({job.name}): {end}.")]
    if runs and job.mode in ("malleable", "flexible") and job.nodes_max > job.nodes_min:
        say = (
            f"Resize job {ids} ({job.name}), which has {nodes}, to another number from "
            f"{job.nodes_min} to {job.nodes_max}: it goes on there from its next resize point."
        )
        found.append(act_button("resize", ids, "Resize", say, f"nodes={job.size}"))
    if runs:
        say = f"Requeue job {ids} ({job.name}): it ends at a checkpoint and waits again."
        found.append(act_button("requeue", ids, "Requeue", say))
    if job.state == "PENDING" and job.reason.startswith("JobHeldUser"):
        say = f"Release job {ids} ({job.name}): it starts when its turn comes."
        found.append(act_button("release", ids, "Release", say))
    elif job.state == "PENDING":
        say = f"Hold job {ids} ({job.name}): it does not start until it is released."
        found.append(act_button("hold", ids, "Hold", say))
    return "".join(found)
