"""The values of ``run.state``: written as JSON, and filled in place in a new world.

Finite numbers, text, None, lists, and dicts with keys of text are plain JSON. NaN, infinities,
tuples, and NumPy scalars and arrays are tagged trees, all else is a pickle in such a tree. Reading
a pickle runs code, so the reader states whether it trusts the source. Functions raise
:class:`ValuesError` for a value that cannot be pickled, read or filled.

A tree is None, a bool, an int, a float or a string for itself, or a dict of one tag:
``{"float": "nan"}``, ``{"int": "0x1f"}``, ``{"list": [...]}``, ``{"tuple": [...]}``,
``{"dict": [[key, value], ...]}``, ``{"array": NPY}``, ``{"scalar": NPY}``, ``{"pickle": BYTES}``,
the last three in base64.
"""

from __future__ import annotations

import base64
import bisect
import collections
import contextlib
import copyreg
import dataclasses
import functools
import io
import itertools
import math
import operator
import pickle
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import xxhash

PICKLE_PROTOCOL = 5
INT_LIMIT = 2**63
"""JSON readers keep smaller integers exactly."""

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Immutable types without parts."""

MAX_PARTS, MAX_PATHS, ALL = 100_000, 1_000, "*"
"""Limits of compared parts and of sent paths; beyond either, :data:`ALL` stands for all paths."""

CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
"""Types that are written as trees; an object that is referenced twice is written twice."""

SPARE_FRAMES = 40
"""Frames between the calls of :func:`adopt` in a resize and the one in which a value is checked."""

MAX_CONTAINERS = 1_000_000
"""Containers in the tree of a value most of whose containers are referenced more than once."""


class ValuesError(ValueError):
    """A value cannot be written, or must not or cannot be read; one sentence."""


class State(dict[str, Any]):
    """Names and values of a run, by key and by attribute: ``state["time"]``, ``state.time``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            names = ", ".join(self) or "nothing"
            raise AttributeError(
                f"expected {name!r} in run.state, got {names}: give it to dmr.malleable as "
                f"state={{{name!r}: ...}}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(dict, name):
            raise AttributeError(f"expected run.state[{name!r}] = ..., since dict.{name} exists")
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]


@dataclasses.dataclass
class _Filling:
    """The state of one call of :func:`adopt`.

    Attributes:
        replaced: paths of the parts that the old ranks have replaced by other objects.
        fields: arrays that are never modified.
        filled: filled objects and their sources, by the identity of the object.
        results: pairs of objects and the result of each, by the identities of the pair: of tuples,
            and of objects that are not filled because they were replaced.
    """

    replaced: frozenset[str]
    fields: Sequence[np.ndarray[Any, Any]] = ()
    filled: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    results: dict[tuple[int, int], tuple[Any, Any, Any]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.replaced)

    def keeps(self, path: str) -> bool:
        """Return whether the object at a path is filled in place: it was not replaced."""
        return path not in self.replaced and not (path and ALL in self.replaced)

    def replaces_below(self, path: str) -> bool:
        """Return whether a part at this path or below it was replaced."""
        at = bisect.bisect_left(self._sorted, path)
        return at < len(self._sorted) and self._sorted[at].startswith(path)


def adopt(
    current: Any,
    received: Any,
    replaced: Collection[str] = (),
    *,
    others: Iterable[Any] = (),
    fields: Iterable[Any] = (),
) -> Any:
    """Return the program's object with the received contents, for the ranks of a new world.

    Arrays of equal shape and dtype, random generators, lists, dicts, sets and objects are filled in
    place at any depth, so that the program's own references to them stay valid. For any other value
    the received object is returned.

    Args:
        replaced: paths of :func:`replaced_parts`. The current objects there are not modified: they
            may be part of other data of the program. The received objects are returned for them,
            with the current ones of their parts that were not replaced. The value itself (path "")
            is filled nevertheless if it is in no other place.
        others: the program's other values.
        fields: arrays of the program's fields, whose memory is not modified.

    Raises:
        RecursionError: the value is nested too deep (:func:`pickle_digest` refuses such values).
    """
    paths = frozenset(replaced)
    if "" in paths and not _is_in(others, current):
        paths -= {""}
    arrays = [one for one in fields if isinstance(one, np.ndarray)]
    return _adopt(current, received, "", _Filling(paths, arrays))


