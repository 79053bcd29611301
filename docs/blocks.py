"""Run the blocks of the documentation, in the order of a page: ``pytest -p blocks docs README.md``.

A page has a folder and a shell of its own; the folder begins as a copy of ``programs/`` beside the
page. Of its fenced blocks

- ``console`` is run: a line that begins with ``$ `` is a command, and ``> `` continues it; what
  follows is its output, in which ``...`` stands for any text, lines too, and blanks count as one.
  A command without output in the block, or with ``...`` alone, must succeed. Commands read
  nothing from standard input.
- ``python``, ``toml``, ``ini`` and ``bash`` with the comment ``# NAME.EXT`` as their first line are
  written to that file; other ``python`` blocks are run, one after the other as one program.
- ``text``, ``shell`` and all others are not run.

A block after the comment ``% not run: REASON`` is left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 240
"""Longest time of a command."""

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<kind>[\w-]+) *$")
FILE = re.compile(r"^# (?P<name>[\w.-]+\.\w+)$")
WRITTEN = {"python", "toml", "ini", "bash"}
MARK = "end-of-command-7f1c"


def blocks_of(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield line number, kind and lines of each fenced block, but of those left out."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        match = FENCE.match(lines[at])
        at += 1
        if not match:
            continue
        begin, indent = at, len(match["indent"])
        while at < len(lines) and lines[at].strip() != match["ticks"]:
            at += 1
        before = next((line for line in reversed(lines[: begin - 1]) if line.strip()), "")
        if not before.strip().startswith(("% not run:", "<!-- not run:")):
            yield begin, match["kind"], [line[indent:] for line in lines[begin:at]]


def commands_of(lines: list[str]) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with its output."""
    commands: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif line.startswith("> ") and commands and not commands[-1][1]:
            commands[-1] = (f"{commands[-1][0]}\n{line[2:]}", [])
        elif commands:
            commands[-1][1].append(line)
        else:
            raise ValueError(f"expected a command after '$ ', got {line!r}")
    return commands


def agree(expected: list[str], output: str) -> bool:
    """Return whether an output is as expected, where ``...`` stands for any text.

    Blanks count as one, and those beside ``...`` as none: the width of a column may depend on what
    is in it.
    """
    wanted = "\n".join(" ".join(line.split()) for line in expected).strip()
    got = "\n".join(" ".join(line.split()) for line in output.splitlines()).strip()
    pattern = ".*".join(re.escape(part) for part in re.split(r" ?\.\.\. ?", wanted))
    return re.fullmatch(pattern, got, re.DOTALL) is not None


class Shell:
    """A shell of a page, in a folder of its own; all that it started ends with it."""

    def __init__(self, page: Path) -> None:
        # Sockets lie below this folder, and their paths are short.
        self.folder = Path(tempfile.mkdtemp(prefix="page-"))
        work = self.folder / "work"
        programs = page.parent / "programs"
        if programs.is_dir():
            shutil.copytree(programs, work)
        else:
            work.mkdir()
        self.work = work
        env = {
            **os.environ,
            "HOME": str(self.folder),
            "RMS_STATE": str(self.folder / "rms"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
            "NO_COLOR": "1",
            "COLUMNS": "100",
            "TERM": "dumb",
            "PYTHONUNBUFFERED": "1",
        }
        env.pop("RMS_SERVER", None)
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=work,
            env=env,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[str, int]:
        """Return what a command prints, and its status."""
        assert self.process.stdin is not None and self.process.stdout is not None
        # mpirun would read what follows from the shell's input.
        text = f"{{ {command}\n}} </dev/null\n__status=$?; printf '\\n{MARK} %d\\n' $__status\n"
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()
        output, end = b"", time.monotonic() + DEADLINE_S
        while not (match := re.search(rf"\n{MARK} (\d+)\n".encode(), output)):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise TimeoutError(f"not done in {DEADLINE_S} s: {output.decode()[-2000:]}")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise EOFError(f"the shell ended: {output.decode()[-2000:]}")
            output += more
        return output[: match.start()].decode(errors="replace"), int(match[1])

    def close(self) -> None:
        """End the shell and what it started, and remove the folder."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            time.sleep(0.5)
        # Jobs of a daemon have sessions of their own.
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"HOME={self.folder}".encode() in (place / "environ").read_bytes().split(b"\0"):
                    os.kill(int(place.name), signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Page(pytest.File):
    """A Markdown file; its blocks are run in their order as one test."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the page, if it has a block to run."""
        kinds = {kind for _, kind, _ in blocks_of(self.path.read_text(encoding="utf-8"))}
        if kinds & {"console", "python"}:
            yield PageBlocks.from_parent(self, name="blocks")


class PageBlocks(pytest.Item):
    """All blocks of one page."""

    def runtest(self) -> None:
        """Run them; the first that fails ends the page."""
        shell, plain, ran = Shell(self.path), 0, 0
        try:
            for line, kind, lines in blocks_of(self.path.read_text(encoding="utf-8")):
                file = FILE.match(lines[0]) if lines else None
                if kind in WRITTEN and file:
                    (shell.work / file["name"]).write_text("\n".join(lines[1:]).lstrip() + "\n")
                elif kind == "python":
                    plain += 1
                    with (shell.work / "page.py").open("a") as program:
                        program.write("\n".join(lines) + "\n")
                elif kind == "console":
                    for command, expected in commands_of(lines):
                        self.check(line, command, expected, *shell.run(command))
                        ran += 1
            if plain:
                self.check(0, "python page.py", ["..."], *shell.run("python page.py"), ok=True)
        finally:
            shell.close()
        self.add_report_section("call", "blocks", f"{ran} commands, {plain} Python blocks")

    def check(
        self,
        line: int,
        command: str,
        expected: list[str],
        output: str,
        status: int,
        ok: bool = False,
    ) -> None:
        """Raise if the output is another one, or a command without output failed."""
        silent = not "".join(expected).replace("...", "").strip()
        if (silent or ok) and status:
            raise BlockError(f"line {line}: {command}\nstatus {status}\n{output}")
        if any(line.strip() for line in expected) and not agree(expected, output):
            wanted = "\n".join(expected)
            raise BlockError(f"line {line}: {command}\nexpected:\n{wanted}\ngot:\n{output}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any) -> str:  # type: ignore[override]
        """Return the failure in words."""
        error = excinfo.value
        return str(error) if isinstance(error, BlockError) else str(excinfo.getrepr("short"))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return where the page is."""
        return self.path, 0, str(self.path.relative_to(ROOT))


class BlockError(Exception):
    """A block whose output is not the one of the page."""


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Page | None:
    """Collect Markdown pages."""
    if file_path.suffix == ".md" and "_build" not in file_path.parts:
        page: Page = Page.from_parent(parent, path=file_path)
        return page
    return None
