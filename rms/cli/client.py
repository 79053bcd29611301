"""The commands that talk to a running daemon: their options, and the tables they print."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
from functools import partial
from pathlib import Path
from urllib.parse import quote

import msgspec

from rms.cli.queue import add_filters, add_ids, selection
from rms.client.commands import follow, jobs, requeue_words, wait_for
from rms.client.connection import ServerError, ask, server_address
from rms.client.status import DECISION_HEADS, decision_cells
from rms.formats.energy import as_json
from rms.formats.jobscript import parse_power_cap
from rms.formats.values import fold_ids, fold_slots
from rms.kernels.scheduler import STRATEGIES as TASK_STRATEGIES
from rms.wire.live import LIVE_PATH, Live, LiveQuery
from rms.wire.messages import STRATEGIES
from rms.wire.terminal import (
    NODE_NAMES,
    CommandError,
    at_least,
    columns,
    completed_by,
    printable,
    publish,
    refuse_on,
    tell,
)
from rms.wire.users import (
    OVER,
    HistoryEntry,
    JobIds,
    JobRow,
    JobSelection,
    NodeNames,
    NodePattern,
    NodeRow,
    Nothing,
    PolicyName,
    PowerCap,
    PowerCapRow,
    ResizeAnswer,
    ResizeCommand,
)

PAGE_HOST = "127.0.0.1"


def _server(arguments: argparse.Namespace) -> str:
    return server_address(arguments.server, os.environ)


def _show(
    arguments: argparse.Namespace, result: object, heads: list[str], rows: list[list[str]]
) -> int:
    publish(arguments.json, msgspec.to_builtins(result), columns(heads, rows))
    return 0


add_wait = partial(add_ids, nargs="+")
add_attach = add_ids


def wait(arguments: argparse.Namespace) -> int:
    """``rms wait ID...``: 0 if all these jobs are COMPLETED, else the highest exit status."""
    return wait_for(_server(arguments), ",".join(arguments.id), tell, only_failed=True)


def attach(arguments: argparse.Namespace) -> int:
    """``rms attach ID``: its output as it grows, from the beginning; ends with its status."""
    out = sys.stderr if arguments.json == "-" else sys.stdout
    status, job = follow(_server(arguments), arguments.id, out.buffer, tell)
    tell(f"job {job.id} {job.state}, exit status {status}")
    publish(arguments.json, {"id": job.id, "state": job.state, "exit_code": status}, [])
    return status


add_explain = add_ids


def explain(arguments: argparse.Namespace) -> int:
    """``rms explain ID``: the decisions about a job and their reasons; for several, the last."""
    rows = jobs(_server(arguments), arguments.id)
    if len(rows) > 1:
        return _explain_several(arguments, rows)
    path = f"/history/{quote(rows[0].id if rows else arguments.id)}"
    entries = ask(list[HistoryEntry], _server(arguments), "GET", path)
    return _show(arguments, entries, list(DECISION_HEADS), list(map(decision_cells, entries)))


def _explain_several(arguments: argparse.Namespace, rows: list[JobRow]) -> int:
    """Print state, nodes and reason of several jobs; jobs with equal ones share a row."""
    groups = dict[tuple[str, str, str], list[str]]()
    for job in rows:
        groups.setdefault((job.state, fold_slots(job.nodes), job.reason), []).append(job.id)
    table = [[name, *cells] for cells, ids in groups.items() for name in fold_ids(ids)]
    _show(arguments, rows, ["JOBID", "STATE", "NODES", "REASON"], table)
    tell(f"rms explain {rows[0].id} shows all decisions about one job")
    return 0


# --- changing jobs -----------------------------------------------------------------------------


add_change = add_requeue = add_filters


def requeue(arguments: argparse.Namespace) -> int:
    """``rms requeue``: running jobs end, at a checkpoint where they can, and wait again.

    The progress that the jobs lose is printed before the request.
    """
    wanted = selection(arguments)
    if wanted != JobSelection():
        which = {"state": wanted.state or "RUNNING", "name": wanted.name, "user": wanted.user}
        for job in jobs(_server(arguments), wanted.id, **which):
            if job.state == "RUNNING":
                tell(f"requeue of job {job.id} ({job.name}): {requeue_words(job)}")
    return change(arguments, "REQUEUED")


def change(arguments: argparse.Namespace, head: str) -> int:
    """Request the change of the command's name; print the ids of the changed jobs below a head."""
    wanted = selection(arguments)
    changed = ask(JobIds, _server(arguments), "POST", f"/{arguments.command}", wanted)
    if changed.ids:
        _show(arguments, changed, [head], [[name] for name in fold_ids(changed.ids)])
        if wanted.id is None or head == "CANCELLED":
            return 0
    else:
        publish(arguments.json, msgspec.to_builtins(changed), [])
    others, done = dict[str, list[str]](), set(changed.ids)
    for job in jobs(_server(arguments), **msgspec.structs.asdict(wanted)):
        if job.id not in done:
            others.setdefault(job.state, []).append(job.id)
    for state, ids in others.items():
        several = len(ids) > 1
        if state in OVER:
            effect = f"{'have' if several else 'has'} ended"
        else:
            effect = f"{'are' if several else 'is'} not {head.lower()}"
        tell(f"job{'s' * several} {', '.join(fold_ids(ids))} {effect}: {state}")
    if not (others or changed.ids):
        tell(f"no job {head.lower()}: no job matches")
    return 0


