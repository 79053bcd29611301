"""The command ``dmr``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rms.commandline import Parser, add_common, emit_json, parser
from rms.protocol import ProtocolError, read_completion


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    arguments = _parser().parse_args(argv)
    status: int = arguments.call(arguments)
    return status


def _parser() -> Parser:
    top = parser("dmr", "Malleable MPI programs.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    completion = commands.add_parser(
        "completion",
        allow_abbrev=False,
        help="say how a job ended (mpirun's own exit status cannot, after a resize)",
    )
    completion.add_argument("file", type=Path, metavar="FILE", help="its completion record")
    completion.set_defaults(call=_completion)
    add_common(completion)
    return top


def _completion(arguments: argparse.Namespace) -> int:
    """Print a completion record; exit as the job should have: 0 only if it is COMPLETED."""
    try:
        record = read_completion(arguments.file)
    except FileNotFoundError:
        print(
            f"dmr: error: expected a completion record, got no {arguments.file}: "
            "the job has not ended, or died without a word",
            file=sys.stderr,
        )
        return 1
    except (ProtocolError, OSError) as error:
        print(f"dmr: error: {error}", file=sys.stderr)
        return 2
    if arguments.json is not None:
        emit_json(arguments.json, msgspec.to_builtins(record))
    if arguments.json != "-":
        print(
            f"{record.state} at step {record.step} in world {record.generation} of "
            f"{record.ranks} ranks{': ' if record.message else ''}{record.message}"
        )
    return record.exit_code


if __name__ == "__main__":
    sys.exit(main())
