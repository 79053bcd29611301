"""``rms compare``: the same scripts for real, once per mode, each on a fresh embedded RMS."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rms.client.commands import read_script, submit
from rms.client.connection import ServerError, call
from rms.core.model import Mode
from rms.formats.jobscript import Options, parse_script
from rms.wire.users import OVER

READY_S = 20.0
BALANCE = 1e-9


class CompareError(Exception):
    """A comparison that cannot be made, or whose books do not balance; one sentence."""


def compare(
    scripts: Sequence[Path],
    modes: Sequence[Mode],
    *,
    engine: str,
    nodes: int | None,
    policy: str,
    delay_s: float,
    folder: Path,
    env: Mapping[str, str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run the scripts once per mode; return the JSON of ``rms compare`` (CLI.md).

    Args:
        scripts: job scripts, submitted in order, ``delay_s`` seconds apart.
        engine: of the embedded RMS: ``local``, ``slurm-pilot`` or ``slurm``.
        nodes: how many of the nodes there are take part, None for all.
        folder: each mode's jobs run in a folder of their own in it.
    """
    for script in scripts:
        parse_script(script)  # what is wrong with it is said before anything runs
    rows = []
    for mode in modes:
        say(f"mode {mode} ...")
        serve = ["--engine", engine, "--policy", policy]
        serve += [] if nodes is None else ["--nodes", str(nodes)]
        rows.append(_one_mode(scripts, mode, serve, delay_s, folder / str(mode), env))
    return {
        "engine": engine,
        "nodes": len(rows[0]["nodes"]),
        "policy": policy,
        "power_source": " and ".join(dict.fromkeys(row.pop("power_source") for row in rows)),
        "rows": rows,
    }


