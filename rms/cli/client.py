"""The commands that talk to a running daemon: their options, and the tables they print."""

from __future__ import annotations

import argparse
import os
import sys
from urllib.parse import quote

import msgspec

from rms.cli.queue import add_filters
from rms.client.commands import follow, wait_for
from rms.client.connection import ServerError, ask, server_address
from rms.drawings import clock
from rms.formats.nodelist import fold_slots
from rms.wire.terminal import columns, publish, tell
from rms.wire.users import (
    HistoryEntry,
    JobIds,
    JobSelection,
    NodeNames,
    NodePattern,
    NodeRow,
    Nothing,
    ResizeAnswer,
    ResizeCommand,
)


def _server(arguments: argparse.Namespace) -> str:
    return server_address(arguments.server, os.environ)


def _show(
    arguments: argparse.Namespace, result: object, heads: list[str], rows: list[list[str]]
) -> int:
    publish(arguments.json, msgspec.to_builtins(result), columns(heads, rows))
    return 0


# --- waiting -------------------------------------------------------------------


def add_wait(command: argparse.ArgumentParser) -> None:
    """Add the argument of ``rms wait``."""
    command.add_argument("id")


def wait(arguments: argparse.Namespace) -> int:
    """``rms wait ID``: 0 if all its jobs are COMPLETED, else the highest exit status."""
    return wait_for(_server(arguments), arguments.id)


add_attach = add_wait


def attach(arguments: argparse.Namespace) -> int:
    """``rms attach ID``: its output as it grows, from the beginning; ends with its status."""
    out = sys.stderr if arguments.json == "-" else sys.stdout
    status, job = follow(_server(arguments), arguments.id, out.buffer)
    tell(f"job {job.id} {job.state}, exit status {status}")
    publish(arguments.json, {"id": job.id, "state": job.state, "exit_code": status}, [])
    return status


# --- tables of jobs ----------------------------------------------------------------------------


add_explain = add_wait


def explain(arguments: argparse.Namespace) -> int:
    """``rms explain ID``: the decisions about a job and their reasons."""
    path = f"/history/{quote(arguments.id)}"
    found = ask(list[HistoryEntry], _server(arguments), "GET", path)
    table = [
        [
            clock(entry.at_s, day=True),
            entry.kind,
            fold_slots(entry.nodes),
            entry.reason,
        ]
        for entry in found
    ]
    return _show(arguments, found, ["TIME", "DECISION", "NODES", "REASON"], table)


# --- changing jobs -----------------------------------------------------------------------------


def add_cancel(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``rms cancel``, and of all that changes several jobs."""
    command.add_argument("id", nargs="*", metavar="ID", help="like 7, 7_3 or 7_[1-3]")
    add_filters(command)


add_hold = add_release = add_requeue = add_cancel


def cancel(arguments: argparse.Namespace) -> int:
    """``rms cancel``: jobs of these ids, and of what else is asked for."""
    return _change(arguments, "/cancel", "CANCELLED")


def hold(arguments: argparse.Namespace) -> int:
    """``rms hold``: jobs that wait do not start until they are released."""
    return _change(arguments, "/hold", "HELD")


def release(arguments: argparse.Namespace) -> int:
    """``rms release``: held jobs."""
    return _change(arguments, "/release", "RELEASED")


def requeue(arguments: argparse.Namespace) -> int:
    """``rms requeue``: running jobs end, at a checkpoint where they can, and wait again."""
    return _change(arguments, "/requeue", "REQUEUED")


def _change(arguments: argparse.Namespace, path: str, head: str) -> int:
    """Do something to the jobs that are selected; print which."""
    ids = ",".join(arguments.id) or None
    body = JobSelection(ids, arguments.state, arguments.name, arguments.user)
    found = ask(JobIds, _server(arguments), "POST", path, body)
    return _show(arguments, found, [head], [[job] for job in found.ids])


def add_resize(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms resize``."""
    command.add_argument("id")
    command.add_argument("nodes", type=_size, help="a number, or auto: as the policy chooses again")
    command.add_argument("--strategy", metavar="NAME", help="instead of the job's own")
    command.add_argument("--on", metavar="NODE,...", help="go over to these nodes, by their names")


def _size(text: str) -> int | None:
    """Return a number of nodes, None where the policy is to choose it."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, or auto, got {text!r}") from None


def resize(arguments: argparse.Namespace) -> int:
    """``rms resize ID NODES|auto``: 0 if it was taken on, now or for its first resize point."""
    body = ResizeCommand(arguments.id, arguments.nodes, arguments.strategy, arguments.on)
    found = ask(ResizeAnswer, _server(arguments), "POST", "/resize", body)
    if found.decision in ("Waits", "ByPolicy"):
        return _show(arguments, found, ["DECISION"], [[found.reason]])
    if found.decision != "Resize":
        never = found.reason.startswith("never")
        raise ServerError(f"not resized: {found.reason}", 2 if never else 1)
    return _show(arguments, found, ["DECISION"], [["requested"]])


# --- the cluster -------------------------------------------------------------------------------


def nodes(arguments: argparse.Namespace) -> int:
    """``rms nodes``: like sinfo."""
    rows = ask(list[NodeRow], _server(arguments), "GET", "/nodes")
    table = [
        [
            node.name,
            node.state,
            fold_slots(node.slots),
            f"{node.allocated}/{len(node.slots) - node.allocated}",
            "" if node.frequency is None else f"{100 * node.frequency:.0f} %",
            node.job or "",
        ]
        for node in rows
    ]
    return _show(arguments, rows, ["NODE", "STATE", "SLOTS", "ALLOC/IDLE", "FREQ", "JOB"], table)


def add_drain(command: argparse.ArgumentParser) -> None:
    """Add the argument of ``rms drain`` and ``rms resume``."""
    command.add_argument("node", metavar="NODE")


add_resume = add_drain


def drain(arguments: argparse.Namespace) -> int:
    """``rms drain NODE``: who runs there is left alone."""
    return _drain(arguments, "/drain", "DRAINED")


def resume(arguments: argparse.Namespace) -> int:
    """``rms resume NODE``."""
    return _drain(arguments, "/resume", "RESUMED")


def _drain(arguments: argparse.Namespace, path: str, head: str) -> int:
    found = ask(NodeNames, _server(arguments), "POST", path, NodePattern(arguments.node))
    return _show(arguments, found, [head], [[name] for name in found.nodes])


def shutdown(arguments: argparse.Namespace) -> int:
    """``rms shutdown``."""
    ask(Nothing, _server(arguments), "POST", "/shutdown", Nothing())
    return 0
