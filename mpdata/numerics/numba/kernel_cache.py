"""Compiled kernels on disk, loaded and called without Numba.

To run a kernel from its own cache Numba imports hundreds of modules and readies its type system,
which takes a third of a second: more than half of what a world needs to boot beside a running
one. So the machine code that Numba has made of a kernel is kept here as well; LLVM alone loads
it, and it is called by Numba's convention (numba.core.callconv, CPUCallConv)::

    status = kernel(&result, &error, words of all arguments...)

with seven words for an array: owner and parent (none), items, bytes of an item, address, extent,
stride. A cold start compiles once, by Numba, and then takes the same road: the bits of a run do
not depend on which worlds were cold.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SOURCES = (
    *(
        HERE / f"{name}.py"
        for name in ("kernel_arguments", "inlined", "cell_kernels", "fused_kernel")
    ),
    HERE.parent / "formulas.py",
)
HASH_BYTES = 32

NOT_OWNED = "define void @NRT_MemInfo_call_dtor(i64 %unused) { ret void }"
"""What would free an array that a kernel owns the last of; these own none."""

Code = str | tuple[Any, ...]
"""Type of an argument: of an array its dtype, of a number its own, of None an empty string; of a
tuple the name of its class and its members' own."""

Codes = tuple[Code, ...]

NUMBERS: dict[str, Any] = {
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float64": ctypes.c_double,
    "float32": ctypes.c_float,
}


def kernel(name: str, arguments: tuple[Any, ...]) -> Callable[..., None]:
    """Return a kernel (``module.function``) for arguments of these types.

    From memory, from disk, or compiled now (some seconds) and kept. Of several processes that
    share a folder one compiles, and the others wait for it.
    """
    return _kernel(name, tuple(_code(argument) for argument in arguments))


def _code(argument: Any) -> Code:
    if argument is None:
        return ""
    if isinstance(argument, tuple):
        return (type(argument).__name__, *map(_code, argument))
    if isinstance(argument, np.ndarray):
        return str(argument.dtype.str)
    if isinstance(argument, np.generic):
        return str(argument.dtype.name)
    return "float64" if isinstance(argument, float) else "int64"


@cache
def _kernel(name: str, codes: Codes) -> Callable[..., None]:
    import llvmlite.binding as llvm

    for ready in (llvm.initialize_native_target, llvm.initialize_native_asmprinter):
        ready()
    chosen = (os.environ.get(f"NUMBA_CPU_{what}", "") for what in ("NAME", "FEATURES"))
    features = llvm.get_host_cpu_features().flatten()
    stamp = _stamp(llvm.get_host_cpu_name(), features, *chosen)
    file = f"{name}-{sha256(repr((stamp, codes)).encode()).hexdigest()[:32]}.o"
    found = _kept(file)
    if found is None:
        with _compiling():
            found = _kept(file)
            if found is None:
                try:
                    found = _compiled(name, codes)
                except (ImportError, AttributeError, TypeError):
                    # A Numba whose inside is another: by its own door, with its own cache.
                    return _by_numba(name)
                for folder in _folders():
                    if _write(folder / file, found):
                        break
    symbol, code = found
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3, codemodel="jitdefault")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(NOT_OWNED), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Loaded(engine, symbol, codes)


class Loaded:
    """A kernel in memory; it lets go of the interpreter while it runs."""

    def __init__(self, engine: Any, symbol: str, codes: Codes) -> None:
        self._engine = engine  # owns the code
        words: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]
        for code in codes:
            words += _word_types(code)
        self._call = ctypes.CFUNCTYPE(ctypes.c_int, *words)(engine.get_function_address(symbol))

    def __call__(self, *arguments: Any) -> None:
        """Run it.

        Raises:
            RuntimeError: the kernel has raised something.
        """
        result, error = ctypes.c_void_p(), ctypes.c_void_p()
        words: list[Any] = [ctypes.addressof(result), ctypes.addressof(error)]
        for argument in arguments:
            words += _words(argument)
        status = self._call(*words)
        if status:
            raise RuntimeError(f"expected a kernel to end with status 0, got {status}")


def _word_types(code: Code) -> list[Any]:
    if isinstance(code, tuple):
        return [word for member in code[1:] for word in _word_types(member)]
    return [NUMBERS[code]] if code in NUMBERS else [ctypes.c_void_p] * (7 if code else 1)


def _words(argument: Any) -> list[Any]:
    if isinstance(argument, tuple):
        return [word for member in argument for word in _words(member)]
    if isinstance(argument, np.ndarray):
        items, size = argument.size, argument.itemsize
        address = argument.__array_interface__["data"][0]
        return [None, None, items, size, address, items, size]
    return [argument.item() if isinstance(argument, np.generic) else argument]


