"""Jobs: lists of them, one with all that is known, and arrays as grids of cells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rms import drawings
from rms.drawings import clock
from rms.formats.energy import energy_words
from rms.formats.nodelist import fold_slots
from rms.web.asked import ROWS, Asked
from rms.web.content import Content, words
from rms.web.fragments import (
    act_button,
    duration,
    job_buttons,
    size_words,
    state_words,
)
from rms.wire.live import JobLine, Live
from rms.wire.users import OVER, JobRow

TAIL_BYTES, TAIL_LINES = 4096, 20


# --- jobs ----------------------------------------------------------------------------------------


def list_frame(asked: Asked) -> str:
    """Return the frame of a list of jobs."""
    lists = "".join(
        f'<a href="{asked.link(jobs=name, offset=0)}"'
        f"{' aria-current=true' if name == asked.jobs else ''}>{label}</a>"
        for name, label in (("active", "wait or run"), ("over", "over"))
    )
    active = asked.jobs == "active"
    where = "Where, or why it waits</th><th>Act" if active else "Ended"
    return (
        '<section aria-labelledby="h-jobs"><h2 id="h-jobs">Jobs</h2>'
        f'<p class="choices">{lists}</p>'
        '<form class="find" data-find><label>Find <input name="find" '
        f'value="{words(asked.find, 200)}" autocomplete="off"></label></form>'
        '<div class="wide"><table class="jobs-table"><thead><tr><th>Job</th><th>Name</th>'
        '<th>State</th><th class="n">Nodes</th><th class="n">Steps</th><th class="n">Energy</th>'
        f"<th>{where}</th></tr></thead>"
        '<tbody data-list="jobs" data-rows></tbody></table></div>'
        '<p class="choices" data-part="pages"></p></section>'
    )


def show_list(found: Content, asked: Asked, live: Live) -> None:
    """Enter the rows of a list of jobs."""
    page = live.jobs
    if page is None:
        return
    found.fill("jobs", [(line.job.id, _list_row(line, live.now_s)) for line in page.lines])
    if not page.lines:
        what = "None wait or run." if asked.jobs == "active" else "None are over."
        found.fill("jobs", [("none", f'<tr><td colspan="8">{what}</td></tr>')])
    first, last = page.offset + 1, page.offset + len(page.lines)
    parts = [f"<span>{first} to {last} of {page.total}</span>"] if page.total else []
    if page.offset:
        parts.append(f'<a href="{asked.link(offset=max(0, page.offset - ROWS))}">before</a>')
    if last < page.total:
        parts.append(f'<a href="{asked.link(offset=page.offset + ROWS)}">next</a>')
    found.parts["pages"] = "".join(parts)


def _list_row(line: JobLine, now_s: float) -> str:
    job = line.job
    where = _when(job) if job.end_s is not None else fold_slots(job.nodes) or job.reason
    if job.expected_start_s is not None and job.expected_start_s > now_s + 1.0:
        where += f". Expected to start {_about(job.expected_start_s, now_s)}"
    act = "" if job.state in OVER else f'<td class="s">{job_buttons(job, line.ids)}</td>'
    array = job.id.partition("_")[0]
    view, target = ("array", array) if line.tasks > 1 else ("job", job.id)
    steps = f"{job.step}/{job.steps}" if job.steps else ""
    return (
        f'<tr data-job="{words(job.id)}"><th scope=row><a href="#view={view}&amp;id={target}">'
        f"{words(line.ids, 40)}</a></th>"
        f"<td>{words(job.name, 60)}</td>"
        f'<td class="s">{state_words(job.state, job.resizing)}</td>'
        f'<td class="n">{size_words(job)}</td><td class="n">{steps}</td>'
        f'<td class="n">{energy_words(job.energy_j)}</td>'
        f'<td class="long">{words(where, 220)}</td>{act}</tr>'
    )


def _about(at_s: float, now_s: float) -> str:
    """Return a time to come, to the minute, and as a day where it is not soon."""
    if at_s - now_s < 60.0:
        return "within a minute"
    if at_s - now_s < 12 * 3600.0:
        return f"at {clock(at_s)[:5]}"
    return f"on {clock(at_s, day=True)[:16]}"


# --- one job -------------------------------------------------------------------------------------


def _when(job: JobRow) -> str:
    """Return when a job that is over ended, and how long it ran and waited."""
    end_s = job.end_s or 0.0
    if job.start_s is None:
        return f"{clock(end_s)}, never ran. {job.reason}"
    ran, waited = duration(end_s - job.start_s), duration(job.start_s - job.submit_s)
    return f"{clock(end_s)}, ran {ran}, waited {waited}. {job.reason}"


def job_view(asked: Asked, live: Live) -> Content:
    """Return all that is known of a job."""
    frame = (
        '<section aria-labelledby="h-job"><h2 id="h-job">Job '
        f'{words(asked.id)}</h2><div data-part="acts" class="acts"></div>'
        '<div data-part="facts"></div><h3>Steps per second by size</h3>'
        '<div data-part="rates"></div>'
        '<h3>Resizes</h3><div class="wide"><table><thead><tr><th>At</th><th>Ranks</th><th>How</th>'
        '<th class="n">Stopped</th><th class="n">Moved</th></tr></thead>'
        '<tbody data-list="resizes"></tbody></table></div>'
        '<h3>Decisions</h3><div class="wide"><table><thead><tr><th>At</th><th>What</th>'
        '<th>Why</th></tr></thead><tbody data-list="history"></tbody></table></div>'
        '<h3>Output</h3><div data-part="output"></div></section>'
    )
    found = Content(frame)
    job = live.job
    if job is None:
        found.parts["facts"] = f"<p>There is no job {words(asked.id)}.</p>"
        return found
    found.parts |= {
        "acts": job_buttons(job, job.id),
        "facts": _facts(job, live.now_s),
        "rates": _rates(job),
        "output": _output(job),
    }
    found.fill(
        "resizes",
        [
            (
                str(n),
                f"<tr><td class=s>{clock(row.at_s)}</td><td>{row.from_ranks} to {row.to_ranks}</td>"
                f'<td>{words(row.strategy)}</td><td class="n">{row.stall_s * 1000:.0f} ms</td>'
                f'<td class="n">{row.bytes / 1e6:.1f} MB</td></tr>',
            )
            for n, row in enumerate(job.resizes)
        ][-50:],
    )
    found.fill(
        "history",
        [
            (
                f"{n}-{entry.at_s:.3f}",
                f"<tr><td class=s>{clock(entry.at_s)}</td><td class=s>{words(entry.kind)}"
                f"{f' on {entry.size}' if entry.size else ''}</td>"
                f'<td class="long">{words(entry.reason, 200)}</td></tr>',
            )
            for n, entry in enumerate(live.history)
        ],
    )
    return found


def _facts(job: JobRow, now_s: float) -> str:
    began = job.start_s
    ran = 0.0 if began is None else (job.end_s or now_s) - began
    rows = [
        ("Name", words(job.name)),
        ("State", state_words(job.state, job.resizing)),
        ("Mode", words(job.mode)),
        ("Submitted", clock(job.submit_s, day=True)),
        ("Started", "" if began is None else clock(began, day=True)),
        ("Expected start", "" if (at_s := job.expected_start_s) is None else clock(at_s, day=True)),
        ("Ended" if job.end_s else "Has run", clock(job.end_s) if job.end_s else duration(ran)),
        ("Nodes", f"{size_words(job)} {words(fold_slots(job.nodes), 400)}"),
        ("Steps", f"{job.step} of {job.steps}" if job.steps else ""),
        ("Energy", f"{energy_words(job.energy_j)} ({words(job.energy_source)})"),
        ("Why", words(job.reason, 400)),
        ("Answer", words(job.answer)),
    ]
    each = "".join(f"<div><dt>{name}</dt><dd>{said}</dd></div>" for name, said in rows if said)
    return f"<dl>{each}</dl>"


def _rates(job: JobRow) -> str:
    rows = [
        (f"{seen.nodes} node{'s' if seen.nodes != 1 else ''}", seen.steps / seen.seconds)
        for seen in job.seen
        if seen.seconds > 0
    ]
    if not rows:
        return "<p>Not seen long enough at any size yet.</p>"
    table = "".join(f"<tr><td>{name}</td><td>{rate:.3g}</td></tr>" for name, rate in rows)
    return (
        f"{drawings.rates(rows, 'steps/s')}<details><summary>As a table</summary><table><thead>"
        f"<tr><th>Size</th><th>Steps per second</th></tr></thead>{table}</table></details>"
    )


def _output(job: JobRow) -> str:
    """Return the last lines of a job's output, where this machine has its file."""
    try:
        with Path(job.output).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return f"<p>{words(job.output, 300)} is not there, or not to be read here.</p>"
    shown = "\n".join(words(line, 200) for line in lines)
    return f'<p>{words(job.output, 300)}</p><pre tabindex="0">{shown}</pre>'


