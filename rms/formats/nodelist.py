"""Lists of nodes as Slurm writes them: ``n[1-3,7],gpu2``. Pure.

ClusterShell's NodeSet sorts the names, and their order matters here (a job's script runs on its
first node); python-hostlist keeps it, but may not be used under this project's licence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

_BRACKETS_OR_COMMA = re.compile(r"\[[^\[\]]*\]|,")
_NAME = re.compile(r"([^\[\]]*)(?:\[([^\[\]]*)\]([^\[\]]*))?")
MOST_NODES = 100_000
"""More are in no list, so that none takes all memory."""

MOST_CHARACTERS = 255
"""Maximum length of a node name, like that of a host name."""

_KIND = re.compile(r"([A-Za-z]+)\d+$")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class NodeListError(ValueError):
    """A list of nodes that does not parse; one sentence, expected and got."""


def expand(text: str) -> list[str]:
    """Return the names in ``n[1-3,7],gpu2``: n1, n2, n3, n7, gpu2; ``n[08-10]`` keeps its zeros.

    Raises:
        NodeListError: it does not parse, or is empty.
    """
    names: list[str] = []
    for part in split_list(text):
        names += _expanded(part)
        if len(names) > MOST_NODES:
            raise NodeListError(f"expected at most {MOST_NODES} nodes, got more in {text[:60]!r}")
    return names


def split_list(text: str) -> Iterator[str]:
    """Yield the parts of a list between commas outside brackets, in linear time."""
    begin = 0
    for separator in _BRACKETS_OR_COMMA.finditer(text):
        if separator[0] == ",":
            yield text[begin : separator.start()]
            begin = separator.end()
    yield text[begin:]


def fold_slots(names: Sequence[str]) -> str:
    """Return nodes with commas between them, slots of one node folded: ``n1/[0,3],n2/0``.

    Slots of one kind of processors are folded: ``n1/gpu[0,3]``.
    """
    found: list[str] = []
    for head, each in groupby(names, _head):
        of_head = list(each)
        if head and len(of_head) > 1:
            found.append(f"{head}[{','.join(name.removeprefix(head) for name in of_head)}]")
        else:
            found += of_head
    return ",".join(found)


def _head(name: str) -> str:
    """Return what a slot has in common with others of its node and kind, "" for a node."""
    host, slash, slot = name.rpartition("/")
    kind = _KIND.match(slot)
    return f"{host}{slash}{'' if kind is None else kind[1]}" if host else ""


def _expanded(part: str) -> list[str]:
    parsed = _NAME.fullmatch(part)
    if parsed is None or not part:
        raise NodeListError(f"expected nodes like n7 or n[1-36], got {part[:60]!r}")
    head, ranges, tail = parsed[1], parsed[2], parsed[3] or ""
    if len(head) + len(tail) > MOST_CHARACTERS:
        form = f"node names of at most {MOST_CHARACTERS} characters"
        raise NodeListError(f"expected {form}, got {part[:60]!r} and more")
    if ranges is None:
        return [part]
    names: list[str] = []
    for each in ranges.split(","):
        bounds = _RANGE.fullmatch(each)
        low, high = ("", "") if bounds is None else (bounds[1], bounds[2] or bounds[1])
        if bounds is None or int(high) < int(low):
            raise NodeListError(f"expected a rising range in {part[:60]!r}, got {each[:60]!r}")
        if len(names) + int(high) - int(low) >= MOST_NODES:
            raise NodeListError(f"expected at most {MOST_NODES} nodes, got {part[:60]!r}")
        width = len(low) if low.startswith("0") else 0
        names += [f"{head}{n:0{width}d}{tail}" for n in range(int(low), int(high) + 1)]
    return names