def _is_in(values: Iterable[Any], one: Any) -> bool:
    """Return whether an object, or memory of an array, is in one of several values."""
    parts = (_referent(part) for value in values for part in parts_of(value).values())
    return any(part is one or _share_memory(part, one) for part in parts)


def _share_memory(one: Any, other: Any) -> bool:
    arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return arrays and np.may_share_memory(one, other)


def _adopt(current: Any, received: Any, path: str, filling: _Filling) -> Any:
    kind: Any = type(current)
    if kind is not type(received) or current is received or kind in ATOMS:
        return received
    pair = id(current), id(received)
    if issubclass(kind, tuple):
        if filling.replaces_below(path):
            return _adopt_tuple(current, received, path, filling)
        if pair not in filling.results:
            result = _adopt_tuple(current, received, path, filling)
            filling.results[pair] = current, received, result
        return filling.results[pair][2]
    if pair in filling.results:
        return received
    if not filling.keeps(path):
        filling.results[pair] = current, received, received
        _fill(received, current, received, path, filling)
        return received
    if id(current) in filling.filled:  # referenced twice here, though perhaps not in the received
        return current if _same(filling.filled[id(current)][1], received) else received
    filling.filled[id(current)] = current, received
    if _fill(current, current, received, path, filling):
        return current
    del filling.filled[id(current)]
    return received


def _adopt_tuple(current: Any, received: Any, path: str, filling: _Filling) -> Any:
    """Return the current tuple if all of its elements were filled in place, else a new one."""
    parts = _adopt_each(current, received, path, filling)
    if len(current) == len(parts) and all(map(operator.is_, current, parts)):
        return current
    if type(current) is tuple:
        return parts
    return current._make(parts) if hasattr(current, "_make") else received


def _adopt_each(current: Any, received: Any, path: str, filling: _Filling) -> tuple[Any, ...]:
    """Return the elements of a received sequence of any length, filled in place where possible."""
    if ATOMS.issuperset(map(type, received)):
        return tuple(received)
    first = tuple(
        _adopt(*pair, f"{path}[{at}]", filling)
        for at, pair in enumerate(zip(current, received, strict=False))
    )
    return first + tuple(itertools.islice(received, len(first), None))


def _adopt_items(
    current: Mapping[Any, Any], received: Mapping[Any, Any], path: str, filling: _Filling
) -> dict[Any, Any]:
    """Return the items of a received dictionary, their values filled in place where possible."""
    return {
        key: _adopt(current[key], value, f"{path}[{key!r}]", filling) if key in current else value
        for key, value in received.items()
    }


def _fill(target: Any, current: Any, received: Any, path: str, filling: _Filling) -> bool:
    """Set the contents of an object to the received ones; return False if that is not possible.

    Args:
        target: the current object, or, if that was replaced, the received one: its parts are set to
            the current ones that were not replaced.
    """
    if target is received and _is_leaf(received):
        return True
    if isinstance(current, np.ndarray):
        if target is current and not _is_fillable(current, received, filling.fields):
            return False
        if received.dtype == object:
            parts = _adopt_each(list(current.flat), list(received.flat), path, filling)
            for at, one in enumerate(parts):
                target.flat[at] = one
        else:
            current[...] = received
    elif isinstance(current, np.random.Generator):
        bits = current.bit_generator
        return _fill(bits, bits, received.bit_generator, path, filling)
    elif isinstance(current, list):
        target[:] = _adopt_each(current, received, path, filling)
    elif isinstance(current, collections.deque) and target.maxlen == received.maxlen:
        parts = _adopt_each(current, received, path, filling)
        target.clear()
        target.extend(parts)
    elif isinstance(current, dict):
        items = _adopt_items(current, received, path, filling)
        target.clear()
        target.update(items)
    elif isinstance(current, set):
        current.clear()
        current.update(received)
    elif isinstance(current, np.random.RandomState):
        current.set_state(received.get_state(legacy=False))
    else:
        return _fill_object(target, current, received, path, filling)
    if hasattr(current, "__dict__"):  # an instance of a derived class
        vars(target).update(_adopt_items(vars(current), vars(received), path, filling))
    return True