def _one_mode(
    scripts: Sequence[Path],
    mode: Mode,
    serve: Sequence[str],
    delay_s: float,
    folder: Path,
    env: Mapping[str, str],
) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rms-") as place:
        server = f"unix:{place}/socket"
        # Nodes of a cluster see the jobs' folder, not this machine's own; sockets want short paths.
        state = place if "local" in serve else str(folder / "state")
        command = [
            sys.executable,
            "-m",
            "rms",
            "serve",
            "--state",
            state,
            "--listen",
            server,
            *serve,
            "--grace",
            "1",
            "--with-parent",
        ]
        with (folder / "daemon.log").open("w") as log:
            daemon = subprocess.Popen(
                command, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
            try:
                _wait_until_ready(server, daemon)
                nodes = len(call(server, "GET", "/nodes"))
                for number, script in enumerate(scripts):
                    if number:
                        time.sleep(delay_s)
                    options = _fitting(script, mode, nodes)
                    submit(server, read_script(script), script.stem, options, env, folder)
                jobs = _wait_until_over(server)
                _trace_resizes(server, jobs)
                return _row(mode, jobs, call(server, "GET", "/books"))
            finally:
                _end(server, daemon)


def _fitting(script: Path, mode: Mode, nodes: int) -> Options:
    """Return the mode, and sizes cut down to the nodes there are: all modes run the same jobs."""
    low, high = parse_script(script).options.nodes or (1, 1)
    return Options(mode=mode, nodes=(min(low, nodes), min(high, nodes)))


def _wait_until_ready(server: str, daemon: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            call(server, "GET", "/policy")
            return
        except ServerError as error:
            if daemon.poll() is not None or time.monotonic() > until:
                raise CompareError(f"the embedded RMS did not start: {error}") from None
            time.sleep(0.05)


def _wait_until_over(server: str) -> list[dict[str, Any]]:
    while True:
        jobs: list[dict[str, Any]] = call(server, "GET", "/jobs")
        if all(job["state"] in OVER for job in jobs):
            return jobs
        time.sleep(0.1)


def _trace_resizes(server: str, jobs: list[dict[str, Any]]) -> None:
    """Refuse a resize that no journalled decision asked for, or that led to another size."""
    for job in jobs:
        history = call(server, "GET", f"/history/{job['id']}")
        decided = [entry["size"] for entry in history if entry["kind"] == "resize"]
        for done in job["resizes"]:
            if done["to"] not in decided or done["from"] == done["to"]:
                raise CompareError(
                    f"job {job['id']}: expected a resize that was decided ({decided}), got "
                    f"{done['from']} -> {done['to']}"
                )
            decided = decided[decided.index(done["to"]) + 1 :]


def _end(server: str, daemon: subprocess.Popen[bytes]) -> None:
    """End the daemon, and by it every process of its jobs."""
    try:
        if daemon.poll() is None:
            call(server, "POST", "/shutdown", {})
        daemon.wait(30)
    except (ServerError, subprocess.TimeoutExpired):
        daemon.kill()
        daemon.wait()


def _row(mode: Mode, jobs: list[dict[str, Any]], books: dict[str, Any]) -> dict[str, Any]:
    """Return one row; the horizon is first submit to last end."""
    energy = books["closed"]
    first = min(job["submit_s"] for job in jobs)
    last = max(job["end_s"] for job in jobs)
    time_s = last - first
    row = {
        "mode": str(mode),
        "power_source": energy["power_source"],
        "time_s": time_s,
        **{name: energy[name] for name in ("busy_j", "idle_j", "off_j", "boot_j", "cluster_j")},
        "allocation": energy["busy_node_s"] / (len(books["nodes"]) * time_s),
        "jobs": [
            {
                "id": job["id"],
                "name": job["name"],
                "state": job["state"],
                "start_s": None if job["start_s"] is None else job["start_s"] - first,
                "end_s": job["end_s"] - first,
                "energy_j": job["energy_j"],
                "sha256": job["answer"],
                "resizes": [
                    {
                        "at_s": r["at_s"] - first,
                        "from": r["from"],
                        "to": r["to"],
                        "bytes": r["bytes"],
                        "stall_s": r["stall_s"],
                    }
                    for r in job["resizes"]
                ],
            }
            for job in jobs
        ],
        "spans": [
            {
                **span,
                "start_s": span["start_s"] - first,
                "end_s": (last if span["end_s"] is None else span["end_s"]) - first,
            }
            for span in books["spans"]
        ],
        "power_w": [[at - first, watts] for at, watts in books["power_w"] if at <= last],
        "nodes": books["nodes"],
    }
    row["note"] = _why_no_resize(mode, len(books["nodes"]), jobs) if not _resizes(row) else ""
    _check_books(row)
    return row


def _resizes(row: Mapping[str, Any]) -> int:
    return sum(len(job["resizes"]) for job in row["jobs"])


def _why_no_resize(mode: Mode, nodes: int, jobs: list[dict[str, Any]]) -> str:
    if not mode.resizable:
        return f"no resize: a {mode} job keeps its size"
    if nodes == 1:
        return "no resize: one node leaves nothing to share"
    if mode is Mode.MALLEABLE and all(job["nodes_max"] + 1 > nodes for job in jobs):
        return (
            f"no resize: every job starts at {max(job['nodes_max'] for job in jobs)} of {nodes} "
            "nodes, which narrowing a running one does not free"
        )
    return "no resize: the policy saw nothing to gain"


def _check_books(row: Mapping[str, Any]) -> None:
    """Refuse books that do not balance: by job, by owner and node by node, all the same."""
    scale = max(1.0, row["cluster_j"])
    jobs = sum(job["energy_j"] for job in row["jobs"])
    owners = row["busy_j"] + row["idle_j"] + row["off_j"] + row["boot_j"]
    for got, expected, what in (
        (jobs, row["busy_j"], "jobs' energies to add up to busy"),
        (owners, row["cluster_j"], "busy, idle, off and boot to add up to the cluster's"),
    ):
        if abs(got - expected) > BALANCE * scale:
            raise CompareError(f"expected {what}, got {got} J and {expected} J")


def table(result: Mapping[str, Any]) -> list[str]:
    """Return the paper's table (Iserte & Rojek, tables 3 and 4) as lines."""
    lines = ["mode       time [s]  busy [J]  idle [J]  cluster [J]  alloc. [%]  resizes  completed"]
    for row in result["rows"]:
        jobs, resizes = row["jobs"], _resizes(row)
        done = sum(job["state"] == "COMPLETED" for job in jobs)
        lines.append(
            f"{row['mode']:9s} {row['time_s']:9.1f} {row['busy_j']:9.0f} {row['idle_j']:9.0f} "
            f"{row['cluster_j']:12.0f} {100 * row['allocation']:11.1f} {resizes:8d} "
            f"{done:4d} of {len(jobs)}"
        )
    lines += [f"{row['mode']}: {row['note']}" for row in result["rows"] if row["note"]]
    if result.get("oversubscribed"):
        lines.append("Several nodes are one machine here: states and books count, times do not.")
    lines.append(
        "Power is modelled, not measured: a busy core draws its static and dynamic power at "
        "efficiency 1, an idle one its idle power."
        if result["power_source"] == "model"
        else f"Power is from {result['power_source']}."
    )
    return lines


def draw(result: Mapping[str, Any], out: Path) -> None:
    """Draw who held which node when, and the power of the cluster, for each mode."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = result["rows"]
    longest = max(row["time_s"] for row in rows)
    figure, axes = plt.subplots(
        len(rows), 2, figsize=(12, 1.2 + 1.5 * len(rows)), squeeze=False, layout="constrained"
    )
    colours = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]
    jobs = sorted({span["job"] for row in rows for span in row["spans"]}, key=_by_number)
    shade = {job: colours[n % len(colours)] for n, job in enumerate(jobs)}
    for row, (chart, curve) in zip(rows, axes, strict=True):
        for span in row["spans"]:
            place = row["nodes"].index(span["node"])
            length = span["end_s"] - span["start_s"]
            chart.barh(place, length, left=span["start_s"], color=shade[span["job"]], height=0.8)
            if length > 0.04 * longest:
                chart.text(
                    span["start_s"] + length / 2,
                    place,
                    span["job"],
                    ha="center",
                    va="center",
                    fontsize=7,
                )
        chart.set_yticks(range(len(row["nodes"])), row["nodes"], fontsize=7)
        chart.set_title(f"{row['mode']}: {row['time_s']:.1f} s", fontsize=9, loc="left")
        times, watts = zip(*row["power_w"], [row["time_s"], row["power_w"][-1][1]], strict=True)
        curve.step(times, watts, where="post", color="tab:red", linewidth=1)
        curve.set_title(f"{row['cluster_j']:.0f} J", fontsize=9, loc="left")
        curve.set_ylim(0, None)
        curve.set_ylabel("W (model)", fontsize=8)
        for axis in (chart, curve):
            axis.set_xlim(0, longest)
    for axis in axes[-1]:
        axis.set_xlabel("seconds since the first submit", fontsize=8)
    figure.savefig(out, dpi=120)
    plt.close(figure)


def _by_number(job: str) -> tuple[int, int]:
    number, _, index = job.partition("_")
    return int(number), int(index or -1)


def problems(result: Mapping[str, Any]) -> list[str]:
    """Return what a comparison should not show: jobs that failed, answers that differ by mode."""
    found = []
    answers: dict[str, set[str]] = {}
    for row in result["rows"]:
        for job in row["jobs"]:
            if job["state"] != "COMPLETED":
                found.append(f"job {job['id']} of mode {row['mode']} is {job['state']}")
            answers.setdefault(job["id"], set()).add(job["sha256"])
    found += [
        f"job {job} has other bits in other modes" for job, a in answers.items() if len(a) > 1
    ]
    return found
