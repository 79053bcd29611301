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
    lines += power_lines(found.get("power", {}))
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
    ]
    return lines + meter_lines(job["power"])


def power_lines(power):
    """Return what the meters say beside each other."""
    if "windows" not in power:
        return ["", f"power: {brief(power)}"] if power else []
    lines = []
    for row in power["windows"]:
        if "meters" not in row:
            lines += ["", f"The kernel for {row['seconds']:g} s: {row['skipped']}"]
            continue
        rate = f"{row['gcells_s']:.2f} Gcells/s"
        lines += ["", f"The kernel for {row['seconds']:.2f} s, {rate}:", ""]
        lines += meter_lines(row["meters"])
        for name, found in row["rise"].items():
            if found:
                watts = f"from {found['idle_w']:.0f} to {found['plateau_w']:.0f} W"
                times = (
                    f"{found['lag_s']:.2f} s after the start, 10 to 90 % in {found['rise_s']:.2f} s"
                )
                lines += ["", f"{name}: {watts}, half of it {times}."]
    for row in power.get("ranks", []):
        lines += ["", f"mpdata run, ranks on this GPU: {row['ranks']}{skipped(row)}", ""]
        lines += meter_lines(row.get("meters", {}))
    return lines


def skipped(row):
    return f": {row['skipped']}" if "skipped" in row else ""


def meter_lines(meters):
    """Return a table of the energy by each meter; `!` where a figure is hardly one."""
    if not meters:
        return []
    lines = [
        "| by | energy J | +- J | mean W | J per 1e9 cell updates | renewed every s | readings |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, found in meters.items():
        if "error" in found:
            lines.append(f"| {name} | {found['error']} | | | | | |")
            continue
        period = found["period_s"]
        lines.append(
            f"| {name} | {found['energy_j']:.1f} | {found['uncertainty_j']:.1f}"
            f"{' !' if found['short'] else ''} | {found['mean_w']:.1f} "
            f"| {found['j_per_1e9_updates']:.3f} | {'' if period is None else f'{period:.3f}'} "
            f"| {found['readings']} |"
        )
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