def add_resize(command: argparse.ArgumentParser) -> None:
    add_ids(command)
    command.add_argument(
        "nodes", type=_size, metavar="NODES", help="a number, or auto: as the policy chooses again"
    )
    strategy = command.add_argument("--strategy", metavar="NAME", help="instead of the job's own")
    completed_by(strategy, lambda: STRATEGIES)
    command.add_argument("--on", metavar="NODE,...", help="go over to these nodes, by their names")


def _size(text: str) -> int | None:
    """Return a number of nodes, None where the policy is to choose it."""
    if text == "auto":
        return None
    try:
        return at_least(1)(text)
    except argparse.ArgumentTypeError:
        form = "a whole number of at least 1, or auto"
        raise argparse.ArgumentTypeError(f"expected {form}, got {text!r}") from None


def resize(arguments: argparse.Namespace) -> int:
    """``rms resize ID NODES|auto``: 0 if it was taken on, now or for its first resize point."""
    body = ResizeCommand(arguments.id, arguments.nodes, arguments.strategy, arguments.on)
    answer = ask(ResizeAnswer, _server(arguments), "POST", "/resize", body)
    if answer.decision in ("Waits", "ByPolicy"):
        return _show(arguments, answer, ["DECISION"], [[answer.reason]])
    if answer.decision != "Resize":
        raise ServerError(f"not resized: {answer.reason}", 2 if answer.decision == "Never" else 1)
    return _show(arguments, answer, ["DECISION"], [["requested"]])


# --- the cluster -------------------------------------------------------------------------------


def top(arguments: argparse.Namespace) -> int:
    """``rms top``: a live view on a terminal, else a table of the present."""
    from rms.client.monitor import JOB_HEADS, present_jobs, snapshot, summary

    server = _server(arguments)
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if arguments.json is None and interactive:
        from rms.cli.screen import Top

        ask(Live, server, "POST", LIVE_PATH, LiveQuery())  # fails before the screen opens
        Top(server).run()
        return 0
    now = snapshot(server)
    lines = [printable(summary(now)), *columns(JOB_HEADS.split(), present_jobs(now))]
    publish(arguments.json, as_json(now), lines)
    return 0


def add_web(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--port",
        type=at_least(0, 65535),
        default=0,
        metavar="P",
        help="of 127.0.0.1 (default: any that is free)",
    )


