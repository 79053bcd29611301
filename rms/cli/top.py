"""``rms top``: a live view on a terminal, else a table of the present."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from rms.client.connection import ask, server_address
from rms.client.monitor import JOB_HEADS, present_jobs, snapshot, summary
from rms.wire.live import LIVE_PATH, Live, LiveQuery
from rms.wire.terminal import columns, printable, publish


def top(arguments: argparse.Namespace) -> int:
    """``rms top``: a live view on a terminal, else a table of the present."""
    server = server_address(arguments.server, os.environ)
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if arguments.json is None and interactive:
        from rms.cli.screen import Top

        ask(
            Live, server, "POST", LIVE_PATH, LiveQuery()
        )  # fails without a daemon before the screen opens
        Top(server).run()
        return 0
    now = snapshot(server)
    lines = [printable(summary(now)), *columns(JOB_HEADS, present_jobs(now))]
    publish(arguments.json, msgspec.to_builtins(now), lines)
    return 0
