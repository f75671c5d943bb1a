"""The command line: read options once, run one command, and turn failures into sentences."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from lake_consumer import logs
from lake_consumer.config import OPTIONS, LakeConfig, parse_spark_conf, read_config
from lake_consumer.cuts import LATEST, parse_when
from lake_consumer.errors import LakeError, OutputClosed
from lake_consumer.terminal import flush, write

EPILOG = """\
examples:
  lake-consumer drain --nats-url nats://127.0.0.1:4222 --warehouse ./lake
  lake-consumer run --interval 10
  lake-consumer status
  lake-consumer resync sales.orders
  lake-consumer query "SELECT count(*) FROM users"
  lake-consumer query --at latest-cut --csv "SELECT * FROM sales.orders JOIN users USING (user_id)"

The NATS user and password come from NATS_LAKE_USER and NATS_LAKE_PASSWORD, or from files named by
NATS_LAKE_USER_FILE and NATS_LAKE_PASSWORD_FILE. Every variable below may be given as *_FILE.

exit codes: 0 done, 1 failed with nothing lost, 2 bad option, 3 NATS or its stream not there,
4 nobody takes a snapshot that is needed, or `verify` found a difference, 6 NATS rejects the user.
The README says for each whether a supervisor should restart. `run` waits for servers that are away.
"""


Flags = Mapping[str, Any]
"""What the command line gave, by name."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a single command; what all commands share is in `config.OPTIONS`."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the command table."""

    name: str
    help: str
    act: Callable[[LakeConfig, Flags], None]
    arguments: tuple[Argument, ...] = ()
    prints: bool = False
    """Whether standard output is the answer itself, so that complaints go elsewhere."""


def _run(config: LakeConfig, _: Flags) -> None:
    from lake_consumer.app import run  # noqa: PLC0415 - Spark is slow to import; --help is not

    stop = Event()
    _stop_on_signals(stop)
    run(config, stop, lambda: _stop_on_signals(stop))


def _drain(config: LakeConfig, _: Flags) -> None:
    from lake_consumer.app import drain  # noqa: PLC0415 - as above

    stop = Event()
    _stop_on_signals(stop)
    drain(config, stop, lambda: _stop_on_signals(stop))


def _status(config: LakeConfig, flags: Flags) -> None:
    from lake_consumer import status  # noqa: PLC0415 - as above

    found = status.read_status(config)
    as_json = flags["json"]
    text = json.dumps(status.status_document(found)) if as_json else status.render_status(found)
    write(text + "\n")


def _resync(config: LakeConfig, flags: Flags) -> None:
    from lake_consumer.resync import ask_resync  # noqa: PLC0415 - as above

    write(ask_resync(config, flags["table"]) + "\n")


def _forget(config: LakeConfig, flags: Flags) -> None:
    from lake_consumer.forget import ask_forget  # noqa: PLC0415 - as above

    said = ask_forget(config, flags["table"], purge=flags["purge"], force=flags["force"])
    write(said + "\n")


def _query(config: LakeConfig, flags: Flags) -> None:
    from lake_consumer.query.command import print_query  # noqa: PLC0415 - as above

    sql = sys.stdin.read() if flags["sql"] == "-" else flags["sql"]
    when = None if flags["at"] is None else parse_when(flags["at"])
    print_query(config, sql, when, at_cut=flags["at"] is not None, format=flags["format"],
                wait_seconds=flags["wait"])  # fmt: skip


def _cuts(config: LakeConfig, flags: Flags) -> None:
    from lake_consumer.query.command import print_cuts  # noqa: PLC0415 - as above

    print_cuts(config, flags["limit"], as_json=flags["json"])


def _package(config: LakeConfig, flags: Flags) -> None:
    from lake_consumer.packaging import submit_command, write_package  # noqa: PLC0415 - as above

    folder, whole = Path(flags["folder"]), flags["with_dependencies"]
    for path in write_package(folder, dependencies=whole):
        write(f"{path} {path.stat().st_size:,} bytes\n")
    write(f"\n{submit_command(config, folder, dependencies=whole)}\n")


def _verify(config: LakeConfig, flags: Flags) -> None:
    from lake_consumer.verify.command import verify  # noqa: PLC0415 - as above

    verify(config, flags["tables"], heal=flags["heal"], shown=flags["limit"],
           patience=config.patience_seconds, as_json=flags["json"])  # fmt: skip


def _maintain(config: LakeConfig, flags: Flags) -> None:
    from lake_consumer.app import maintain  # noqa: PLC0415 - as above

    maintain(config, flags["tables"], budget=flags["budget"])


def _format(name: str, help: str) -> dict[str, Any]:
    return {
        "dest": "format", "action": "store_const", "const": name, "default": "table", "help": help,
    }  # fmt: skip


TABLES = Argument(
    "tables",
    {"nargs": "*", "metavar": "TABLE", "help": "such as users or sales.orders; all if none"},
)
AS_JSON = Argument("--json", {"action": "store_true", "help": "for programs: JSON"})

COMMANDS = (
    Command("run", "follow the stream until stopped", _run),
    Command("drain", "catch up with the stream's present end, then exit", _drain),
    Command("status", "show where every table stands", _status, (AS_JSON,), prints=True),
    Command(
        "resync",
        "build the mirror of a table anew from a snapshot; its history is kept",
        _resync,
        (Argument("table", {"metavar": "TABLE", "nargs": "+", "help": "users, or sales.orders"}),),
        prints=True,
    ),
    Command(
        "forget",
        "stop listing a table that is gone, or remove it with its data and history",
        _forget,
        (
            Argument("table", {"metavar": "TABLE", "nargs": "+", "help": "users, or sales.orders"}),
            Argument(
                "--purge",
                {"action": "store_true", "help": "drop its Iceberg tables: data and history"},
            ),
            Argument(
                "--force",
                {"action": "store_true", "help": "also if PostgreSQL still publishes the table"},
            ),
        ),
        prints=True,
    ),
    Command(
        "query",
        "run SQL over the lake's tables, as they are now or as they were at a cut",
        _query,
        (
            Argument(
                "sql", {"metavar": "SQL", "help": "one SELECT; - reads it from standard input"}
            ),
            Argument(
                "--at",
                {
                    "metavar": "WHEN",
                    "help": "read all tables at one state of the database: a WAL position "
                    f"(0/1A2B3C or an integer), a time (2025-12-08T13:45:00Z) or {LATEST}",
                },
            ),
            Argument(
                "--wait",
                {
                    "type": float,
                    "default": 0,
                    "metavar": "SECONDS",
                    "help": "how long to wait until the lake reaches --at; default 0",
                },
            ),
            Argument("--json", _format("json", "one JSON object per row, one per line")),
            Argument("--csv", _format("csv", "CSV with a heading")),
        ),
        prints=True,
    ),
    Command(
        "cuts",
        "list the states of the database that the lake can show, newest first",
        _cuts,
        (
            Argument("--limit", {"type": int, "default": 20, "help": "how many; default 20"}),
            AS_JSON,
        ),
        prints=True,
    ),
    Command(
        "package",
        "write what spark-submit needs to run this on a cluster, and show the command",
        _package,
        (
            Argument("folder", {"metavar": "FOLDER", "help": "where to write it"}),
            Argument(
                "--with-dependencies",
                {
                    "action": "store_true",
                    "help": "also what executors import, for workers that have only Python itself",
                },
            ),
        ),
        prints=True,
    ),
    Command(
        "verify",
        "compare the lake with PostgreSQL at a cut, and name the rows that differ",
        _verify,
        (
            TABLES,
            Argument(
                "--heal",
                {"action": "store_true", "help": "write the rows that differ anew from PostgreSQL"},
            ),
            Argument(
                "--limit",
                {"type": int, "default": 20, "help": "rows shown per table; default 20"},
            ),
            AS_JSON,
        ),
        prints=True,
    ),
    Command(
        "maintain",
        "compact small files, expire old snapshots and remove orphans, within a time budget",
        _maintain,
        (
            TABLES,
            Argument(
                "--budget",
                {
                    "type": float,
                    "default": 600,
                    "metavar": "SECONDS",
                    "help": "how long it may take; what is left over is done next time; "
                    "default 600",
                },
            ),
        ),
    ),
)


def _stop_on_signals(stop: Event) -> None:
    """End after the batch under way. Set again once Spark is up: it takes SIGINT for itself."""

    def ask(number: int, _: object) -> None:
        if not stop.is_set():
            name = signal.Signals(number).name
            logs.info("stopping after the batch under way", signal=name)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lake-consumer",
        description="Keep an Apache Iceberg lake equal to PostgreSQL, from the CDC stream.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for command in COMMANDS:
        child = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help.capitalize() + ".",
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for argument in command.arguments:
            child.add_argument(argument.name, **argument.settings)
        _add_options(child)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    for option in OPTIONS:
        if option.flag is not None:
            default = f", default {option.default}" if option.default else ""
            text = f"{option.help} ({option.env}{default})".replace("%", "%%")
            more: dict[str, Any] = {"metavar": "VALUE"}
            if option.switch:
                more = {"action": "store_const", "const": "true"}
            parser.add_argument(option.flag, dest=option.name, help=text, **more)
    parser.add_argument(
        "--spark-conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any Spark setting; may be repeated",
    )
    parser.add_argument("--verbose", action="store_true", help="show tracebacks of failures")


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    try:
        return _main(_parse(argv), environ)
    except OutputClosed as closed:
        return closed.exit_code


def _parse(argv: Sequence[str] | None) -> Flags:
    try:
        return vars(build_parser().parse_args(argv))
    except SystemExit:
        # After --help: its reader may be gone.
        flush()
        raise


def _main(flags: Flags, environ: Mapping[str, str]) -> int:
    command = next(command for command in COMMANDS if command.name == flags["command"])
    complain = _complain_aside if command.prints else _complain
    try:
        command.act(read_config(flags, environ, parse_spark_conf(flags["spark_conf"])), flags)
        flush()
    except OutputClosed:
        raise
    except LakeError as error:
        complain(str(error), error.advice, verbose=flags["verbose"])
        return error.exit_code
    except KeyboardInterrupt:
        complain("interrupted", "Nothing is lost; start again to go on.", verbose=False)
        return 130
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error}"
        complain(text, LakeError.advice, verbose=flags["verbose"])
        return 1
    return 0


def _complain(text: str, advice: str, *, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    logs.error(text, remedy=advice)


def _complain_aside(text: str, advice: str, *, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    sys.stderr.write(f"lake-consumer: {text}\n{advice}\n")


if __name__ == "__main__":
    sys.exit(main())
