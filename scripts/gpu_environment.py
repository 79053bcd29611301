"""Where scripts/gpu runs: in a Python that has CuPy and what else it needs."""

import os
import re
import subprocess
import sys
import tempfile
import venv
from importlib.util import find_spec
from pathlib import Path

import bootstrap

MARK = "MALLEABLE_GPU_WHEELS"


def enter(wheels):
    """Stay where CuPy is at hand; else go into the project's environment with the right CuPy."""
    python = Path(sys.executable).parent
    os.environ["PATH"] = f"{python}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    paths = [str(bootstrap.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if find_spec("cupy") is not None:
        if wheels is not None and MARK not in os.environ:
            add_wheels(wheels)
        return
    try:
        said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        bootstrap.fail("expected a GPU with its driver, got no nvidia-smi that works")
    version = re.search(r"CUDA[^:]*Version:\s*(\d+)", said)
    new = version is not None and int(version[1]) >= 13
    bootstrap.enter_venv("mpich", "dev", "cuda13" if new else "cuda12")


def add_wheels(folder):
    """Go on in an environment that has this one's packages and those of a folder of wheels."""
    found = sorted(str(path.resolve()) for path in folder.glob("*.whl"))
    if not found:
        bootstrap.fail(f"expected a folder with wheels in --wheels, got {folder}")
    place = Path(tempfile.mkdtemp(prefix="gpu-"))
    venv.EnvBuilder(with_pip=False, system_site_packages=True).create(place)
    python = place / "bin" / "python"
    # If this Python is one of an environment itself, the new one would not see its packages.
    ours = [path for path in sys.path if path.endswith("-packages")]
    site = next(place.glob("lib/python*/site-packages"))
    (site / "beside.pth").write_text("\n".join(ours) + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    if bootstrap.run([*pip, "--no-index", "--no-deps", "--no-compile", *found]):
        bootstrap.fail(f"pip could not install the wheels in {folder} (see above)")
    os.environ[MARK] = str(place)
    os.execv(python, [str(python), *sys.argv])
