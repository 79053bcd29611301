"""Drawings of the site that are made of tables: a resize step by step, and the cheat sheet."""

from __future__ import annotations

import textwrap
from html import escape
from pathlib import Path

FONT = "Helvetica, Arial, sans-serif"
INK, PALE, BLUE = "#1f2933", "#52606d", "#0b69a3"

PHASES = [
    ("booting", 60, 170, "#e3f2fd", "A failure: the new ranks are ended."),
    ("ready", 170, 275, "#e8f5e9", "A refusal or failure: the new ranks leave."),
    ("moving", 275, 475, "#fff8e1", "A failure: the old ranks still have every field."),
    (
        "committed",
        475,
        630,
        "#fce4ec",
        "No answer: the old world goes on. After it the job is the new world's.",
    ),
]
"""Name of a phase, top and bottom, colour, and what a failure does in it."""


def _text(x: float, y: float, words: str, size: int = 13, **options: str) -> str:
    given = {"fill": INK, "text-anchor": "middle"} | {
        key.replace("_", "-"): value for key, value in options.items()
    }
    attributes = " ".join(f'{key}="{value}"' for key, value in given.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" {attributes}>{escape(words)}</text>'


def _svg(width: int, height: int, label: str, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="{FONT}" role="img" aria-label="{escape(label)}">'
    )
    back = f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>'
    return "\n".join([head, back, *parts, "</svg>", ""])


def resize() -> str:
    """Return the drawing of a resize: the steps of the old and of the new world by phase."""
    width, old, new = 860, 265, 645
    parts = [
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="{BLUE}"/></marker></defs>'
    ]
    for name, top, bottom, colour, why in PHASES:
        parts.append(
            f'<rect x="8" y="{top}" width="{width - 16}" height="{bottom - top - 4}" rx="6" '
            f'fill="{colour}"/>'
        )
        left = {"text_anchor": "start"}
        parts.append(_text(20, top + 22, name, 14, font_weight="bold", **left))
        for at, line in enumerate(textwrap.wrap(why, 18)):
            parts.append(_text(20, top + 40 + 15 * at, line, 12, fill=PALE, **left))
    for x, name in ((old, "old world"), (new, "new world")):
        parts.append(_text(x, 40, name, 16, font_weight="bold"))
        parts.append(f'<path d="M{x} 52V620" stroke="#829ab1" stroke-width="2"/>')

    def box(x: int, y: int, *lines: str, wide: int = 210) -> None:
        parts.append(
            f'<rect x="{x - wide / 2:g}" y="{y}" width="{wide}" height="{12 + 16 * len(lines)}" '
            'rx="4" fill="#fff" stroke="#cbd2d9"/>'
        )
        parts.extend(_text(x, y + 18 + 16 * at, line) for at, line in enumerate(lines))

    def arrow(y: int, words: str, *, back: bool = False) -> None:
        begin, end = (new - 3, old + 3) if back else (old + 3, new - 3)
        parts.append(
            f'<path d="M{begin} {y}H{end}" stroke="{BLUE}" stroke-width="1.6" '
            'marker-end="url(#a)"/>'
        )
        parts.append(_text((old + new) / 2, y - 6, words))

    box(old, 70, "computes (warm, restart)", "or waits (spawn)")
    box(new, 70, "starts, allocates, loads kernels,", "makes constant fields", wide=230)
    arrow(150, "ready", back=True)
    box(old, 180, "stops at its next resize point")
    arrow(230, "header: progress, fields, options")
    arrow(258, "accepted, or refused and why", back=True)
    arrow(303, "MPI connection")
    arrow(338, "fields and lists, with hashes")
    box(old, 360, "waits", wide=120)
    box(new, 352, "checks the hashes,", "builds for its ranks")
    arrow(440, "acknowledged", back=True)
    arrow(503, "committed: the job is yours")
    arrow(536, "taken over", back=True)
    box(old, 556, "frees its fields, ends")
    box(new, 572, "computes the next step")
    return _svg(width, 640, "The steps of a resize in the old and in the new world", parts)


SHEET: list[tuple[str, list[tuple[str, str]]]] = [
    (
        "dmr: the block",
        [
            ('with dmr.malleable(comm, {"t": ...}) as run:', "a block around the loop"),
            ("dmr.adapt(t, (N, M), halo=1)", "your padded array, cut along axis 0"),
            ("dmr.adapt(w, w.shape, split=())", "an array that is whole on every rank"),
            ("dmr.adapt_list(p, (N,), owner)", "particles: each rank has a part"),
            ("state={'rng': rng, 'time': 0.0}", "what else travels"),
            ("dmr.PerRank(v, merge, split)", "state that differs by rank"),
            ("for step in run.loop(steps):", "resizes between two steps"),
            ("run.resize_point()", "once a round of a while loop"),
        ],
    ),
    (
        "dmr: in the block",
        [
            ("run.comm", "the present ranks"),
            ('run.fields["t"].exchange("periodic")', "halos; also 'edge', a number, None"),
            ('run.fields["t"].rebind(t)', "after a swap of two arrays"),
            ('run.fields["t"].gather()', "the whole array on rank 0"),
            ('run.fields["p"].migrate()', "particles go to their ranks"),
            ("run.state.time += dt", "read and set state"),
            ("run.restored, run.resizes, run.step", "where the run comes from"),
            ("run.request(3)", "ask for 3 ranks"),
            ("dmr.raise_on_all(comm, message)", "an error of one rank on all"),
        ],
    ),
    (
        "dmr: plan and commands",
        [
            ("dmr.Plan(every=100)", "steps between resize points"),
            ("dmr.Plan(limits=(1, 6), sizes=(1, 3, 6))", "ranks that are allowed"),
            ("dmr.Plan(checkpoint=dmr.Schedule(dir, 100),", "checkpoints, and"),
            ("         restart=True)", "a restart from the newest"),
            ("dmr probe", "what works with this MPI"),
            ("dmr check -- mpirun -n 2 python x.py", "what was forgotten"),
            ("dmr bench --from 1 --to 2 --mib 64", "what a resize costs"),
        ],
    ),
    (
        "Environment variables",
        [
            ("DMR_RESIZE_AT=100:3,200:1", "resizes at these steps"),
            ("DMR_COOLDOWN=60", "seconds between two resizes"),
            ("DMR_COLLECTIVE_S, DMR_SIGTERM_S", "timeouts, seconds"),
            ("DMR_LAUNCHES=node", "a launch for each node (merge)"),
            ("RMS_SERVER, RMS_STATE", "which daemon; its folder"),
            ("RMS_ARRAY_TASK_ID, RMS_JOB_ID", "in a job (also SLURM_...)"),
        ],
    ),
    (
        "mpdata",
        [
            ("mpdata cases", "the named cases"),
            ("mpirun -n 4 mpdata run --case sphere", "a run; --json FILE"),
            ("  --resize-at 100:4,200:3", "with scripted resizes"),
            ("  --input mine.npz --steps 500", "your own arrays"),
            ("  --iterations 3 --third-order", "passes and variants"),
            ("  --boundary periodic,wall,wall", "for each axis"),
            ("  --output f.h5 --output-every 50", "fields over time"),
            ("mpdata plot f.h5", "a map or slices"),
            ("mpdata verify", "the published cases"),
        ],
    ),
    (
        "rms: jobs",
        [
            ("rms serve [--policy easy] &", "the daemon on this machine"),
            ("rms submit --nodes 1-4 --mode malleable job.sh", "a job; also -- COMMAND"),
            ("rms submit --array 1-12 job.sh", "an array of jobs"),
            ("rms queue; rms show 1; rms explain 1", "where a job is, and why"),
            ("rms resize 1 2; rms resize 1 auto", "by hand; by the policy"),
            ("rms cancel 1; rms wait 1; rms attach 1", "end, wait, output"),
            ("rms hold, release, requeue, suspend, continue", "as scontrol"),
            ("rms nodes; rms drain n2; rms resume n2", "nodes"),
        ],
    ),
    (
        "rms: watch and account",
        [
            ("rms top; rms web", "live: terminal, browser"),
            ("rms report out/", "one page of a daemon"),
            ("rms acct --energy --cost --prices p.toml", "joules and cost"),
            ("rms serve --power-cap 400", "a limit in watts"),
            ("rms policy backfill-share", "swap the policy"),
            ("rms profile -- COMMAND", "time and energy by size"),
        ],
    ),
    (
        "rms: study and Slurm",
        [
            ("rms simulate --trace FILE.swf.gz", "a log on a virtual clock"),
            ("rms simulate --sacct FILE --malleable 0,50", "your own log: what if"),
            ("rms compare a.sh b.sh", "four modes, for real"),
            ("rms reproduce NAME", "a published study"),
            ("rms serve --engine slurm --check", "what this Slurm allows"),
            ("sbatch jobs/pilot.sh", "jobs in an allocation"),
            ("rms pilot --on-demand", "allocations as needed"),
        ],
    ),
]
"""Groups of the cheat sheet: what to write, and what it does."""

LINE, COLUMN, MARGIN = 19, 690, 24


def cheatsheet() -> str:
    """Return the cheat sheet as one drawing of two columns."""
    parts = [
        _text(MARGIN, 40, "malleable-mpi: cheat sheet", 24, font_weight="bold", text_anchor="start")
    ]
    columns = [SHEET[0::2], SHEET[1::2]]
    bottom = 0
    for at, groups in enumerate(columns):
        x, y = MARGIN + at * (COLUMN + MARGIN), 60
        for title, rows in groups:
            height = 36 + LINE * len(rows)
            parts.append(
                f'<rect x="{x}" y="{y}" width="{COLUMN}" height="{height}" rx="6" fill="#f5f7fa" '
                'stroke="#cbd2d9"/>'
            )
            parts.append(
                _text(x + 12, y + 21, title, 15, fill=BLUE, font_weight="bold", text_anchor="start")
            )
            for row, (code, meaning) in enumerate(rows):
                line = y + 43 + LINE * row
                mono = {"font_family": "Menlo, Consolas, 'DejaVu Sans Mono', monospace"}
                blanks = "\u00a0" * (len(code) - len(code.lstrip())) + code.lstrip()
                parts.append(_text(x + 12, line, blanks, 13, text_anchor="start", **mono))
                parts.append(_text(x + 425, line, meaning, 13, fill=PALE, text_anchor="start"))
            y += height + 12
        bottom = max(bottom, y)
    return _svg(2 * COLUMN + 3 * MARGIN, bottom + 8, "Cheat sheet of dmr, mpdata and rms", parts)


def sheet_page() -> str:
    """Return the cheat sheet as a page with tables, for readers who search or copy."""
    lines = [
        "# Cheat sheet",
        "",
        "This page has the lines that you need most, as a drawing to print and as tables to copy.",
        "",
        "```{image} ../_static/cheatsheet.svg",
        ":alt: Cheat sheet of dmr, mpdata and rms",
        "```",
        "",
        "{download}`Download the drawing (SVG) <../_static/cheatsheet.svg>`",
        "",
    ]
    for title, rows in SHEET:
        lines += [f"## {title}", "", "| write | meaning |", "|---|---|"]
        lines += [f"| `{code.strip()}` | {meaning} |" for code, meaning in rows]
        lines.append("")
    return "\n".join(lines)


def write(docs: Path) -> None:
    """Write the drawings and the page of the cheat sheet, where their text changed."""
    texts = {
        "_static/resize.svg": resize(),
        "_static/cheatsheet.svg": cheatsheet(),
        "project/cheatsheet.md": sheet_page(),
    }
    for name, text in texts.items():
        path = docs / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
