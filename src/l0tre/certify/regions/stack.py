"""Open nodes of a search: batches on a stack, the deepest last."""

from collections.abc import Sequence

import torch

from l0tre.certify.regions.nodes import Kind, join

__all__ = ["kept", "take", "without"]


def take(stack: list[Kind], most: int) -> Kind:
    """Take so many nodes off a stack that is not empty, or all there are."""
    taken: list[Kind] = []
    while stack and most:
        part = stack.pop()
        if len(part) > most:
            stack.append(part.pick(slice(0, len(part) - most)))
            part = part.pick(slice(len(part) - most, len(part)))
        taken.append(part)
        most -= len(part)
    return join(taken)


def kept(stack: Sequence[Kind], image: int) -> tuple[Kind, ...]:
    """The nodes of one image, on the CPU, with row number 0, as one batch; none if there are none."""
    own = [part.pick(part.image == image) for part in stack]
    own = [part.of_image(0) for part in own if len(part)]
    return (join(own).to(torch.device("cpu")),) if own else ()


def without(stack: Sequence[Kind], images: Sequence[int]) -> list[Kind]:
    """The nodes of all other images."""
    gone = torch.tensor(list(images), device=stack[0].image.device if stack else None)
    left = [part.pick(~torch.isin(part.image, gone)) for part in stack]
    return [part for part in left if len(part)]
