"""Policies as files: the table of parts, and compositions from TOML tables."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect

from rms.core.policies import (
    admission,
    backfill_share,
    cheap_hours,
    node_power,
    order,
    placement,
    policy,
    share,
    shared,
)
from rms.core.policies.admission import Admission
from rms.core.policies.node_power import FrequencyPart, NodePowerPart
from rms.core.policies.order import Order
from rms.core.policies.placement import Placement, Sizing
from rms.core.policies.policy import MissingPartError, Policy, PolicyError
from rms.wire.files import check_finite

PARTS: dict[str, dict[str, type[msgspec.Struct]]] = {
    "order": {
        "fcfs": order.Fcfs,
        "shortest": order.ShortestFirst,
        "smallest": order.SmallestFirst,
        "multifactor": order.Multifactor,
    },
    "admission": {
        "in-order": admission.InOrder,
        "easy": admission.Easy,
        "conservative": admission.Conservative,
        "first-fit": admission.FirstFitting,
        "planned": backfill_share.Planned,
    },
    "sizing": {
        "as-asked": placement.AsAsked,
        "equal-share": share.EqualShare,
        "backfill-share": backfill_share.BackfillShare,
    },
    "placement": {
        "first-fit": placement.FirstFit,
        "count": placement.Count,
        "first-fit-shared": shared.FirstFitShared,
        "less-consume": shared.LessConsume,
        "consolidate": node_power.Consolidate,
    },
    "passes": {"events": policy.Events, "ticks": policy.Ticks},
    "frequency": {
        "nominal": node_power.Nominal,
        "power-aware": node_power.PowerAware,
        "optimal-operating-point": node_power.OptimalOperatingPoint,
    },
    "node_power": {
        "always-on": node_power.AlwaysOn,
        "off-when-idle": node_power.OffWhenIdle,
        "windows": node_power.Windows,
    },
    "hours": {"any": cheap_hours.AnyHour, "cheap": cheap_hours.CheapHours},
}
"""The parts with names, by kind. The first is the default of its kind."""


@dataclass(frozen=True)
class UserPart(Order, Admission, Sizing, Placement, FrequencyPart, NodePowerPart):
    """A user's function with its parameters, as a part of any kind."""

    function: Callable[..., Any]
    parameters: tuple[tuple[str, Any], ...]

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.function(*arguments, **dict(self.parameters))


FOLDER = Path(__file__).parent


class _Shipped(Mapping[str, Policy]):
    """The policies that come with the program: one TOML file each."""

    def __init__(self) -> None:
        self._names = sorted(path.stem for path in FOLDER.glob("*.toml"))
        self._read: dict[str, Policy] = {}

    def __getitem__(self, name: str) -> Policy:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            read = read_policy(FOLDER / f"{name}.toml", name=name)
            self._read[name] = replace(read, shipped=True)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


POLICIES: Mapping[str, Policy] = _Shipped()

DEFAULT = "backfill-share"
"""The default policy."""

SHIPPED = "rms."
"""Prefix of the names of modules that come with the program."""

Modules = Collection[str] | None
"""Modules whose functions a policy may name; None for any."""


def named(name: str, modules: Modules = None) -> Policy:
    """Return a policy by its name, or by the text of a composition (as a journal holds it).

    Args:
        modules: modules of users' own functions. If stated, no file is read either.

    Raises:
        PolicyError: there is none of that name, or the composition is not valid.
    """
    if name.startswith("{"):
        try:
            raw = msgspec.json.decode(name, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise PolicyError(f"expected a policy, got a text with {error}") from None
        return _compose(raw, str(raw.pop("name", "policy")), modules)
    if name in POLICIES:
        return POLICIES[name]
    if name.endswith(".toml") and modules is None:
        return read_policy(Path(name))
    raise PolicyError(f"expected a policy of {', '.join(POLICIES)} or FILE.toml, got {name!r}")


def placing(name: str, modules: Modules = None) -> Policy:
    """Return a policy as :func:`named` does; refuse one that only counts nodes."""
    policy = named(name, modules)
    if policy.placement.counted:
        raise PolicyError(f"expected a placement that says which nodes, got count in {policy.name}")
    return policy


def modules_of(policy: Policy) -> frozenset[str]:
    """Return the modules of a policy's parts that do not come with the program."""
    tables: dict[str, Any] = msgspec.json.decode(policy.text)
    parts = [table["part"] for table in tables.values() if isinstance(table, dict)]
    modules = (part.partition(":")[0] for part in parts if ":" in part)
    return frozenset(module for module in modules if not module.startswith(SHIPPED))


def read_policy(path: Path, *, name: str = "") -> Policy:
    """Read a policy file; modules of its functions may lie beside it.

    Raises:
        PolicyError: missing, not TOML, or not a composition.
    """
    try:
        raw = msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])
        check_finite(raw)
    except FileNotFoundError:
        raise PolicyError(f"expected a policy file, got {path}, which does not exist") from None
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise PolicyError(f"{path}: {error}") from None
    folder = str(path.absolute().parent)
    if not name and folder not in sys.path:
        sys.path.append(folder)
    try:
        return _compose(raw, name or path.stem)
    except PolicyError as error:
        raise type(error)(f"{path}: {error}") from None


