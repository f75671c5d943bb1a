"""Child processes that never outlive us, whatever becomes of us."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

# Becomes another user, asks the kernel to be told of the parent's death, and turns into the server.
# It is a program of its own because Python must not run code between fork and exec in a threaded
# parent. The order matters: a change of user forgets the request.
_LAUNCHER = """
import ctypes, os, sys
parent, farewell, uid, gid = map(int, sys.argv[1:5])
if uid >= 0:
    os.setgroups([]), os.setgid(gid), os.setuid(uid)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, farewell)
if os.getppid() == parent:
    os.execv(sys.argv[5], sys.argv[5:])
"""


def spawn(
    command: Sequence[str],
    log: Path,
    *,
    cwd: Path,
    farewell: signal.Signals = signal.SIGTERM,
    user: pwd.struct_passwd | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command that logs into a file, and gets the signal `farewell` when we are gone."""
    ids = (user.pw_uid, user.pw_gid) if user else (-1, -1)
    launch = [str(number) for number in (os.getpid(), int(farewell), *ids)]
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, *launch, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=env,
            # Ctrl-C in the terminal is for the parent, which then stops its children in order.
            start_new_session=True,
        )


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """`kill -9` of a process and all its children; returns when they are gone."""
    family: list[psutil.Process] = []
    # Stopped before any is killed: one that went on could have a child behind our back.
    while found := [member for member in _family(process.pid) if member not in family]:
        for member in found:
            with suppress(psutil.NoSuchProcess):
                member.suspend()
        family += found
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    while any(alive(member) for member in family):
        time.sleep(0.01)


def alive(process: psutil.Process) -> bool:
    """Say whether a process still does anything."""
    # What lost its parent stays a zombie where nobody reaps orphans, as in many containers.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
