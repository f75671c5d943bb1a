"""What processes cost: CPU seconds and the most memory they ever held."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of one process since it started, in user and in kernel mode."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def peak_memory_mb(pid: int) -> float:
    """The most memory a process ever held; where the kernel does not say, what it holds now."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1_024
    return psutil.Process(pid).memory_info().rss / (1 << 20)


def settle() -> None:
    """Have everything written that waits to be; else it is written beside what is measured."""
    os.sync()


class CpuMeter:
    """CPU seconds of named processes since the meter was made."""

    def __init__(self, **pids: int) -> None:
        self._pids = pids
        self._started = time.perf_counter()
        self._before = {name: cpu_seconds(pid) for name, pid in pids.items()}

    def microseconds_each(self, count: int) -> dict[str, float]:
        """Give `<name>_cpu_us`, what each of `count` things cost each process."""
        return {f"{name}_cpu_us": used / count * 1e6 for name, used in self._used().items()}

    def shares(self) -> dict[str, float]:
        """Give `<name>_cpu_percent`, how much of one core each process took."""
        seconds = time.perf_counter() - self._started
        return {f"{name}_cpu_percent": used / seconds * 100 for name, used in self._used().items()}

    def _used(self) -> dict[str, float]:
        # Never nothing: what took less than the kernel's clock shows took about one tick of it.
        return {
            name: max(_TICK_SECONDS, cpu_seconds(pid) - self._before[name])
            for name, pid in self._pids.items()
        }
