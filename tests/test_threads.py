import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from l0tre import threads
from l0tre.threads import choose_threads, cpu_quota, usable_cpus, using_threads, with_threads


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_quota_of_a_container(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == quota
    if quota is not None:
        assert usable_cpus(tmp_path) == 1


@pytest.mark.parametrize("line", ["0::/batch/job", "4:cpu,cpuacct:/batch/job"])
def test_quota_of_a_group_that_is_no_container(tmp_path: Path, line: str) -> None:
    own = tmp_path / "own"
    own.write_text(f"7:memory:/elsewhere\n{line}\n")
    top = tmp_path if line.startswith("0::") else tmp_path / "cpu"
    (top / "batch" / "job").mkdir(parents=True)
    for folder, quota in ((top / "batch", 50000), (top / "batch" / "job", 150000)):
        if line.startswith("0::"):
            (folder / "cpu.max").write_text(f"{quota} 100000\n")
        else:
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
            (folder / "cpu.cfs_period_us").write_text("100000")
    assert cpu_quota(tmp_path, own) == 0.5


def test_threads_are_those_of_before_afterwards() -> None:
    before = torch.get_num_threads()
    with using_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before

    def items() -> Iterator[int]:
        for _ in range(2):
            yield torch.get_num_threads()

    seen = [(inside, torch.get_num_threads()) for inside in with_threads(items(), before + 2)]
    assert seen == [(before + 2, before)] * 2


def test_an_iterator_that_is_left_is_closed() -> None:
    closed = []

    def items() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    iterator = with_threads(items(), 1)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert closed == [True]


@pytest.mark.parametrize(("slower", "spins", "chosen"), [(4, True, 1), (1, True, 2), (4, False, 2)])
def test_several_threads_only_if_they_are_faster(
    monkeypatch: pytest.MonkeyPatch, slower: int, spins: bool, chosen: int
) -> None:
    monkeypatch.setattr(threads, "usable_cpus", lambda: 2)
    monkeypatch.setattr(threads, "PROBE_SECONDS", 0.02)

    def work() -> None:  # with one thread 5 ms; with two a fifth of it, times what spinning costs
        time.sleep(0.005 if torch.get_num_threads() == 1 else 0.001 * slower**2)

    assert choose_threads(work, 2, spins) == chosen
