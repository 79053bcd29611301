"""``rms web``: the live page of a running daemon, for browsers of this machine."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys

import uvicorn

from rms.client.connection import ask, server_address
from rms.daemon.ask.http import BACKLOG, REQUEST_S, bounded
from rms.daemon.store.private import raise_open_files
from rms.web.app import Bridge
from rms.wire.live import LIVE_PATH, Live, LiveQuery
from rms.wire.terminal import CommandError, at_least, publish

HOST = "127.0.0.1"


def add_web(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms web``."""
    command.add_argument(
        "--port",
        type=at_least(0, 65535),
        default=0,
        metavar="P",
        help="of 127.0.0.1 (default: any that is free)",
    )


def web(arguments: argparse.Namespace) -> int:
    """``rms web``: serve the page until interrupted."""
    server = server_address(arguments.server, os.environ)
    ask(Live, server, "POST", LIVE_PATH, LiveQuery())
    try:
        listening = socket.create_server((HOST, arguments.port))
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # which names the address again
        raise CommandError(f"cannot listen on {HOST}:{arguments.port}: {why}") from None
    with listening:
        port, token = listening.getsockname()[1], secrets.token_urlsafe(18)
        address = f"http://{HOST}:{port}/#token={token}"
        lines = [address]
        if over_ssh := os.environ.get("SSH_CONNECTION", ""):
            lines.append(_tunnel(over_ssh, port))
        publish(arguments.json, {"address": address, "port": port}, lines)
        sys.stdout.flush()  # a program may wait for the address
        config = uvicorn.Config(
            Bridge(server, token).app(),
            http=bounded(raise_open_files() * 3 // 4),
            ws="none",
            timeout_keep_alive=int(REQUEST_S),
            backlog=BACKLOG,
            log_level="critical",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        uvicorn.Server(config).run(sockets=[listening])
    return 0


def _tunnel(connection: str, port: int) -> str:
    """Return the ssh command that forwards the page to the user's machine."""
    words = connection.split()
    host = words[2] if len(words) == 4 else socket.gethostname()
    login = os.environ.get("USER", "")
    where = f"{login}@{host}" if login else host
    return f"from the machine you are logged in from: ssh -L {port}:{HOST}:{port} {where}"
