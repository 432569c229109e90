"""How many inputs a network classifies correctly, and when that is too few to trust what was given."""

from l0tre.evaluation.results import Snapshot

__all__ = ["FEW", "classified", "counts", "doubt"]

FEW = 0.7  # below this share of correct decisions, data and network probably do not fit


def classified(correct: int, total: int, *, labelled: bool = True) -> str:
    """The count in one line."""
    if not labelled:
        return f"classified correctly: not known, there are no labels (the network's own decisions count for {total})"
    return f"classified correctly: {correct} of {total} ({correct / max(1, total):.1%})"


def doubt(correct: int, total: int) -> str:
    """Why so few correct decisions make figures doubtful; empty if there are enough."""
    if correct >= FEW * total:
        return ""
    return (
        f"the network classifies only {correct} of {total} inputs correctly: the figures are about these alone; check "
        "that labels, order of the classes, scaling (`scale`) and normalisation (`mean`, `std`) belong to this network"
    )


def counts(snapshot: Snapshot) -> tuple[int, int, bool]:
    """Correct decisions, inputs, and whether there were labels to compare with."""
    correct = len(snapshot.images)
    return correct, correct + len(snapshot.excluded), bool(snapshot.config.get("data", {}).get("labelled", True))