def web(arguments: argparse.Namespace) -> int:
    """``rms web``: serve the live page to browsers of this machine until interrupted."""
    import uvicorn

    from rms.daemon.ask.http import BACKLOG, REQUEST_S, bounded
    from rms.daemon.store.private import raise_open_files
    from rms.web.app import Bridge

    server = _server(arguments)
    ask(Live, server, "POST", LIVE_PATH, LiveQuery())
    try:
        listening = socket.create_server((PAGE_HOST, arguments.port))
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # which names the address again
        raise CommandError(f"cannot listen on {PAGE_HOST}:{arguments.port}: {why}") from None
    with listening:
        port, token = listening.getsockname()[1], secrets.token_urlsafe(18)
        address = f"http://{PAGE_HOST}:{port}/#token={token}"
        lines = [address]
        if over_ssh := os.environ.get("SSH_CONNECTION", ""):
            lines.append(_tunnel(over_ssh, port))
        publish(arguments.json, {"address": address, "port": port}, lines)
        sys.stdout.flush()  # a program may wait for the address
        bridge = Bridge(server, token)
        config = uvicorn.Config(
            bridge.app(),
            http=bounded(raise_open_files() * 3 // 4),
            ws="none",
            timeout_keep_alive=int(REQUEST_S),
            backlog=BACKLOG,
            log_level="critical",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            bridge.close()
    return 0


def _tunnel(connection: str, port: int) -> str:
    words = connection.split()
    host = words[2] if len(words) == 4 else socket.gethostname()
    login = os.environ.get("USER", "")
    where = f"{login}@{host}" if login else host
    return f"from the machine you are logged in from: ssh -L {port}:{PAGE_HOST}:{port} {where}"


def nodes(arguments: argparse.Namespace) -> int:
    rows = ask(list[NodeRow], _server(arguments), "GET", "/nodes")
    with_reasons = any(node.reason for node in rows)
    table = [
        [
            node.name,
            node.state,
            fold_slots(node.slots),
            _allocated(node),
            "" if node.frequency is None else f"{100 * node.frequency:.0f} %",
            node.job or "",
            *([node.reason] if with_reasons else []),
        ]
        for node in rows
    ]
    heads = ["NODE", "STATE", "SLOTS", "ALLOC/IDLE", "FREQ", "JOB"]
    heads += ["REASON"] * with_reasons
    return _show(arguments, rows, heads, table)


def _allocated(node: NodeRow) -> str:
    """Return the allocated and free slots of a node, by kind of processor: ``3/5``."""
    kinds = [f"{held}/{slots - held} {kind}" for kind, (slots, held) in node.kinds.items()]
    return ", ".join(kinds) or f"{node.allocated}/{len(node.slots) - node.allocated}"


def add_drain(command: argparse.ArgumentParser) -> None:
    node = command.add_argument("node", metavar="NODE", help="like n1 or n[1-3]")
    completed_by(node, NODE_NAMES)


add_resume = add_drain


def _drain(arguments: argparse.Namespace, path: str, head: str) -> int:
    names = ask(NodeNames, _server(arguments), "POST", path, NodePattern(arguments.node))
    return _show(arguments, names, [head], [[name] for name in names.nodes])


drain = partial(_drain, path="/drain", head="DRAINED")
resume = partial(_drain, path="/resume", head="RESUMED")


def shutdown(arguments: argparse.Namespace) -> int:
    ask(Nothing, _server(arguments), "POST", "/shutdown", Nothing())
    return 0


# --- policy and power cap ------------------------------------------------------------------------


def add_policy(command: argparse.ArgumentParser) -> None:
    name = command.add_argument(
        "name",
        nargs="?",
        metavar="NAME|FILE",
        help="of jobs: a policy or FILE.toml; of tasks: short-term, long-term, banking, constraint "
        "or FILE.py (default: show the present ones)",
    )
    completed_by(name, _policies)
    command.add_argument(
        "--governor",
        metavar="high|low|price[:LIMIT]|co2[:LIMIT]|cap",
        help="how much of the machine tasks may use: always high or low, or low while the price or "
        "the g of CO2 per kWh (of rms serve --prices) are above a limit, by default their mean, or "
        "while the power cap leaves less than tasks would take",
    )


def _policies() -> list[str]:
    from rms.core.policies import POLICIES

    return [*POLICIES, *TASK_STRATEGIES]


def policy(arguments: argparse.Namespace) -> int:
    """``rms policy [NAME|FILE]``: files are read here, FILE.py is run by a daemon's process."""
    name, governor = arguments.name or "", arguments.governor or ""
    body = PolicyName(name, "", governor)
    if name in TASK_STRATEGIES:
        body = PolicyName("", name, governor)
    elif name.endswith(".py"):
        body = PolicyName("", str(Path(name).absolute()), governor, _strategy_text(Path(name)))
    elif name.endswith(".toml"):
        from rms.core.policies import PolicyError, read_policy

        with refuse_on(PolicyError):
            body = PolicyName(read_policy(Path(name)).text, "", governor)
    request = ("POST", "/policy", body) if name or governor else ("GET", "/policy")
    present = ask(PolicyName, _server(arguments), *request)
    by = f" (by {present.governor_rule})" if present.governor_rule else ""
    heads = ["POLICY", "TASKS", "GOVERNOR"]
    row = [present.name, present.strategy, f"{present.governor}{by}"]
    shown = 3 if present.strategy else 1
    return _show(arguments, present, heads[:shown], [row[:shown]])


def _strategy_text(path: Path) -> str:
    if not path.is_file():
        raise CommandError(f"expected a strategy's file, got {path}, which does not exist")
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"expected a strategy's file, got {path}: {error}") from None


def add_power_cap(command: argparse.ArgumentParser) -> None:
    command.add_argument("watts", nargs="?", metavar="W|none", help="the cap (default: show it)")


def power_cap(arguments: argparse.Namespace) -> int:
    """``rms power-cap [W|none]``: show or set the power cap of the cluster."""
    server = _server(arguments)
    if arguments.watts is None:
        cap = ask(PowerCapRow, server, "GET", "/power-cap")
    else:
        body = PowerCap(parse_power_cap(arguments.watts))
        cap = ask(PowerCapRow, server, "POST", "/power-cap", body)
    watts = (cap.cap_w, cap.expected_w, cap.idle_w, cap.measured_w)
    row = ["none" if value is None else f"{value:.1f}" for value in watts]
    heads = ["CAP_W", "EXPECTED_W", "IDLE_W", "MEASURED_W"]
    return _show(arguments, cap, heads, [row])
