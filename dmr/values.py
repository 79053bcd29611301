"""How ``run.state`` travels: as JSON, whatever can be pickled.

What JSON holds as it is (finite numbers, text, None, lists, dicts with keys of text) goes as such.
NaN, infinities, tuples, and NumPy scalars and arrays go as tagged trees, everything else as a
pickle in such a tree. Reading a pickle runs code, so the reader says whether it trusts the source.

A tree is None, a bool, an int, a float or a string for itself, or a dict of one tag:
``{"float": "nan"}``, ``{"int": "2e70 in digits"}``, ``{"list": [...]}``, ``{"tuple": [...]}``,
``{"dict": [[key, value], ...]}``, ``{"array": NPY}``, ``{"scalar": NPY}``, ``{"pickle": BYTES}``,
the last three in base64.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import math
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

PICKLE_PROTOCOL = 5
INT_LIMIT = 2**63
"""JSON readers keep integers exactly up to here."""


class ValuesError(Exception):
    """A value cannot be written, or must not or cannot be read; one sentence."""


class State(dict[str, Any]):
    """Names and values of a run, by key and by attribute: ``state["time"]``, ``state.time``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self) or "nothing"
            raise AttributeError(
                f"expected {name!r} in run.state, got {known}: give it to dmr.malleable as "
                f"state={{{name!r}: ...}}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(dict, name):
            raise AttributeError(f"expected run.state[{name!r}] = ..., since dict.{name} exists")
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]


def adopt(given: Any, arrived: Any) -> Any:
    """Return what a new world goes on with: the object that the program has, with what arrived.

    Arrays of one shape and type, random generators, lists, dicts, sets and dataclasses are filled
    in place, so that the program's own names for them are right; of others it is what arrived.
    """
    if type(given) is not type(arrived) or given is arrived:
        return arrived
    if isinstance(given, np.ndarray):
        alike = (given.shape, given.dtype) == (arrived.shape, arrived.dtype)
        if not alike or not given.flags.writeable:
            return arrived
        given[...] = arrived
    elif isinstance(given, np.random.Generator):
        if type(given.bit_generator) is not type(arrived.bit_generator):
            return arrived
        given.bit_generator.state = arrived.bit_generator.state
    elif isinstance(given, np.random.RandomState):
        given.set_state(arrived.get_state(legacy=False))
    elif isinstance(given, list):
        given[:] = arrived
    elif isinstance(given, dict | set):
        given.clear()
        given.update(arrived)
    elif dataclasses.is_dataclass(given) and hasattr(given, "__dict__"):
        own: dict[str, Any] = vars(given)  # set this way, frozen ones can be as well
        own.clear()
        own.update(vars(arrived))
    else:
        return arrived
    return given


def refuse_memmap(array: Any) -> None:
    """Refuse an array that is mapped from a file.

    The ranks of before and of after a resize would both write the file; one that is rolled back
    could not be undone.

    Raises:
        ValueError: it is, or is a view of one that is.
    """
    base = array
    while base is not None:
        if isinstance(base, np.memmap):
            raise ValueError(
                f"expected an array in memory, got a memmap of {base.filename}: copy it by "
                "np.array(...), and write the file after the loop"
            )
        base = getattr(base, "base", None)


def encode_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that are plain JSON, and the trees of all others.

    Raises:
        ValuesError: a value cannot be pickled, or a name is not text.
    """
    plain: dict[str, Any] = {}
    trees: dict[str, Any] = {}
    for name, value in values.items():
        if type(name) is not str or not _is_unicode(name):
            raise ValuesError(f"expected names of run.state to be text, got {name!r}")
        try:
            if _is_plain(value):
                plain[name] = value
            else:
                trees[name] = _tree(value)
        except RecursionError:  # a list that holds itself
            trees[name] = _pickled(name, value)
        except ValuesError as error:
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
        if set(map(type, value)) == {float}:  # a history may be long, and a resize waits for this
            return all(map(math.isfinite, value))
        return all(map(_is_plain, value))
    if kind is dict:
        return all(type(key) is str and _is_plain(key) for key in value) and all(
            map(_is_plain, value.values())
        )
    return value is None or kind is bool


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
        if kind in (int, float):
            return {kind.__name__: repr(value)}
    elif kind in (list, tuple):
        return {kind.__name__: [_tree(one) for one in value]}
    elif kind is dict:
        return {"dict": [[_tree(key), _tree(one)] for key, one in value.items()]}
    elif isinstance(value, np.generic) and _has_npy(value.dtype):
        return {"scalar": _npy(np.asarray(value))}
    elif kind is np.ndarray and _has_npy(value.dtype):
        return {"array": _npy(value)}
    elif isinstance(value, np.memmap):
        raise ValuesError(
            f"expected an array in memory, got a memmap of {value.filename}: copy it by "
            "np.array(...), or open the file again before the block, in every set of ranks"
        )
    return _pickled("", value)


def _pickled(name: str, value: Any) -> dict[str, str]:
    try:
        data = pickle.dumps(value, PICKLE_PROTOCOL)
    except Exception as error:  # whatever the value's own code raises
        where = f"run.state[{name!r}]: " if name else ""
        raise ValuesError(f"{where}{type(error).__name__}: {error}") from None
    return {"pickle": base64.b64encode(data).decode()}


def _has_npy(dtype: np.dtype[Any]) -> bool:
    """Return whether the NPY format brings this type back, without a pickle."""
    if dtype.hasobject:
        return False
    try:
        return bool(np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype)
    except (TypeError, ValueError):
        return False


def _npy(array: np.ndarray[Any, Any]) -> str:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return base64.b64encode(file.getbuffer()).decode()


def _value(tree: Any, trusted: bool) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((tag, held),) = tree.items()
    if tag in ("float", "int"):
        return float(held) if tag == "float" else int(held)
    if tag in ("list", "tuple"):
        found = [_value(one, trusted) for one in held]
        return found if tag == "list" else tuple(found)
    if tag == "dict":
        return {_value(key, trusted): _value(one, trusted) for key, one in held}
    data = base64.b64decode(held)
    if tag == "pickle":
        if not trusted:
            raise ValuesError("it is a pickle from a source that is not trusted")
        return pickle.loads(data)
    array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array[()] if tag == "scalar" else array
