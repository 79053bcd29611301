"""``rms policy`` and ``rms power-cap``: policy and power cap of a running daemon."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import msgspec

from rms.client.connection import ask, server_address
from rms.formats.jobscript import ScriptError, parse_power_cap
from rms.kernels.scheduler import STRATEGIES
from rms.wire.terminal import CommandError, columns, completed_by, publish, refuse_on
from rms.wire.users import PolicyName, PowerCap, PowerCapRow


def add_policy(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``rms policy``."""
    name = command.add_argument(
        "name",
        nargs="?",
        metavar="NAME|FILE",
        help="of jobs: a policy or FILE.toml; of tasks: short-term, long-term, banking, constraint "
        "or FILE.py (default: show what decides)",
    )
    completed_by(name, lambda: [*policies(), *STRATEGIES])
    command.add_argument(
        "--governor",
        metavar="high|low|price[:LIMIT]|co2[:LIMIT]|cap",
        help="how much of the machine tasks may use: always high or low, or low while the price or "
        "the g of CO2 per kWh (of rms serve --prices) are above a limit, by default their mean, or "
        "while the power cap leaves less than tasks would take",
    )


def policies() -> list[str]:
    """Return the names of the built-in policies."""
    from rms.core.policies import POLICIES

    return list(POLICIES)


def policy(arguments: argparse.Namespace) -> int:
    """``rms policy [NAME|FILE]``: files are read here, FILE.py is run by a daemon's process."""
    server = server_address(arguments.server, os.environ)
    name = arguments.name or ""
    governor = arguments.governor or ""
    if not name and not governor:
        names = ask(PolicyName, server, "GET", "/policy")
    elif name in STRATEGIES or name.endswith(".py"):
        strategy, text = name, ""
        if name.endswith(".py"):
            strategy, text = str(Path(name).absolute()), _text(Path(name))
        body = PolicyName("", strategy, governor, text)
        names = ask(PolicyName, server, "POST", "/policy", body)
    else:
        if name.endswith(".toml"):
            from rms.core.policies import PolicyError, read_policy

            with refuse_on(PolicyError):
                name = read_policy(Path(name)).text
        names = ask(PolicyName, server, "POST", "/policy", PolicyName(name, "", governor))
    by = f" (by {names.governor_rule})" if names.governor_rule else ""
    heads = ["POLICY", "TASKS", "GOVERNOR"]
    row = [names.name, names.strategy, f"{names.governor}{by}"]
    shown = 3 if names.strategy else 1
    publish(arguments.json, msgspec.to_builtins(names), columns(heads[:shown], [row[:shown]]))
    return 0


def _text(path: Path) -> str:
    """Return the text of a strategy's file.

    Raises:
        CommandError: there is none.
    """
    if not path.is_file():
        raise CommandError(f"expected a strategy's file, got {path}, which does not exist")
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"expected a strategy's file, got {path}: {error}") from None


def add_power_cap(command: argparse.ArgumentParser) -> None:
    """Add the argument of ``rms power-cap``."""
    command.add_argument(
        "watts", nargs="?", metavar="W|none", help="the cap in watts (default: show it)"
    )


def power_cap(arguments: argparse.Namespace) -> int:
    """``rms power-cap [W|none]``: shows or sets the power cap of the cluster."""
    server = server_address(arguments.server, os.environ)
    if arguments.watts is None:
        cap = ask(PowerCapRow, server, "GET", "/power-cap")
    else:
        with refuse_on(ScriptError):
            body = PowerCap(parse_power_cap(arguments.watts))
        cap = ask(PowerCapRow, server, "POST", "/power-cap", body)
    watts = (cap.cap_w, cap.expected_w, cap.idle_w, cap.measured_w)
    row = ["none" if value is None else f"{value:.1f}" for value in watts]
    heads = ["CAP_W", "EXPECTED_W", "IDLE_W", "MEASURED_W"]
    publish(arguments.json, msgspec.to_builtins(cap), columns(heads, [row]))
    return 0
