"""Sizes that a file claims, held against the memory that is free before anything is allocated."""

import os
import re
import sys
from pathlib import Path

__all__ = ["free_host_bytes", "peak_host_bytes", "refuse_large"]

SHARE = 0.5  # of the free memory that a single thing of a file may take


def free_host_bytes() -> int:
    """Memory that is free on this machine now, or in the container that this process runs in."""
    free = [2**32]  # where nothing can be read: assume 4 GiB
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        match = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        free = [int(match[1]) * 1024] if match else free
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():  # a container's own limit
        free.append(max(int(limit.read_text()) - int(used.read_text()), 0))
    return min(free)


def peak_host_bytes() -> int | None:
    """The most memory that this process held at any time so far; ``None`` where the system does not say."""
    status = Path("/proc/self/status")
    match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    if match is not None:
        return int(match[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def refuse_large(size: int, what: str) -> None:
    """Refuse what would take more than half of the free memory.

    Args:
        size: In bytes.
        what: What claims it, as the subject of a sentence.

    Raises:
        ValueError: If it is too large; the message says by how much.
    """
    # A mebibyte is always there, and tests for it would cost more than it does.
    most = SHARE * free_host_bytes() if size > 2**20 else size
    if size > most:
        raise ValueError(f"{what} takes {size / 2**30:,.1f} GiB, half of the free memory is {most / 2**30:,.1f} GiB")