def _is_leaf(part: Any) -> bool:
    """Return whether a mutable object has no parts that are filled by themselves."""
    if isinstance(part, np.ndarray):
        return part.dtype != object or type(part) is not np.ndarray
    return isinstance(part, set | np.random.Generator | np.random.RandomState)


def _is_fillable(
    current: np.ndarray[Any, Any],
    received: np.ndarray[Any, Any],
    fields: Iterable[np.ndarray[Any, Any]],
) -> bool:
    """Return whether an array can be filled in place from another of its type."""
    alike = (current.shape, current.dtype) == (received.shape, received.dtype)
    shared = any(_share_memory(current, one) for one in fields)
    return alike and not shared and not _why_unfillable(current)


def _why_unfillable(array: np.ndarray[Any, Any]) -> str:
    """Return the kind of an array that cannot be filled in place, "" if it can."""
    if not array.flags.writeable:
        return "read-only array"
    if array.dtype.hasobject and array.dtype != object:
        return "array of records with objects"
    return "array with a hard mask" if getattr(array, "hardmask", False) else ""


def _fill_object(target: Any, current: Any, received: Any, path: str, filling: _Filling) -> bool:
    """Fill an object as :mod:`pickle` does, if its ``__reduce_ex__`` states no items of its own."""
    kind: Any = type(current)
    plain: Any = object
    whole = target is received
    try:
        old, new = current.__reduce_ex__(4), received.__reduce_ex__(4)
        if isinstance(new, str):
            return False
        if not whole and (not _same(list(old[:2]), list(new[:2])) or any(new[3:])):
            return False
        state = new[2] if len(new) > 2 else None
        if hasattr(current, "__setstate__"):
            adopted, unchanged = _adopt_state(old[2], state, path, filling)
            if not whole or not unchanged:
                target.__setstate__(adopted)
            return True
    except RecursionError:
        raise
    except Exception:  # of the object's own methods
        return False
    own, slots = state if isinstance(state, tuple) else (state, None)
    current_slots = {name: getattr(current, name) for name in slots or () if hasattr(current, name)}
    for name, value in _adopt_items(current_slots, slots or {}, path, filling).items():
        object.__setattr__(target, name, value)
    if hasattr(current, "__dict__"):  # works for frozen dataclasses, too
        items = _adopt_items(vars(current), own or {}, path, filling)
        if not whole and kind.__getstate__ is plain.__getstate__:  # else it may omit attributes
            vars(target).clear()
        vars(target).update(items)
    return True


def _adopt_state(old: Any, state: Any, path: str, filling: _Filling) -> tuple[Any, bool]:
    """Fill the parts of a state for ``__setstate__``; return it and whether no part was filled."""
    if isinstance(state, list | tuple) and type(old) is type(state):
        parts = _adopt_each(old, state, path, filling)
        return type(state)(parts), all(map(operator.is_, parts, state))
    if isinstance(state, dict):
        items = _adopt_items(old, state, path, filling)
        return items, all(map(operator.is_, items.values(), state.values()))
    return state, True


def parts_of(value: Any) -> dict[str, Any]:
    """Return a value and the objects within it that :func:`adopt` may fill, by their path.

    Of arrays these are weak references: memory of an array that is replaced is released.
    """
    parts: dict[str, Any] = {}
    ancestors: list[int] = []
    constant: dict[int, Any] = {}

    def visit(part: Any, path: str) -> bool:
        """Add a part and those within it; return False for a tuple that has no part to fill."""
        if type(part) in ATOMS or id(part) in constant:
            return False
        if id(part) in ancestors or len(parts) > MAX_PARTS:
            return True
        mutable = not isinstance(part, tuple)
        if mutable:
            parts.setdefault(path, weakref.ref(part) if isinstance(part, np.ndarray) else part)
        ancestors.append(id(part))
        for step, child in _children(part):
            mutable |= visit(child, f"{path}{step}")
        ancestors.pop()
        if not mutable:
            constant[id(part)] = part
        return mutable

    with contextlib.suppress(RecursionError):
        visit(value, "")
    return parts


