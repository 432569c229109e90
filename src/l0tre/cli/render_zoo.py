"""What is known about the zoo's networks, as text."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from l0tre import zoo
from l0tre.cli.terminal import say
from l0tre.zoo import weights_store as store
from l0tre.zoo.networks import beside_paper

__all__ = ["facts", "show_networks", "show_trained"]


def facts(name: str) -> dict[str, Any]:
    """What the list says about a network; ``accuracy`` is a share from 0 to 1, or None."""
    entry = zoo.entry(name)
    status = store.status(name)
    return {
        "name": name,
        "input_shape": entry.input_shape,
        "parameters": zoo.parameters(name),
        "data": entry.data,
        "paper_accuracy": entry.paper_accuracy,
        "accuracy": status.accuracy,
        "state": status.state,
        "folder": None if status.folder is None else str(status.folder),
        "description": entry.description,
    }


def show_trained(name: str, record: dict[str, Any], folder: Path) -> None:
    """Print how well a network was trained, and where it is."""
    tested, learnt = f"{record['test_images']:,} test images", f"{record['training_images']:,} training images"
    say(
        f"{name}: {record['accuracy_test']:.2%} of {tested} correct{beside_paper(zoo.entry(name))}, "
        f"{record['accuracy_train']:.2%} of {learnt}; {record['seconds']:.0f} s"
    )
    say(f"stored as {record['weights']} in {folder}")
    used = store.find(name)
    if used == folder:
        say(f"next: l0tre evaluate {name} {record['data']}")
    elif used == store.bundled_folder():
        say(f"the name {name} still means the bundled weights; l0tre.zoo.load(name, folder) gives these")
    else:
        say(f"to use it by its name: L0TRE_ZOO={folder}")


def show_networks(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the networks as a table; each row is what :func:`facts` gives."""
    words = {"missing": "not trained"}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for title in ("name", "input", "parameters", "paper", "ours", "state"):
        table.add_column(title, justify="left" if title in ("name", "state") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"],
            "x".join(str(size) for size in row["input_shape"]),
            f"{row['parameters']:,}",
            "-" if row["paper_accuracy"] is None else f"{row['paper_accuracy']:.2%}",
            "-" if row["accuracy"] is None else f"{row['accuracy']:.2%}",
            words.get(row["state"], row["state"]),
        )
    console.print(table)
    for line in (
        "\npaper, ours: share of the test images that are classified correctly",
        f"trained networks are kept in {store.user_folder()} (the variable L0TRE_ZOO names another folder)",
        "to train one: l0tre zoo train NAME",
    ):
        console.print(line, markup=False, soft_wrap=True)
