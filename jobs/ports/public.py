"""Write a public program with our lines in it: python public.py NAME FOLDER

FOLDER is a checkout of its repository (see public/programs.toml). Prints where it is.
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


def patched(source, patch):
    """Return a program with a patch's lines in it, and how many lines were added or changed."""
    lines, changed = source.splitlines(), 0
    for first, last, indents, new in reversed(hunks(patch)):
        if indents:
            new = [f"    {line}" if line.strip() else line for line in lines[first - 1 : last]]
        else:
            changed += max(len(new), last - first + 1)
        at = first - 1 if last >= first else first
        lines[at : max(at, last)] = new
    return "\n".join(lines) + "\n", changed


def main(name, folder):
    program = Path(folder) / programs()[name]["program"]
    text, changed = patched(program.read_text(), (PUBLIC / f"{name}.patch").read_text())
    target = program.with_name(f"malleable-{program.name}")
    target.write_text(text)
    print(target)
    print(f"{changed} lines added or changed", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
