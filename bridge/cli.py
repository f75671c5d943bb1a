"""The command `bridge`: reads the configuration once, acts, and ends with a sentence and a code."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge import VERSION, app, commands, doctor, logs, loops
from bridge.config import BridgeConfig, http_config, nats_config, postgres_config, read_config
from bridge.errors import BridgeError
from bridge.http.client import fetch_status, render
from bridge.native import native
from bridge.options import OPTIONS, Option, read_values
from bridge.snapshot import command as snapshots

Flags = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Switch:
    """A flag that belongs to one command and has no variable."""

    flag: str
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the command table: what it is called, what it reads, what it does."""

    name: str
    help: str
    description: str
    reads: Callable[[Option], bool]
    act: Callable[[Flags, Mapping[str, str]], int]
    switches: tuple[Switch, ...] = ()
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _: None


def _run(flags: Flags, environ: Mapping[str, str]) -> int:
    config = read_config(flags, environ, flags["config"])
    logs.set_up(config.log_level)
    native.say()
    loops.calm_garbage_collector()
    loops.keep_freed_memory()
    with asyncio.Runner(loop_factory=loops.loop_factory()) as runner:
        runner.run(app.run(config))
    return 0


def _check(flags: Flags, environ: Mapping[str, str]) -> int:
    config = read_config(flags, environ, flags["config"])
    findings = doctor.examine(asyncio.run(commands.gather_facts(config)))
    if flags["format"] == "json":
        print(json.dumps(doctor.to_map(findings), indent=2))
    else:
        print(doctor.render(findings))
    return 0 if doctor.passes(findings) else 1


def _status(flags: Flags, environ: Mapping[str, str]) -> int:
    values = read_values(flags, environ, flags["config"])
    status = asyncio.run(fetch_status(http_config(values)))
    print(json.dumps(status, indent=2) if flags["format"] == "json" else render(status))
    return 0


def _drop_slot(flags: Flags, environ: Mapping[str, str]) -> int:
    values = read_values(flags, environ, flags["config"], needed=("slot",))
    done = commands.give_up_slot(
        postgres_config(values), values["slot"], sure=bool(flags["yes"]), force=bool(flags["force"])
    )
    print(asyncio.run(done))
    return 0


def _snapshot(flags: Flags, environ: Mapping[str, str]) -> int:
    values = read_values(flags, environ, flags["config"])
    return asyncio.run(snapshots.run(nats_config(values), argparse.Namespace(**flags)))


_FORMAT = Switch("--format", "text for people (default), json for machines", ("text", "json"))

COMMANDS = (
    Command(
        "run",
        "follow the publication until stopped; what bridge does without a command",
        """\
Follow a PostgreSQL publication and store every change in NATS JetStream, in commit order, once.

The slot is only moved past what JetStream has stored, so the bridge can be stopped, killed and
started again at any time. SIGTERM, SIGINT and POST /shutdown end it cleanly.""",
        lambda _: True,
        _run,
    ),
    Command(
        "check",
        "the doctor: look at both servers and say what is wrong and what mends it",
        """\
Look at PostgreSQL and NATS the way `bridge` with the same options would, and judge settings,
grants, publication, the key of each table, slot, streams and clocks. One line per check: ok, warn
(it works, and a promise is weaker than it could be) or fail, with what to do. Nothing is changed
anywhere. Where one server is down, the other is still checked.

Exit code 0 without a failure, 1 with one, 2 for a bad option.""",
        lambda _: True,
        _check,
        (_FORMAT,),
    ),
    Command(
        "status",
        "ask a running bridge how it is",
        """\
Ask a running bridge over HTTP (GET /status) and print what it says: state, positions, lag, counts.

Exit code 0 with an answer, 12 where no bridge answers.""",
        lambda option: option.name in ("http_host", "http_port"),
        _status,
        (_FORMAT,),
    ),
    Command(
        "snapshot",
        "ask a running bridge for a snapshot of a table and show how it goes",
        """\
Ask the bridge that publishes a table for a snapshot of it, over NATS, and show its progress. The
rows go to the stream INIT, where any consumer may load them; changes go on meanwhile.

Exit code 0 when the snapshot is complete, 1 when it was refused or failed.""",
        lambda option: option.name.startswith("nats_"),
        _snapshot,
        add_arguments=snapshots.add_arguments,
    ),
    Command(
        "drop-slot",
        "drop the replication slot, so that PostgreSQL keeps no more WAL for it",
        """\
Drop the replication slot, for good: what was written after its confirmed position is published by
no bridge, and consumers need a new snapshot. Without --yes it only says what would be lost. A slot
that is being read is left alone, unless --force ends that session; stop the bridge first, because
it makes the slot anew.""",
        lambda option: option.name == "slot" or option.name.startswith("pg_"),
        _drop_slot,
        (
            Switch("--yes", "drop it; without this nothing is changed"),
            Switch("--force", "end the session that reads the slot first"),
        ),
    ),
)
_BY_NAME = {command.name: command for command in COMMANDS}


