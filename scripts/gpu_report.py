"""What scripts/gpu has found, as Markdown."""

PAPER_STEPS = 10_000
"""Steps of the paper's job."""


def table(found):
    """Return the results to be read."""
    device, copy = found["device"], found["copy_gb_s"]
    lines = [
        f"# {device['name']}",
        "",
        f"CuPy {device['cupy']}, driver {device['driver']}. Limit: the {copy:.0f} GB/s that a "
        f"copy moves. Grid {' x '.join(map(str, found['grid']))}, two passes, limiter, density.",
    ]
    for name in ("tests", "sanitizer", "verify", "tune"):
        if name in found:
            lines += ["", f"{name}: {brief(found[name])}"]
    lines += ladder_lines(found.get("ladder", {}).get("rows", []))
    lines += job_lines(found.get("job", {}))
    lines += resize_lines(found.get("resizes", {}))
    return "\n".join(lines)


def same_bits(rows):
    return len({row["sha256"] for row in rows.values()}) == 1


def ladder_lines(rows):
    if not rows:
        return []
    return [
        "",
        "| variant | type | graph | Gcells/s | GB/s | limit Gcells/s | of limit | of 3.0 TB/s |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {row['variant']} | {row['dtype']} | {'yes' if row['graphs'] else 'no'} "
            f"| {row['gcells_s']:.2f} | {row['gb_s']:.0f} | {row['limit_gcells_s']:.1f} "
            f"| {row['of_limit']:.0%} | {row['of_nominal']:.0%} |"
            for row in rows
        ),
    ]


def job_lines(job):
    if "loop_seconds_per_step" not in job:
        return ["", f"the paper's job: {brief(job)}"] if job else []
    lines = [
        "",
        f"The paper's job by {job['by']}, float64, halo included, {job['steps']} steps: "
        f"{job['gcells_s']:.2f} Gcells/s, so {job[f'seconds_for_{PAPER_STEPS}']:.0f} s for "
        f"{PAPER_STEPS} steps.",
        "",
        "| power by | mean W | energy J | largest W | readings |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, power in job["power"].items():
        if "error" in power:
            lines.append(f"| {name} | {power['error']} | | | |")
            continue
        lines.append(
            f"| {name} | {power['mean_w']:.1f} | {power['energy_j']:.0f} | {power['max_w']:.1f} "
            f"| {power['readings']} |"
        )
        if "counter_mean_w" in power:
            lines.append(f"| {name}, energy counter | {power['counter_mean_w']:.1f} | | | |")
    return lines


def resize_lines(found):
    rows = [
        f"| {dtype} | {r['from']} to {r['to']} | {r['boot_s']:.2f} | {r['stall_s']:.3f} "
        f"| {r['move_s']:.3f} | {r['gb_per_s']:.2f} | {'yes' if runs['same_bits'] else 'NO'} |"
        for dtype, runs in found.items()
        if isinstance(runs, dict) and "runs" in runs
        for r in runs["runs"].get("resized", {}).get("resizes", [])
    ]
    if not rows:
        return ["", f"resizes: {brief(found)}"] if found else []
    return [
        "",
        "Resizes by spawn, fields on the device, all worlds on this GPU:",
        "",
        "| type | ranks | boot s | stall s | move s | GB/s | same bits |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
        *rows,
    ]


def brief(part):
    """Return a part's results in a line."""
    if not isinstance(part, dict):
        return str(part)
    counts = ", ".join(f"{n} {word.lower()}" for word, n in part.get("counts", {}).items())
    for key in ("error", "failed", "skipped"):
        if key in part:
            return f"{part[key]}{counts and '; '}{counts}"
    plain = [f"{key} {value}" for key, value in part.items() if isinstance(value, (int, str))]
    return counts or ", ".join(plain) or ", ".join(part)
