"""The package as users get it: sdist, wheel from the sdist, fresh environments without a checkout.

The first environment has the base alone with MPICH: ``dmr`` works, ``mpdata`` and ``rms`` name the
extra that they need. The second has all extras.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import DEADLINE_S, ROOT, started, until

pytestmark = pytest.mark.promise("package")

PACKAGES = ("dmr", "mpdata", "rms")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
VARIABLES = ("PYTHONPATH", "DMR_", "RMS_", "SLURM_", "MPDATA_", "VIRTUAL_ENV")
"""Variables of the tests' own environment and checkout, by their first letters."""

CLIENT = """
from typing import assert_type

import dmr
from mpdata import Scheme
from rms import __version__

assert_type(__version__, str)
assert_type(Scheme().iterations, int)
plan = dmr.Plan(every=10, resizes={100: 3})
assert_type(plan.every, int)
"""
"""Passes only if mypy reads the types of all three packages: untyped names are ``Any``."""


@dataclass
class Installed:
    """An environment, and a folder without the checkout in which its commands run."""

    folder: Path
    work: Path

    def path(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    @property
    def env(self) -> dict[str, str]:
        env = {key: text for key, text in os.environ.items() if not key.startswith(VARIABLES)}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**env, "PATH": path, "RMS_STATE": str(self.work / "state")}

    def run(
        self, *command: str, status: int = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment to its end; check its status."""
        done = subprocess.run(
            [self.path(command[0]), *command[1:]],
            cwd=self.work,
            env=self.env | variables,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == status, (command, done.stdout, done.stderr)
        return done


def build(*options: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    build("--sdist", "--outdir", str(out), str(ROOT))
    return next(out.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the unpacked sdist."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(out)], check=True)
    build("--wheel", "--outdir", str(out), str(out / sdist.name.removesuffix(".tar.gz")))
    return next(out.glob("*.whl"))


def installed(wheel: Path, extras: str, folder: Path) -> Installed:
    """Install the wheel with extras into a fresh environment."""
    venv.EnvBuilder(with_pip=False).create(folder / "env")
    place = Installed(folder / "env", folder / "work")
    place.work.mkdir()
    command = [*PIP, "--python", place.path("python"), "install", "--quiet", "--no-compile"]
    done = subprocess.run([*command, f"{wheel}[{extras}]"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed(wheel, "mpich", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def whole(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed(wheel, "all,mpich", tmp_path_factory.mktemp("all"))


def test_the_package_index_accepts_both(sdist: Path, wheel: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_of_the_packages_is_in_sdist_and_wheel(sdist: Path, wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES, "jobs"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("expected a git checkout, which knows the files")
    files = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert not files - sources
    with zipfile.ZipFile(wheel) as archive:
        built = {
            re.sub(r"^[^/]*\.data/data/share/malleable-mpi/", "", n) for n in archive.namelist()
        }
    assert not {name for name in files if not name.endswith(".png")} - built
    assert {f"{package}/py.typed" for package in PACKAGES} <= built


def test_the_long_description_needs_no_other_file() -> None:
    text = (ROOT / "docs" / "package.md").read_text()
    targets = re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)\"", text)
    assert not [target for pair in targets for target in pair if target and "://" not in target]
    assert "![" not in text and "<img" not in text


def test_the_base_has_no_package_of_an_extra(base: Installed) -> None:
    listed = subprocess.run(
        [*PIP, "--python", base.path("python"), "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.partition("==")[0] for line in listed.stdout.splitlines()}
    expected = {"h5py", "malleable-mpi", "mpi4py", "mpich", "msgspec", "numpy", "xxhash"}
    assert names - {"pip", "setuptools"} == expected


def test_dmr_needs_the_base_alone(base: Installed) -> None:
    assert "probe" in base.run("dmr", "--help").stdout
    assert '"spawn"' in base.run("dmr", "probe", "--json", "-").stdout
    done = base.run("dmr", "bench", "--mib", "1")
    assert re.search(r"^strategy +spawn$", done.stdout, re.MULTILINE), done.stdout
    assert "warm needs pip install 'malleable-mpi[rms]'" in done.stderr
    done = base.run("dmr", "bench", "--mib", "1", "--strategy", "restart")
    assert re.search(r"^strategy +restart$", done.stdout, re.MULTILINE), done.stdout


def test_the_program_of_the_long_description_is_resized(base: Installed) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "package.md").read_text(), re.DOTALL)
    assert block is not None
    (base.work / "heat.py").write_text(block[1])
    command = ["mpirun", "-n", "2", base.path("python"), "heat.py"]
    plain = base.run(*command).stdout
    assert plain.startswith("2 ranks, mean ")
    resized = base.run(*command, DMR_RESIZE_AT="100:3,200:1").stdout.splitlines()
    assert [line.partition(":")[0] for line in resized[:-1]] == [
        "resize at step 100",
        "resize at step 200",
    ]
    assert resized[-1] == plain.strip().replace("2 ranks", "1 ranks")


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("rms serve", "rms"),
        ("rms web", "rms"),
        ("rms profile -- true", "rms"),
        ("dmr bench --strategy warm", "rms"),
        ("rms --print-completion bash", "rms"),
        ("mpdata run --case cone", "mpdata"),
        ("mpdata run --case cone --backend numpy", "mpdata"),
        ("mpdata verify", "mpdata"),
    ],
)
def test_a_missing_extra_is_one_sentence(base: Installed, command: str, extra: str) -> None:
    done = base.run(*command.split(), status=2)
    sentence = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        rf"\w+: error: .*expected .*, got none; pip install 'malleable-mpi\[{extra}\]'", sentence
    ), done.stderr
    assert not done.stdout and "Traceback" not in done.stderr


def test_clients_of_a_daemon_elsewhere_need_the_base_alone(base: Installed) -> None:
    done = base.run("rms", "queue", status=1)
    assert "expected a running daemon (rms serve)" in done.stderr
    assert "launcher" in base.run("rms", "launch", "--help").stdout


def test_mypy_reads_the_types_of_the_installed_packages(base: Installed) -> None:
    (base.work / "client.py").write_text(CLIENT)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull]
    command += ["--python-executable", base.path("python"), "--cache-dir", str(base.work / "mypy")]
    done = subprocess.run(
        [*command, "client.py"], cwd=base.work, env=base.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def daemon(whole: Installed) -> Iterator[Installed]:
    with started([whole.path("rms"), "serve"], cwd=whole.work, env=whole.env) as process:
        socket = whole.work / "state" / "socket"
        until(lambda: socket.exists() or process.poll() is not None)
        assert process.poll() is None, process.stdout and process.stdout.read()
        yield whole
        whole.run("rms", "shutdown")
        process.wait(DEADLINE_S)


def test_all_extras_simulate_a_workload_of_the_wheel(whole: Installed) -> None:
    jobs = whole.folder / "share" / "malleable-mpi" / "jobs"
    words = ["--workload", str(jobs / "nine-k80.toml"), "--cluster", str(jobs / "k80.toml")]
    done = whole.run("rms", "simulate", *words, "--mode", "flexible")
    assert re.search(r"^jobs +9$", done.stdout, re.MULTILINE), done.stdout


def test_all_extras_advect_a_cone_and_draw_it(whole: Installed) -> None:
    output = ["--output", "cone.h5", "--output-every", "10"]
    done = whole.run(
        "mpirun", "-n", "2", "mpdata", "run", "--case", "cone", "--steps", "20", *output
    )
    assert "numba, 2 ranks at the end" in done.stdout
    whole.run("mpdata", "plot", "cone.h5")
    assert (whole.work / "cone.png").read_bytes().startswith(b"\x89PNG")


def test_all_extras_run_a_job(daemon: Installed) -> None:
    daemon.run("rms", "submit", "--wait", "--", "true")
    assert "COMPLETED" in daemon.run("rms", "acct").stdout