def adjusted(policy: Policy, **parts: Mapping[str, Any]) -> Policy:
    """Return a policy with parts replaced, or with other parameters where no part is named."""
    raw: dict[str, Any] = msgspec.json.decode(policy.text)
    name = raw.pop("name")
    for kind, change in parts.items():
        old = raw.get(kind, {"part": next(iter(PARTS[kind]))})
        raw[kind] = dict(change) if "part" in change else {**old, **change}
    return _compose(raw, name)


def _compose(raw: dict[str, Any], name: str, modules: Modules = None) -> Policy:
    unknown = [key for key in raw if key not in PARTS]
    if unknown:
        raise PolicyError(f"expected parts of {', '.join(PARTS)}, got {unknown[0]!r}")
    made: dict[str, Any] = {}
    for kind, parts in PARTS.items():
        made[kind] = _part(kind, raw.get(kind, {"part": next(iter(parts))}), modules)
    places, got = made["placement"], raw.get("placement", {"part": "first-fit"})["part"]
    if isinstance(made["frequency"], node_power.PowerAware) and not places.shared:
        expected = "placement of first-fit-shared, less-consume for frequency power-aware"
        raise PolicyError(f"expected {expected}, got {got}")
    if made["node_power"].always_on and places.migrates:
        expected = "node_power of off-when-idle for placement consolidate"
        raise PolicyError(f"expected {expected}, which frees hosts to go off, got always-on")
    if not made["node_power"].always_on and places.counted:
        expected = "a placement that says which nodes, for nodes that go off"
        raise PolicyError(f"expected {expected}, got {got}")
    text = msgspec.json.encode({"name": name, **raw}).decode()
    if made["sizing"].twin:
        planned = made["admission"]
        tail = planned.tail if isinstance(planned, backfill_share.Planned) else "queue"
        made["twin"] = Policy(
            name="easy",
            order=made["order"].of_twin,
            sizing=placement.AsAsked(),
            admission=admission.Easy(tail=tail),
            placement=placement.Count(),
            passes=policy.Events(),
            text="",
        )
    try:
        return Policy(name=name, text=text, **made)
    except Exception as error:  # a user's own part may lack attributes
        raise PolicyError(f"expected parts of a policy, got one with {error!r}") from None


def _part(kind: str, table: Any, modules: Modules) -> Callable[..., Any]:
    """Return a part by its name or by ``module:name``, with its parameters.

    A struct of the program need not be in :data:`PARTS`; a function, or a class of a user's own,
    becomes a :class:`UserPart`.
    """
    if not isinstance(table, dict) or not isinstance(table.get("part"), str):
        raise PolicyError(f'expected {kind} = {{part = "name", ...}}, got {table!r}')
    parameters = {key: value for key, value in table.items() if key != "part"}
    part = table["part"]
    module, colon, _ = part.partition(":")
    made = PARTS[kind].get(part)
    if colon:
        allowed, shipped = modules is None or module in modules, part.startswith(SHIPPED)
        imported = _imported(kind, part) if allowed or shipped else None
        if shipped and isinstance(imported, type) and issubclass(imported, msgspec.Struct):
            made = imported
        elif imported is None or not allowed:
            expected = "a function of a module that rms serve was started with (--policy-modules)"
            raise PolicyError(f"{kind}: expected {expected}, got {part}")
        else:
            return UserPart(imported, tuple(sorted(parameters.items())))
    if made is None:
        names = ", ".join(PARTS[kind])
        raise PolicyError(f"expected {kind} of {names} or module:function, got {part!r}")
    try:
        return msgspec.convert(parameters, made)  # type: ignore[return-value]
    except msgspec.ValidationError as error:
        got = _refused(made, parameters) or str(error)
        raise PolicyError(f"{kind} {part}: {got}") from None


def _refused(made: Any, parameters: Mapping[str, Any]) -> str:
    """Return the allowed parameters, or values of one, in place of those of a file; "" for none."""
    info = msgspec.inspect.type_info(made)
    fields = {field.name: field.type for field in getattr(info, "fields", ())}
    for name, value in parameters.items():
        if name not in fields:
            expected = f"parameters of {', '.join(fields)}" if fields else "no parameter"
            return f"expected {expected}, got {name!r}"
        allowed = fields[name]
        if isinstance(allowed, msgspec.inspect.LiteralType) and value not in allowed.values:
            return f"expected {name} of {', '.join(map(str, allowed.values))}, got {value!r}"
    return ""


def _imported(kind: str, part: str) -> Callable[..., Any]:
    """Return a function, or a struct whose instances are parts, by its module and name."""
    module, _, name = part.partition(":")
    try:
        imported = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # from the import of a user's module
        got = str(error) if isinstance(error, ImportError | AttributeError) else repr(error)
        raise MissingPartError(f"{kind}: expected a function {part}, got: {got}") from None
    if not callable(imported):
        raise PolicyError(f"{kind}: expected a function, got {part}, which cannot be called")
    return imported  # type: ignore[no-any-return]
