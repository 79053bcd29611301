"""Pages of the site that are made of the code of rms.

A page for each policy and one of all parameters; for each published study the statements of its
paper, as recorded.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any, Literal

import msgspec

from rms.core.policies.compose import DEFAULT, FOLDER, PARTS
from rms.kernels.admission import ByStrategy
from rms.studies import experiment
from rms.studies.chiesi import PowerSlot
from rms.studies.iserte_rojek import PaperShare

PROMISES = {
    "order": "the order in which waiting jobs are considered",
    "admission": "the waiting jobs that start in this pass",
    "sizing": "the sizes of starts, and resizes of running jobs",
    "placement": "the nodes or slots that a job gets",
    "passes": "the events after which the policy decides",
    "frequency": "the clock at which a job runs",
    "node_power": "idle nodes that are powered off, and on again",
    "hours": "prices and carbon intensities by the hour, for jobs with a deadline",
}
"""What each kind of part decides."""

STUDIED: dict[str, dict[str, type[msgspec.Struct]]] = {
    "admission": {"rms.kernels.admission:ByStrategy": ByStrategy},
    "sizing": {"rms.studies.iserte_rojek:PaperShare": PaperShare},
    "placement": {"rms.studies.chiesi:PowerSlot": PowerSlot},
}
"""Parts with the name of their module and class, by kind."""

MORE = {
    DEFAULT: "How it decides, and what it promises: [The default policy](../default-policy.md).",
    "array-share": "Figures: [iserte-rojek](../../experiments/iserte-rojek.md).",
    "array-share-paper": "Figures: [iserte-rojek](../../experiments/iserte-rojek.md).",
    "p-fifo": "Figures: [chiesi](../../experiments/chiesi.md).",
    "p-bff": "Figures: [chiesi](../../experiments/chiesi.md).",
    "easy": "Figures: [EASY on KTH-SP2](../../experiments/easy-kth.md).",
}
"""Last line of the page of a policy."""


def parts_of(kind: str) -> dict[str, type[msgspec.Struct]]:
    """Return the parts of a kind by name, the default first."""
    return {**PARTS[kind], **STUDIED.get(kind, {})}


def described(part: type[msgspec.Struct]) -> tuple[str, dict[str, str]]:
    """Return the description of a part, and that of each parameter.

    Raises:
        ValueError: a parameter without a description.
    """
    text = inspect.getdoc(part) or ""
    head, _, attributes = text.partition("\nAttributes:\n")
    meanings: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \S)", attributes.rstrip()):
        names, _, meaning = entry.strip().partition(": ")
        for name in filter(None, names.split(", ")):
            meanings[name] = " ".join(meaning.split())
    missing = {field.name for field in msgspec.structs.fields(part)} - set(meanings)
    if missing:
        raise ValueError(f"expected Attributes for {sorted(missing)} of {part.__name__}, got none")
    paragraphs = [" ".join(lines.split()) for lines in head.split("\n\n")]
    return "\n\n".join(paragraphs).strip(), meanings


def type_words(kind: Any) -> str:
    """Return the type of a parameter in words, as ``0.5`` is a number."""
    if typing.get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(kind))
    if typing.get_origin(kind) is types.UnionType:
        return type_words(next(one for one in typing.get_args(kind) if one is not type(None)))
    if typing.get_origin(kind) is tuple:
        return f"list of {type_words(typing.get_args(kind)[0])}"
    names: dict[Any, str] = {int: "integer", float: "number", bool: "`true`, `false`", str: "text"}
    return names.get(kind, "table")


def value_words(value: Any) -> str:
    """Return a value as TOML has it, or in words where TOML has none."""
    if value is None:
        return "none"
    if value == inf:
        return "no limit"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{json.dumps(value)}`"
    if isinstance(value, dict):
        return f"`{value or '{}'}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value:g}`"


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """Return the default of a parameter in words."""
    if field.default is not msgspec.NODEFAULT:
        return value_words(field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return value_words(field.default_factory())
    return "required"


def table_of(part: type[msgspec.Struct], values: dict[str, Any] | None = None) -> list[str]:
    """Return the table of the parameters of a part; with the values of a policy, if stated."""
    fields = msgspec.structs.fields(part)
    if not fields:
        return ["No parameters.", ""]
    meanings = described(part)[1]
    heads = ["parameter", "values", "default", *([] if values is None else ["here"]), "meaning"]
    rows = [heads, ["---"] * len(heads)]
    for field in fields:
        cells = [f"`{field.name}`", type_words(field.type), default_of(field)]
        if values is not None:
            stated = field.name in values
            cells.append(value_words(values[field.name]) if stated else default_of(field))
        rows.append([*cells, meanings[field.name]])
    return [*(f"| {' | '.join(row)} |" for row in rows), ""]


def parameters() -> str:
    """Return the page of all parts and their parameters."""
    lines = [
        "# Parts and parameters",
        "",
        "All parts of which a [policy](policies.md) is composed. The first part of a kind is used",
        "where a policy file does not name one. This page is generated from the classes of the",
        "parts.",
        "",
    ]
    for kind, promise in PROMISES.items():
        lines += [f"## {kind}", "", f"Decides {promise}.", ""]
        for name, part in parts_of(kind).items():
            lines += [f"### {kind}: `{name}`", "", described(part)[0], "", *table_of(part)]
    return "\n".join(lines).rstrip() + "\n"


def composed(name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield kind, part and stated parameters of each part that a shipped policy names."""
    raw = msgspec.toml.decode((FOLDER / f"{name}.toml").read_bytes(), type=dict[str, Any])
    for kind in (kind for kind in PROMISES if kind in raw):
        table = dict(raw[kind])
        yield kind, table.pop("part"), table


