"""The command `bridge`: reads the configuration once, runs, and ends with a sentence and a code."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bridge import VERSION, app, logs
from bridge.config import OPTIONS, BridgeConfig, Option, read_config
from bridge.errors import BridgeError

_DESCRIPTION = """\
Follow a PostgreSQL publication and store every change in NATS JetStream, in commit order, once.

The slot is only moved past what JetStream has stored, so the bridge can be stopped, killed and
started again at any time. SIGTERM, SIGINT and POST /shutdown end it cleanly.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bridge",
        description=_DESCRIPTION,
        epilog=_environment_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"walbridge {VERSION}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="options as a TOML file")
    for option in OPTIONS:
        if option.flag:
            _add(parser, option, option.flag)
    return parser


def _add(parser: argparse.ArgumentParser, option: Option, flag: str) -> None:
    known = f" [{option.env}]" if option.env else ""
    default = "" if option.default is None or option.is_switch else f" (default {option.default})"
    text = f"{option.help}{default}{known}".replace("%", "%%")
    if option.is_switch:
        parser.add_argument(flag, dest=option.name, action="store_const", const="true", help=text)
    else:
        parser.add_argument(flag, dest=option.name, metavar=option.name.upper(), help=text)


def _environment_help() -> str:
    rows = [
        f"  {option.env:<26} {option.help}"
        + (f" (default {option.default})" if option.default else "")
        for option in OPTIONS
        if option.env and not option.flag
    ]
    return "\n".join(
        [
            "environment:",
            *rows,
            "",
            "Each variable also as VARIABLE_FILE, naming a file that holds the value.",
            "Flags win over the environment, the environment over --config.",
        ]
    )


def configure(arguments: Sequence[str], environ: Mapping[str, str]) -> BridgeConfig:
    given = vars(build_parser().parse_args(arguments))
    return read_config(given, environ, given["config"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bridge; every failure ends in one sentence, its remedy and an exit code."""
    try:
        config = configure(sys.argv[1:] if arguments is None else arguments, os.environ)
        logs.set_up(config.log_level)
        asyncio.run(app.run(config))
    except BridgeError as error:
        print(f"bridge: {error}\n  {error.advice}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception:
        logging.getLogger("bridge").exception("unforeseen failure; nothing unconfirmed is lost")
        print(f"bridge: unforeseen failure\n  {BridgeError.advice}", file=sys.stderr)
        return BridgeError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
