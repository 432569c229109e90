"""Clusters that are there already, by their addresses, as a user of the command line reaches them."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import l0tre
from l0tre.errors import ConfigError
from l0tre.scheduling.session import Cluster, session

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

CLIENT = pytest.mark.skipif(find_spec("grpc") is None, reason="ray[client] is not installed")
WAIT = 90.0  # seconds until a head must be there, or gone


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class _Head:
    """A head on the loopback that asks for a token."""

    plain: str
    client: str
    process: subprocess.Popen[bytes]
    environment: dict[str, str]

    def run(self, *words: str | Path, source: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``l0tre WORDS``, of another source if one is given."""
        environment = self.environment if source is None else {**self.environment, "PYTHONPATH": str(source)}
        command = [sys.executable, "-m", "l0tre", *map(str, words)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Head]:
    folder = tmp_path_factory.mktemp("head")
    plain, client = _free_port(), _free_port()
    environment = {
        **os.environ,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "7" * 64,
    }
    words = ["--node-ip-address=127.0.0.1", f"--port={plain}", f"--ray-client-server-port={client}"]
    words += ["--include-dashboard=false", "--num-cpus=2", f"--temp-dir={folder}"]
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + WAIT
    for port in (plain, client):
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < until, "there is no head"
                time.sleep(0.2)
    del environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]
    yield _Head(f"127.0.0.1:{plain}", f"ray://127.0.0.1:{client}", process, environment)
    process.terminate()
    process.wait(WAIT)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("case")
    torch.manual_seed(5)
    module = nn.Sequential(nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).eval()
    torch.export.save(torch.export.export(module, (torch.rand(1, 1, 4, 4),)), folder / "model.pt2")
    np.savez(folder / "images.npz", images=torch.rand(6, 1, 4, 4).numpy())
    return folder / "model.pt2", folder / "images.npz"


def _figures(text: str) -> Any:
    """What is known of every image."""
    return [{name: image[name] for name in sorted(image) if name != "seconds"} for image in json.loads(text)["images"]]


@pytest.mark.parametrize("by", [pytest.param("client", marks=CLIENT), "plain"])
def test_a_cluster_gives_what_one_process_gives(by: str, head: _Head, case: tuple[Path, Path]) -> None:
    words: list[str | Path] = ["evaluate", *case, "--max-t", "2", "--seed", "3", "--memory", "64M", "--json", "--quiet"]
    alone, there = head.run(*words), head.run(*words, "--cluster", getattr(head, by))
    assert there.returncode == alone.returncode == 0, there.stderr
    assert _figures(there.stdout) == _figures(alone.stdout)


def test_workers_of_another_version_are_refused(head: _Head, case: tuple[Path, Path], tmp_path: Path) -> None:
    package = Path(l0tre.__file__).parent
    shutil.copytree(package, tmp_path / "l0tre", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "l0tre" / "domain.py").open("a") as file:
        file.write("# not what the workers have\n")
    ended = head.run("evaluate", *case, "--cluster", head.plain, source=tmp_path)
    assert ended.returncode == 2
    assert re.search(r"the worker .* has l0tre .* instead of .*: install the same", ended.stderr)


@pytest.mark.parametrize("protocol", ["", "ray://"])
def test_where_nobody_listens_is_said_at_once(protocol: str) -> None:
    cluster = Cluster(f"{protocol}127.0.0.1:{_free_port()}")
    with pytest.raises(ConfigError, match=r"refused.*is it running"), session(cluster):
        pass
