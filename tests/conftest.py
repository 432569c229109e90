"""What holds for all tests: one thread a process, the same random examples every time."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from l0tre.zoo import weights_store as store

# Several test processes with two threads each get in each other's way.
torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def only_sdnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all networks of the zoo only sdnn comes with the package."""
    folder = tmp_path / "bundled"
    folder.mkdir()
    for suffix in ("json", "safetensors"):
        source = store.bundled_folder().joinpath(f"sdnn.{suffix}")
        (folder / f"sdnn.{suffix}").write_bytes(source.read_bytes())
    monkeypatch.setattr(store, "bundled_folder", lambda: folder)
