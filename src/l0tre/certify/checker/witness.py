"""Check that a changed input shows an upper bound: how many groups it changes, whether it may, what the model says."""

import numpy as np
from torch import Tensor

from l0tre.domain import Domain
from l0tre.errors import CertificateError, DataError
from l0tre.model.network import Network

__all__ = ["check_witness"]


def check_witness(network: Network, image: Tensor, changed: Tensor, domain: Domain, label: int, upper: int) -> None:
    """Establish that an input differs from an image in so many groups and has another decision.

    Args:
        network: The network; its own source decides, on the CPU.
        image: float32, of the domain's shape.
        changed: Likewise, the changed input.
        domain: What may change.
        label: The decision at the image.
        upper: How many groups are said to change.

    Raises:
        CertificateError: If anything is otherwise; the message says what.
    """
    before, after = (x.cpu().numpy().reshape(-1) for x in (image, changed))
    differs = before != after
    members, sizes = domain.members.cpu().numpy(), domain.sizes.cpu().numpy()
    used = np.arange(members.shape[1]) < sizes[:, None]
    moved = (differs[members] & used).any(1)
    inside = np.zeros_like(differs)
    inside[members[used]] = True
    if (differs & ~inside).any():
        raise CertificateError("the witness changes values that may not change")
    if int(moved.sum()) != upper:
        raise CertificateError(f"the witness changes {int(moved.sum())} groups, not {upper}")
    try:
        domain.check(changed.cpu().reshape(1, *domain.shape), (0,))
    except DataError as error:
        raise CertificateError(f"the witness leaves the domain: {error}") from error
    scores = network.replay(changed.reshape(domain.shape)).double().flatten()
    rival = max(float(score) for place, score in enumerate(scores.tolist()) if place != label)
    if not rival > float(scores[label]):
        raise CertificateError(f"the model decides class {label} for the witness too")
