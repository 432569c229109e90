"""A session of Ray: started on this machine, where it listens on the loopback only, or that of an existing cluster."""

import importlib
import math
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from l0tre.errors import ConfigError, require

__all__ = ["Cluster", "cluster_of", "count_workers", "session", "sharing"]

LOOPBACK = "127.0.0.1"
PLAIN = re.compile(r"(?P<host>[^\s/:]+):(?P<port>\d{1,5})")  # an address without a protocol
# Read by Ray when it is imported: a session of Linux listens on all networks, and takes 127.0.0.1 for another name of
# the machine's address, unless it is told that there is but one machine.
ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
REACH = 10.0  # seconds until a cluster counts as out of reach
TOKEN = (
    "is it running, and reachable? If it asks for a token, as Ray does on machines that have one, set "
    "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to its token unless that is in ~/.ray/auth_token"
)


@dataclass(frozen=True)
class Cluster:
    """Where workers run, and what each of them gets.

    Attributes:
        address: ``local`` for Ray on this machine; ``ray://host:port`` for an existing cluster, from anywhere;
            ``host:port`` for one that this machine is part of.
        workers: How many; 0 for one for each share of a GPU, or for each CPU where there is none.
        gpus: GPUs of a worker, such as 0.5; ``None`` for 1 where the cluster has any, and where it has none for 0.
        cpus: CPUs of a worker, which are its threads.
    """

    address: str = "local"
    workers: int = 0
    gpus: float | None = None
    cpus: float = 1.0

    def __post_init__(self) -> None:
        known = self.address == "local" or self.address.startswith("ray://") or PLAIN.fullmatch(self.address)
        if not known:
            raise ConfigError(
                f"the cluster {self.address!r} is unknown: give local, ray://host:port, or host:port on a machine of "
                "the cluster"
            )
        if self.workers < 0:
            raise ConfigError(
                f"{self.workers} workers were asked for: give 1 or more, or 0 for as many as there is room"
            )
        if self.gpus is not None and not 0 <= self.gpus < math.inf:
            raise ConfigError(f"{self.gpus} GPUs for each worker were asked for: give a share such as 0.5, or 0")
        if not 0 < self.cpus < math.inf:
            raise ConfigError(f"{self.cpus} CPUs for each worker were asked for: give a number above 0")


def cluster_of(given: "str | Cluster") -> Cluster:
    """A cluster from its address, or as it is."""
    return given if isinstance(given, Cluster) else Cluster(given)


@contextmanager
def session(cluster: Cluster) -> Iterator[Any]:
    """Ray, connected; the session that is there already if there is one, which then stays.

    Yields:
        The module ``ray``.

    Raises:
        ConfigError: If the cluster cannot be reached, or a local one would listen beyond this machine.
    """
    alone = cluster.address == "local" or _is_loopback(cluster.address)
    if alone and "ray" not in sys.modules:
        os.environ[ONE_MACHINE] = "0"
    ray = require("ray", "cluster")
    if ray.is_initialized():
        yield ray
        return
    folder = tempfile.mkdtemp(prefix="l0tre-ray-") if cluster.address == "local" else None
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if alone:
            _refuse_open(ray)
        try:
            if folder is None:
                _reach(cluster.address)
                _join(ray, cluster.address, quiet)
            else:
                ray.init("local", include_dashboard=False, _node_ip_address=LOOPBACK, _temp_dir=folder, **quiet)
        except (ConnectionError, RuntimeError, TimeoutError, OSError, ValueError) as error:
            hint = "" if folder is not None else f" ({TOKEN})"
            raise ConfigError(f"Ray at {cluster.address} cannot be used: {_first_line(error)}{hint}") from error
        _show_messages(show=False)
        yield ray
    finally:
        ray.shutdown()
        _show_messages(show=True)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _join(ray: Any, address: str, quiet: Mapping[str, Any]) -> None:
    """Connect to a cluster that is there; a busy one gets a second chance to begin a client's process in time."""
    try:
        ray.init(address, **quiet)
    except ConnectionError as error:
        if "Initialization failure" not in str(error):
            raise
        ray.shutdown()
        ray.init(address, **quiet)


def count_workers(ray: Any, cluster: Cluster) -> tuple[int, float]:
    """How many workers there are to be, and how many GPUs each gets.

    Raises:
        ConfigError: If there is no room for any.
    """
    there = ray.cluster_resources()
    cpus, gpus = float(there.get("CPU", 0)), float(there.get("GPU", 0))
    each = cluster.gpus if cluster.gpus is not None else float(gpus > 0)
    room = math.floor(cpus / cluster.cpus + 1e-9)
    if each:
        room = min(room, math.floor(gpus / each + 1e-9) if each <= 1 else math.floor(gpus / math.ceil(each)))
    count = min(cluster.workers or room, room)
    if count < 1:
        raise ConfigError(
            f"the cluster has {cpus:g} CPUs and {gpus:g} GPUs, a worker takes {cluster.cpus:g} and {each:g}: there is "
            "room for none"
        )
    return count, each


def sharing(ray: Any, cluster: Cluster) -> int:
    """How many workers share the memory of a machine, or of a GPU, if they are spread evenly."""
    count, gpus = count_workers(ray, cluster)
    if gpus:
        return max(1, math.floor(1 / gpus))
    machines = sum(1 for node in ray.nodes() if node["Alive"])
    return math.ceil(count / max(1, machines))


def _refuse_open(ray: Any) -> None:
    """A session on this machine is for this machine: Ray runs code for everybody who reaches its ports."""
    address = ray.util.get_node_ip_address()
    if address != LOOPBACK:
        raise ConfigError(
            f"Ray would be at {address}, which others can reach, because it was imported before: set {ONE_MACHINE}=0 "
            "before that"
        )


def _show_messages(*, show: bool) -> None:
    """Ray prints what it knows of lost workers to our output, between lines or JSON of ours, unless a debugger runs.

    The losses are ours to tell, see ``ray_executor``; this is the switch that its debugger uses.
    """
    importlib.import_module("ray._private.worker")._worker_logs_enabled = show  # type: ignore[attr-defined]


def _reach(address: str) -> None:
    """Whether anybody listens there, which Ray would try for minutes."""
    plain = PLAIN.search(address)
    if plain is not None:
        socket.create_connection((plain["host"], int(plain["port"])), timeout=REACH).close()


def _is_loopback(address: str) -> bool:
    """Whether a plain address means this machine alone."""
    plain = PLAIN.fullmatch(address)
    return plain is not None and (plain["host"] == "localhost" or plain["host"].startswith("127."))


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