def _compiled(name: str, codes: Codes) -> tuple[str, bytes]:
    """Return the symbol and object code that Numba makes of a kernel."""
    numba: Any = import_module("numba.core.compiler")
    types: Any = import_module("numba.core.types")

    def type_of(code: Code) -> Any:
        if not code:
            return types.none
        if isinstance(code, tuple):
            grouped = import_module(f"{__package__}.kernel_arguments")
            return types.BaseTuple.from_types(
                tuple(map(type_of, code[1:])), getattr(grouped, code[0], None)
            )
        if code in NUMBERS:
            return getattr(types, code)
        return types.Array(getattr(types, np.dtype(code).name), 1, "C")

    entry = _entry(name)
    target, flags = entry.targetdescr, numba.Flags()
    target.options.parse_as_flags(flags, entry.targetoptions)
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    with _for_this_processor(target.target_context.codegen()) as machine:
        made = numba.compile_extra(
            target.typing_context,
            target.target_context,
            entry.py_func,
            tuple(type_of(code) for code in codes),
            types.none,
            flags,
            {},
            pipeline_class=_entry("inlined.NoAlias"),
        )
        code: bytes = machine.emit_object(made.library._final_module)
    return made.fndesc.llvm_func_name, code


@contextlib.contextmanager
def _for_this_processor(codegen: Any) -> Iterator[Any]:
    """Let Numba optimise for its features widened; yield what makes object code for them."""
    import llvmlite.binding as llvm

    options = {"opt": import_module("numba.core.config").OPT}
    codegen._customize_tm_options(options)
    options["features"] = widened(options["features"])
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(**options)
    kept = codegen._tm
    codegen._tm = machine
    try:
        yield machine
    finally:
        codegen._tm = kept


def widened(features: str) -> str:
    """Return a processor's features with vectors of 512 bits where these pay.

    LLVM prefers 256 bits on Intel's processors with AVX-512 for the sake of the first ones, which
    lower their frequency for the others. Those with VBMI2 (Ice Lake and later) hardly do.
    """
    wide = "+avx512vbmi2" in features.split(",")
    return f"{features},-prefer-256-bit" if wide else features


def _entry(name: str) -> Any:
    module, _, function = name.partition(".")
    return getattr(import_module(f"{__package__}.{module}"), function)


def _by_numba(name: str) -> Callable[..., None]:
    """Return a kernel that Numba compiles and keeps when it is called."""
    numba: Any = import_module("numba")
    found: Any = _entry(name)
    for folder in _folders():
        # By the hash of all sources: Numba itself looks at the age of one of them only.
        numba.config.CACHE_DIR = str(folder / sha256(_text()).hexdigest()[:32])
        with contextlib.suppress(OSError, RuntimeError):
            found.enable_caching()
            break
    kernel: Callable[..., None] = found
    return kernel


def _stamp(*machine: str) -> tuple[Any, ...]:
    """Return what machine code depends on: the source, the compiler, the processor."""
    return sha256(_text()).hexdigest(), _compiler(), machine


def _compiler() -> tuple[bytes | None, str]:
    """Return the versions of Numba, which is not imported for it, and of llvmlite.

    Not the age of a file: two environments with the same Numba share what it has compiled.
    """
    import llvmlite

    numba = find_spec("numba")
    if numba is None or numba.origin is None:
        return None, llvmlite.__version__
    try:
        version = Path(numba.origin).with_name("_version.py").read_bytes()
    except OSError:  # a Numba that is laid out otherwise
        version = repr(Path(numba.origin).stat().st_mtime_ns).encode()
    return version, llvmlite.__version__


def _text() -> bytes:
    return b"".join(path.read_bytes() for path in SOURCES)


def _folders() -> Iterator[Path]:
    """Yield where code may lie: where the user wants Numba's cache, beside the source, at home."""
    if (chosen := os.environ.get("NUMBA_CACHE_DIR")) is not None:
        yield Path(chosen)
        return
    yield HERE / "__pycache__"
    base = os.environ.get("XDG_CACHE_HOME")
    yield (Path(base) if base else Path.home() / ".cache") / "mpdata"


def _kept(file: str) -> tuple[str, bytes] | None:
    """Return symbol and code from the first folder that has them."""
    return next((kept for folder in _folders() if (kept := _read(folder / file))), None)


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Wait until no other process with the same folder compiles, and keep others waiting.

    Where nothing can be locked all compile: that costs time only. A process that ends lets go.
    """
    with contextlib.ExitStack() as stack:
        for folder in _folders():
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                path, flags = folder / "compiling.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                lock = stack.enter_context(os.fdopen(os.open(path, flags, 0o666), "rb+"))
                fcntl.flock(lock, fcntl.LOCK_EX)
                break
        yield


def _read(path: Path) -> tuple[str, bytes] | None:
    """Return symbol and code of a valid file that other users cannot write, else None."""
    try:
        with path.open("rb") as file:
            status, trusted = os.fstat(file.fileno()), {0, os.geteuid(), SOURCES[0].stat().st_uid}
            if status.st_uid not in trusted or status.st_mode & stat.S_IWOTH:
                return None
            data = file.read()
    except OSError:
        return None
    digest, body = data[:HASH_BYTES], data[HASH_BYTES:]
    if sha256(body).digest() != digest:
        return None
    symbol, _, code = body.partition(b"\n")
    return symbol.decode(), code


def _write(path: Path, found: tuple[str, bytes]) -> bool:
    """Keep code so that a reader sees all of it or none; return whether it could be."""
    body = found[0].encode() + b"\n" + found[1]
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        with part.open("xb") as file:  # does not follow links
            file.write(sha256(body).digest() + body)
        part.replace(path)
        return True
    return False
