"""The page of one question about one input."""

from torch import Tensor

from l0tre.api.verify import Verdict
from l0tre.layout import noun
from l0tre.names import NO_NAMES, Names
from l0tre.report import blocks
from l0tre.report.blocks import Block, Document, Gallery
from l0tre.report.inputs import Details, extra_of, make_gallery
from l0tre.report.words import counted

__all__ = ["verdict_page"]

COLUMNS = blocks.columns(
    ("picture", "", "picture"),
    ("index", "image", "image"),
    ("label", "label", "class"),
    ("lower", "lower", "number"),
    ("upper", "upper", "number"),
    ("witness.label", "becomes", "class"),
    ("guarantee", "guarantee", "text"),
)

NOT_KEPT = "not kept; l0tre verify --certificate FILE keeps the proof of a safe answer, for l0tre check"


def verdict_page(
    verdict: Verdict,
    image: Tensor | None = None,
    *,
    label: int | None = None,
    index: int = 0,
    low: float = 0.0,
    high: float = 1.0,
    names: Names = NO_NAMES,
    scores: tuple[Tensor, Tensor | None] | None = None,
    model: str = "",
    data: str = "",
    groups: int | None = None,
    certificate: str = "",
) -> Document:
    """The page of a verdict.

    Args:
        verdict: The answer.
        image: The input, ``[1, *shape]`` or ``shape``; without it there is no picture.
        label: Its label, if it is known.
        index: Its position in the user's data.
        low: The value drawn black.
        high: The value drawn white.
        names: Of classes, inputs and columns.
        scores: Of the input, and of the changed one: float32 ``[classes]`` each.
        model: The network's name.
        data: The data's.
        groups: Number of groups that may change, if it is known.
        certificate: The file that the proof was written to; empty for none.
    """
    asked = counted(verdict.radius, verdict.unit)
    answers = {
        "safe": f"Safe: no change of at most {asked} alters the decision (guarantee: {verdict.guarantee}).",
        "unsafe": f"Unsafe: changing {counted(verdict.upper, verdict.unit)} alters the decision, as an input shows.",
        "unknown": f"Unknown whether a change of at most {asked} alters the decision: {verdict.reason}.",
    }
    if not verdict.upper:
        answers["unsafe"] = "Unsafe: the input violates the property as it is."
    upper, without = _upper(verdict, groups)
    share = ("proved", f"{verdict.share:.1%}", f"of the sets of {counted(verdict.lower + 1, verdict.unit)}")
    shown: list[Block] = [
        blocks.answer(answers[verdict.answer], [f"{verdict.seconds:,.2f} s, {verdict.queries:,} queries."]),
        blocks.tiles(
            [
                ("answer", verdict.answer, f"for at most {asked}"),
                ("lower bound", str(verdict.lower), f"guarantee: {verdict.guarantee}"),
                ("upper bound", upper, without or "shown below"),
                # A safe answer says nothing about larger changes.
                *([] if verdict.answer != "unknown" else [share]),
            ]
        ),
        blocks.paragraphs("guarantee", "What is guaranteed", [(verdict.guarantee, f"Holds for {verdict.arithmetic}.")]),
    ]
    gallery: Gallery | None = None
    if image is not None:
        batch = image if image.ndim > 1 and len(image) == 1 else image[None]
        witness = verdict.witness
        entry = {
            "index": index,
            "label": label,
            "lower": verdict.lower,
            "upper": None if upper == "none" else verdict.upper,
            "guarantee": verdict.guarantee,
            "witness": None
            if witness is None
            else {
                "positions": witness.positions.tolist(),
                "values": witness.values.tolist(),
                "label": witness.label,
                "margin": witness.margin,
            },
        }
        stored = names.to_config([index])
        extra = extra_of(index, witness, batch[0], Details(scores={} if scores is None else {index: scores}))
        if witness is None:
            extra["without"] = f"{without[0].upper()}{without[1:]}."
        if verdict.guarantee == "certified":
            extra["certificate"] = {"certificate": certificate or NOT_KEPT}
        block, gallery = make_gallery(
            {"images": [entry], "config": {"names": stored}},
            [extra],
            [column for column in COLUMNS if column[0] != "label" or label is not None],
            originals=batch,
            domain=(low, high),
            unit=verdict.unit,
            names=stored,
            title="The input",
            file="verdict",
        )
        shown.append(block)
    word = "input" if image is None else noun(tuple(batch.shape[1:]), named=bool(names.features))
    where = f" of {data}" if data else ""
    return Document(f"{model or 'A network'}, {word} {index}{where}: {verdict.answer}", tuple(shown), gallery)


def _upper(verdict: Verdict, groups: int | None) -> tuple[str, str]:
    """The upper bound, and why no input is shown for it; empty if one is."""
    if verdict.witness is not None:
        return str(verdict.upper), ""
    if groups is None:  # then the upper bound may be the one that always holds
        return str(verdict.upper), "no changed input was kept"
    if verdict.upper > groups:
        return "none", "no change that alters the decision was found"
    what = f"an input with {verdict.upper:,} changed {verdict.unit}{'' if verdict.upper == 1 else 's'}"
    return str(verdict.upper), f"{what} was found, and not kept: the question is about {verdict.radius:,}"
