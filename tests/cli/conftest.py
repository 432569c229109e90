import shutil
from pathlib import Path

import pytest

from tests.cli.running import FEW, Files, l0tre, make_files


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def begun(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun") / "run"
    words = ("--out", folder, "--time-budget", "0", "--guarantee", "grid", "--quiet", *FEW)
    result = l0tre("evaluate", files.model, files.data, *words)
    assert result.code == 0, result
    return folder


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    """A run that was stopped after its first step, to be changed."""
    return Path(shutil.copytree(begun, tmp_path / "run"))