def _children(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the steps of the path to the children of an object, and the children."""
    if isinstance(part, np.ndarray):
        children: Any = enumerate(part.flat) if part.dtype == object else ()
    elif isinstance(part, list | tuple | collections.deque):
        children = () if ATOMS.issuperset(map(type, part)) else enumerate(part)
    elif isinstance(part, dict):
        children = part.items()
    elif isinstance(part, np.generic | type | np.random.Generator | np.random.RandomState):
        children = ()
    else:
        children = _state_of(part)
    for key, child in children:
        yield f"[{key!r}]", child
    if isinstance(part, list | dict | collections.deque):
        for key, child in getattr(part, "__dict__", {}).items():
            yield f"[{key!r}]", child


def _state_of(part: Any) -> Iterable[tuple[Any, Any]]:
    """Return the attributes that an object is pickled with."""
    try:
        reduced = part.__reduce_ex__(4)
    except Exception:  # of the object's own methods
        return ()
    state = reduced[2] if not isinstance(reduced, str) and len(reduced) > 2 else None
    if isinstance(state, list | tuple) and hasattr(part, "__setstate__"):
        return enumerate(state)
    own, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    return [item for names in (own, slots) if isinstance(names, dict) for item in names.items()]


def replaced_parts(original: Mapping[str, Any], value: Any) -> list[str]:
    """Return the paths of the parts of a value that the program has replaced by other objects.

    That of the value itself is "".

    Args:
        original: result of :func:`parts_of` for the value as it was passed in.
    """
    parts = parts_of(value)
    paths = [
        path
        for path, part in parts.items()
        if _referent(original.get(path, part)) is not _referent(part)
    ]
    few = len(paths) <= MAX_PATHS and max(len(original), len(parts)) <= MAX_PARTS
    return paths if few else [*(path for path in paths if not path), ALL]


def _referent(part: Any) -> Any:
    return part() if isinstance(part, weakref.ref) else part


def _same(one: Any, other: Any) -> bool:
    """Return whether two values have equal pickles, or are lists, tuples and dicts of such."""
    compared: dict[tuple[int, int], tuple[Any, Any]] = {}  # these are kept, and so are their ids

    def same(one: Any, other: Any) -> bool:
        kind, pair = type(one), (id(one), id(other))
        if one is other or pair in compared:
            return True
        if kind is not type(other):
            return False
        if kind not in (list, tuple, dict):
            return _dumps(one) == _dumps(other)
        compared[pair] = one, other
        if len(one) != len(other):
            return False
        if kind is dict:
            one, other = list(one.items()), list(other.items())
        return all(map(same, one, other))

    try:
        return same(one, other)
    except ValuesError:
        return False


def unfillable_types(value: Any) -> list[str]:
    """Return the types of the mutable objects in a value that cannot be filled in place."""
    names: dict[str, None] = {}
    visited: dict[int, Any] = {}

    def visit(part: Any) -> None:
        if type(part) in ATOMS or isinstance(part, np.generic | type) or id(part) in visited:
            return
        visited[id(part)] = part
        children: Iterable[Any] = ()
        if isinstance(part, np.ndarray):
            if why := _why_unfillable(part):
                names[why] = None
            if part.dtype == object:
                children = part.flat
        elif isinstance(part, dict):
            children = part.values()
        elif isinstance(part, tuple | list | collections.deque):
            children = part
        elif not isinstance(part, set | frozenset | np.random.Generator | np.random.RandomState):
            children = visit_object(part)
        for child in children:
            visit(child)

    def visit_object(part: Any) -> Iterable[Any]:
        """Return the pickled state of an object that can be filled, else () and note its type."""
        reduced: tuple[Any, ...] | str = ""
        with contextlib.suppress(Exception):  # pickle itself supports functions and patterns
            reduced = part.__reduce_ex__(4)
        if isinstance(reduced, str):  # the name of a global object
            return ()
        if all(isinstance(argument, type) for argument in reduced[1]) and not any(reduced[3:]):
            return reduced[2:3]
        try:
            constant = bool(part == pickle.loads(pickle.dumps(part)))
        except Exception:  # of the object's own methods
            constant = False
        if not constant or type(part).__hash__ is None:
            names[type(part).__name__] = None
        return ()

    with contextlib.suppress(RecursionError):
        visit(value)
    return list(names)


def pickle_digest(name: str, value: Any) -> str:
    """Return a hash of a pickle, which may differ for equal values (:func:`digest`)."""
    encode_values({name: None})
    buffers: list[pickle.PickleBuffer] = []  # arrays are hashed where they are, without a copy
    problem = "cannot be pickled"
    try:
        data = _dumps(value, buffers.append)
        problem = "cannot be unpickled"
        copies = [pickle.loads(data, buffers=buffers) for _ in range(2)]
        problem = "cannot be filled"
        _deeper(SPARE_FRAMES, lambda: adopt(*copies))  # arrays of both have the same memory
    except RecursionError:
        raise ValuesError(f"run.state[{name!r}] is nested too deep to be filled in place") from None
    except Exception as error:  # of the value's own methods
        raise ValuesError(f"run.state[{name!r}] {problem}: {_words_of(error)}") from None
    hasher = xxhash.xxh3_128(data)
    for buffer in buffers:
        hasher.update(buffer.raw())
    return hasher.hexdigest()


def _deeper(frames: int, call: Callable[[], Any]) -> None:
    """Call a function in so many frames more."""
    if frames:
        _deeper(frames - 1, call)
    else:
        call()


def digest(name: str, value: Any) -> str:
    """Return a hash of a value, which is the same for equal values."""
    encode_values({name: None})
    try:
        _check_size(value)
        return _digest(value)
    except RecursionError:  # a list that holds itself
        return xxhash.xxh3_128_hexdigest(_pickled(name, value)["pickle"].encode())
    except (ValuesError, MemoryError) as error:
        raise ValuesError(f"run.state[{name!r}] cannot be pickled: {error}") from None


def round_trip(name: str, value: Any) -> Any:
    """Return a value pickled and unpickled, as a resize transfers it.

    Pickles of equal objects may differ, e.g. where two equal strings are one object in one of them.
    """
    return decode_values(*encode_values({name: value}), trusted=True)[name]


def _digest(value: Any) -> str:
    kind = type(value)
    parts: list[str] = []
    data: Any = b""
    if _is_plain(value):
        data = msgspec.json.encode(value, order="deterministic")
    elif kind in (list, tuple):
        parts = list(map(_digest, value))
    elif kind in (set, frozenset):  # unordered
        parts = sorted(map(_digest, value))
    elif kind is dict:
        parts = sorted(_digest(key) + _digest(one) for key, one in value.items())
    elif kind in (np.ndarray, np.void) and value.dtype.names:
        # without padding bytes, whose values are undefined
        parts = [value.dtype.str, *value.dtype.names]
        parts += (_digest(np.asarray(value[field])) for field in value.dtype.names)
    elif kind is np.ndarray and not value.dtype.hasobject:
        parts = [value.dtype.str, str(value.shape)]
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    else:
        data = msgspec.json.encode(_tree(value))
    result = xxhash.xxh3_128(data)
    result.update("".join([kind.__name__, *parts]).encode())
    return result.hexdigest()


def refuse_memmap(array: Any) -> None:
    """Refuse an array that is mapped from a file, or a view of one.

    The old and the new ranks of a resize would both write the file, and a rollback could not undo
    that.
    """
    base = array
    while base is not None:
        if isinstance(base, np.memmap):
            raise ValuesError(
                f"expected an array in memory, got a memmap of {base.filename}: copy it by "
                "np.array(...), and write the file after the loop"
            )
        base = getattr(base, "base", None)


def encode_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that are plain JSON, and the trees of all others."""
    plain: dict[str, Any] = {}
    trees: dict[str, Any] = {}
    for name, value in values.items():
        if type(name) is not str or not _is_unicode(name):
            raise ValuesError(f"expected names of run.state to be text, got {name!r}")
        try:
            _check_size(value)
            if _is_plain(value):
                plain[name] = value
            else:
                trees[name] = _tree(value)
        except RecursionError:  # a list that holds itself
            trees[name] = _pickled(name, value)
        except (ValuesError, MemoryError) as error:
            raise ValuesError(f"run.state[{name!r}] cannot be pickled: {error}") from None
    return plain, trees


def decode_values(
    plain: Mapping[str, Any], trees: Mapping[str, Any], *, trusted: bool
) -> dict[str, Any]:
    """Return the values that :func:`encode_values` was given.

    Args:
        trusted: whether pickles may be read: they run code.

    Raises:
        ValuesError: a pickle from a source that is not trusted, or a tree that cannot be read.
    """
    values = dict(plain)
    for name, tree in trees.items():
        try:
            values[name] = _value(tree, trusted)
        except Exception as error:  # a class that is gone, a constructor that fails, ...
            why = str(error) if isinstance(error, ValuesError) else repr(error)
            raise ValuesError(f"run.state[{name!r}] cannot be read: {why}") from None
    return values


def _is_plain(value: Any) -> bool:
    """Return whether JSON holds a value as it is, types included."""
    kind: Any = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return bool(-INT_LIMIT <= value < INT_LIMIT)
    if kind is str:
        return value.isascii() or _is_unicode(value)
    if kind is list:
        if set(map(type, value)) == {float}:  # faster, for a long history
            return all(map(math.isfinite, value))
        return all(map(_is_plain, value))
    if kind is dict:
        return all(type(key) is str and _is_plain(key) for key in value) and all(
            map(_is_plain, value.values())
        )
    return value is None or kind is bool


def _check_size(value: Any) -> None:
    """Refuse a value whose tree is exponentially large because containers are shared."""
    counts: dict[int, int] = {}

    def count(part: Any) -> int:
        if type(part) not in CONTAINERS:
            return 0
        if id(part) not in counts:
            parts = (*part, *part.values()) if isinstance(part, dict) else part
            atoms = ATOMS.issuperset(map(type, parts))
            counts[id(part)] = 1 if atoms else 1 + sum(map(count, parts))
        return counts[id(part)]

    if count(value) > max(MAX_CONTAINERS, 2 * len(counts)):
        raise RecursionError


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _tree(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        if _is_plain(value):
            return value
        if kind in (int, float):  # Python limits the length of decimal digits, not hexadecimal
            return {kind.__name__: hex(value) if kind is int else repr(value)}
    elif kind in (list, tuple):
        return {kind.__name__: [_tree(one) for one in value]}
    elif kind is dict:
        return {"dict": [[_tree(key), _tree(one)] for key, one in value.items()]}
    elif isinstance(value, np.generic) and _has_npy(value.dtype):
        return {"scalar": _npy(np.asarray(value))}
    elif kind is np.ndarray and _has_npy(value.dtype):
        return {"array": _npy(value)}
    return _pickled("", value)


def _pickled(name: str, value: Any) -> dict[str, str]:
    try:
        data = _dumps(value)
    except (ValuesError, RecursionError) as error:
        where = f"run.state[{name!r}]: " if name else ""
        raise ValuesError(f"{where}{_words_of(error)}") from None
    return {"pickle": base64.b64encode(data).decode()}


def _dumps(value: Any, take: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Return the pickle of a value; ``take`` gets the memory of its arrays."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, PICKLE_PROTOCOL, buffer_callback=take)
    pickler.dispatch_table = {
        **copyreg.dispatch_table,
        **dict.fromkeys((np.ndarray, np.memmap), _reduced_array),
    }
    try:
        pickler.dump(value)
    except (ValuesError, RecursionError):
        raise
    except Exception as error:  # whatever the value's own code raises
        raise ValuesError(_words_of(error)) from None
    return file.getvalue()


def _reduced_array(array: np.ndarray[Any, Any]) -> Any:
    refuse_memmap(array)
    return array.__reduce_ex__(PICKLE_PROTOCOL)


def _words_of(error: Exception) -> str:
    if isinstance(error, ValuesError):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _has_npy(dtype: np.dtype[Any]) -> bool:
    """Return whether the NPY format restores this type, without a pickle."""
    if dtype.hasobject:
        return False
    try:
        return bool(np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype)
    except (TypeError, ValueError):
        return False


def _npy(array: np.ndarray[Any, Any]) -> str:
    refuse_memmap(array)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = array.copy()  # at once: fails early if a broadcast array does not fit into memory
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return base64.b64encode(file.getbuffer()).decode()


def _value(tree: Any, trusted: bool) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((tag, content),) = tree.items()
    if tag in ("float", "int"):
        return float(content) if tag == "float" else int(content, 16)
    if tag in ("list", "tuple"):
        values = [_value(one, trusted) for one in content]
        return values if tag == "list" else tuple(values)
    if tag == "dict":
        return {_value(key, trusted): _value(one, trusted) for key, one in content}
    data = base64.b64decode(content)
    if tag == "pickle":
        if not trusted:
            raise ValuesError("it is a pickle from a source that is not trusted")
        return pickle.loads(data)
    array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array[()] if tag == "scalar" else array