# --- arrays --------------------------------------------------------------------------------------

ROWS_OF_TASKS = 40


def array_view(asked: Asked, live: Live) -> Content:
    """Return an array as a grid of small cells, by the state of its tasks."""
    number = words(asked.id)
    frame = (
        f'<section aria-labelledby="h-array"><h2 id="h-array">Array {number}</h2>'
        '<div data-part="acts" class="acts"></div><p data-part="states"></p>'
        f'<form class="find" data-task="{number}"><label>Open task <input name="task" '
        'inputmode="numeric" autocomplete="off"></label></form>'
        f'<div data-list="tasks" class="tasks" data-array="{number}" tabindex="0" '
        'role="group" aria-label="Tasks: arrow keys go from one to the next, Enter opens it"></div>'
        '<p class="told" role="status"></p>'
        '<p class="choices" data-part="pages"></p></section>'
    )
    content, tasks = Content(frame), dict(live.tasks)
    counts: dict[str, int] = {}
    for state in tasks.values():
        counts[state] = counts.get(state, 0) + 1
    content.parts["states"] = ", ".join(f"{n} {state_words(state)}" for state, n in counts.items())
    if not tasks:
        content.parts["states"] = f"There is no array {number}."
    elif any(state not in OVER for state in tasks.values()):
        left = sum(state not in OVER for state in tasks.values())
        say = f"Cancel array {asked.id}: {left} tasks wait or run; they end, the others stay."
        content.parts["acts"] = act_button("cancel", asked.id, "Cancel array", say)
    firsts = sorted({index // drawings.CELLS * drawings.CELLS for index in tasks})
    at = asked.offset // ROWS_OF_TASKS * ROWS_OF_TASKS
    shown = firsts[at : at + ROWS_OF_TASKS]
    content.fill("tasks", [(str(first), _task_row(first, tasks)) for first in shown])
    pages = []
    if at:
        pages.append(f'<a href="{asked.link(offset=at - ROWS_OF_TASKS)}">before</a>')
    if at + ROWS_OF_TASKS < len(firsts):
        pages.append(f'<a href="{asked.link(offset=at + ROWS_OF_TASKS)}">next</a>')
    content.parts["pages"] = "".join(pages)
    return content


def _task_row(first: int, tasks: Mapping[int, str]) -> str:
    own = range(first, first + drawings.CELLS)
    drawing = drawings.cells(first, {index: tasks[index] for index in own if index in tasks})
    return f'<div class="row"><span class="name">{first}</span>{drawing}</div>'
