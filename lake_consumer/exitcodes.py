"""What the exit codes of `lake-consumer` mean to a supervisor.

Restarting never does harm: the tables are the only checkpoint. The table says whether it helps.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExitCode:
    """One row of the table in the README."""

    code: int
    meaning: str
    restart: str


EXIT_CODES = (
    ExitCode(0, "done, or stopped by SIGTERM or SIGINT as requested", "no"),
    ExitCode(1, "failed; nothing is lost, and the last log line says what to do",
             "yes, with a delay: it goes on from where the tables are"),
    ExitCode(2, "an option or environment variable cannot be used", "no, correct it first"),
    ExitCode(3, "a server did not answer in time, or the stream does not exist yet; `run` retries"
             " instead of ending",
             "yes: run `drain`, `verify` and other commands again later"),
    ExitCode(4, "`drain`: no bridge takes a snapshot that is needed; `verify`: lake and database"
             " differ", "`drain` yes, once a bridge runs; `verify` no"),
    ExitCode(5, "the stream holds a change out of order; nothing of that batch was applied",
             "no, find out what wrote it first"),
    ExitCode(6, "NATS rejects the user, the certificate or a request",
             "no, correct credentials, permissions or TLS first"),
    ExitCode(130, "interrupted before it could finish the batch; nothing is lost", "no"),
    ExitCode(141, "the reader of standard output is gone (`| head`)", "no"),
)  # fmt: skip