def policy(name: str) -> str:
    """Return the page of a shipped policy: its description, its file, its parameters."""
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    code = [line for line in text.splitlines() if line and not line.startswith("#")]
    lines = [f"# {name}", "", " ".join(line.lstrip("# ") for line in comments), ""]
    lines += ["```toml", *code, "```", ""]
    lines += [f"Use it: `rms serve --policy {name}`, `rms simulate --policy {name} ...`,"]
    lines += [f"or, for a running daemon, `rms policy {name}`.", ""]
    for kind, part, values in composed(name):
        struct = parts_of(kind)[part]
        lines += [f"## {kind}: `{part}`", "", described(struct)[0], "", *table_of(struct, values)]
    if name in MORE:
        lines += [MORE[name], ""]
    lines += ["Parts that the file does not name are the defaults of"]
    lines += ["[Parts and parameters](../parameters.md)."]
    return "\n".join(lines) + "\n"


def statements(study: str) -> str:
    """Return the page of all statements of a study's paper with their recorded values."""
    rows = experiment.statements(study)
    number = ", ".join(f"{count} {status}" for status, count in experiment.counts(rows).items())
    lines = [
        f"# Statements: {study}",
        "",
        f"All {len(rows)} statements of the paper in its order ({number}), as",
        f"`rms reproduce {study}` prints them and [{study}](../{study}.md) explains them.",
        "",
        "| where | statement | paper | ours | status | note |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ours = experiment.value_text(row.ours, row.unit)
        cells = [row.where, row.says, experiment.value_text(row.paper, row.unit), ours]
        lines.append(f"| {' | '.join([*cells, row.status, row.note])} |".replace("*", "\\*"))
    return "\n".join(lines) + "\n"


def names() -> list[str]:
    """Return the names of the shipped policies, the default first."""
    others = sorted(path.stem for path in FOLDER.glob("*.toml"))
    return [DEFAULT, *(name for name in others if name != DEFAULT)]


def pages() -> dict[str, str]:
    """Return all pages by their paths below ``docs``."""
    studies = {
        f"experiments/statements/{name}.md": statements(name) for name in experiment.studies()
    }
    policies = {f"rms/policies/{name}.md": policy(name) for name in names()}
    return {"rms/parameters.md": parameters(), **policies, **studies}


def write(folder: Path) -> None:
    """Write each page whose text changed; Sphinx reads again only these."""
    for name, text in pages().items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