def build_parser(name: str = "run") -> argparse.ArgumentParser:
    command = _BY_NAME[name]
    parser = argparse.ArgumentParser(
        prog="bridge" if name == "run" else f"bridge {name}",
        description=command.description,
        epilog=_epilog(command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if name == "run":
        parser.usage = "bridge [run] [options]\n       bridge COMMAND --help"
        parser.add_argument("--version", action="version", version=f"walbridge {VERSION}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="options as a TOML file")
    for option in OPTIONS:
        if option.flag and command.reads(option):
            _add(parser, option, option.flag)
    command.add_arguments(parser)
    for switch in command.switches:
        if switch.choices:
            parser.add_argument(switch.flag, help=switch.help, choices=switch.choices)
        else:
            parser.add_argument(switch.flag, help=switch.help, action="store_true")
    return parser


def _add(parser: argparse.ArgumentParser, option: Option, flag: str) -> None:
    known = f" [{option.env}]" if option.env else ""
    default = "" if option.default is None or option.is_switch else f" (default {option.default})"
    text = f"{option.help}{default}{known}".replace("%", "%%")
    if option.is_switch:
        parser.add_argument(flag, dest=option.name, action="store_const", const="true", help=text)
    elif option.bare:
        parser.add_argument(flag, dest=option.name, metavar=option.name.upper(), help=text,
                            nargs="?", const=option.bare)  # fmt: skip
    else:
        parser.add_argument(flag, dest=option.name, metavar=option.name.upper(), help=text)


def _epilog(command: Command) -> str:
    listed = [f"  {row.name:<26} {row.help}" for row in COMMANDS if row is not command]
    rows = [
        f"  {option.env:<26} {option.help}"
        + (f" (default {option.default})" if option.default else "")
        for option in OPTIONS
        if option.env and not option.flag and command.reads(option)
    ]
    return "\n".join(
        [
            *(["commands:", *listed, ""] if command.name == "run" else []),
            *(["environment:", *rows, ""] if rows else []),
            "Each variable also as VARIABLE_FILE, naming a file that holds the value.",
            "Flags win over the environment, the environment over --config.",
        ]
    )


def configure(arguments: Sequence[str], environ: Mapping[str, str]) -> BridgeConfig:
    given = vars(build_parser().parse_args(arguments))
    return read_config(given, environ, given["config"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Act; every failure ends in one sentence, its remedy and an exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given.pop(0) if given and given[0] in _BY_NAME else "run"
    try:
        flags = vars(build_parser(name).parse_args(given))
        return _BY_NAME[name].act(flags, os.environ)
    except BridgeError as error:
        print(f"bridge: {error}\n  {error.advice}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception:
        logging.getLogger("bridge").exception("unforeseen failure; nothing unconfirmed is lost")
        print(f"bridge: unforeseen failure\n  {BridgeError.advice}", file=sys.stderr)
        return BridgeError.exit_code


if __name__ == "__main__":
    sys.exit(main())
