"""Write a public program with our lines in it: python public.py [NAME FOLDER]

FOLDER is a checkout of its repository (see public/programs.toml). Prints where it is. Without
arguments, prints which programs there are, with how many lines each.
"""

import re
import sys
import tomllib
from pathlib import Path

PUBLIC = Path(__file__).parent / "public"


def programs():
    """Return what is known of every program, by its name."""
    return tomllib.loads((PUBLIC / "programs.toml").read_text())


def hunks(patch):
    """Return first and last line, whether they are indented, and the new lines, of every change."""
    found = []
    for line in patch.splitlines():
        head = re.fullmatch(r"@ (\d+)(?:-(\d+))?( >)?", line)
        if head is not None:
            first = int(head[1])
            found.append((first, int(head[2] or first - 1), head[3] is not None, []))
        else:
            found[-1][3].append(line)
    return found


def changed(patch):
    """Return how many lines are added or changed; those that are only indented do not count."""
    return sum(max(len(new), last - first + 1) for first, last, ind, new in hunks(patch) if not ind)


def patched(source, patch):
    """Return a program with a patch's lines in it."""
    lines = source.splitlines()
    for first, last, indents, new in reversed(hunks(patch)):
        if indents:
            new = [f"    {line}" if line.strip() else line for line in lines[first - 1 : last]]
        at = first - 1 if last >= first else first
        lines[at : max(at, last)] = new
    return "\n".join(lines) + "\n"


def patch_of(name):
    return (PUBLIC / f"{name}.patch").read_text()


def table():
    """Return the programs as lines, those with the fewest changes first."""
    counts = {name: changed(patch_of(name)) for name in programs()}
    ordered = sorted(counts, key=counts.__getitem__)
    rows = [f"{name:20s} {counts[name]:5d}  {programs()[name]['what']}" for name in ordered]
    return ["program              lines  what it is", *rows]


def main(*words):
    if not words:
        print(*table(), sep="\n")
        return
    if len(words) != 2 or words[0] not in programs():
        known = ", ".join(programs())
        sys.exit(f"expected NAME FOLDER, a name of {known}, got {' '.join(words)!r}")
    name, folder = words
    program = Path(folder) / programs()[name]["program"]
    if not program.is_file():
        sys.exit(f"expected a checkout of {programs()[name]['repository']}, got no {program}")
    target = program.with_name(f"malleable-{program.name}")
    target.write_text(patched(program.read_text(), patch_of(name)))
    print(target)
    print(f"{changed(patch_of(name))} lines added or changed", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
