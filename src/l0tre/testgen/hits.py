"""Which tests activate which neurons: a table of bits, eight neurons in a byte, since a table of bytes is too large.

A suite may have tens of thousands of tests for hundreds of thousands of neurons.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Hits", "pack"]

CHUNK = 2**26  # entries that are unpacked at a time


@dataclass(frozen=True)
class Hits:
    """A table, a row for each test.

    Attributes:
        bits: uint8 ``[tests, bytes]``.
        neurons: Number of columns.
    """

    bits: Tensor
    neurons: int

    def __len__(self) -> int:
        return len(self.bits)

    def rows(self, which: Tensor) -> Tensor:
        """Some rows, bool ``[rows, neurons]`` from int64 ``[rows]``."""
        shifts = torch.arange(8, dtype=torch.uint8, device=self.bits.device)
        return ((self.bits[which][:, :, None] >> shifts) & 1).flatten(1)[:, : self.neurons].bool()

    def row(self, which: int) -> Tensor:
        """One row, bool ``[neurons]``."""
        return self.rows(torch.tensor([which], device=self.bits.device))[0]

    def pick(self, which: Tensor) -> "Hits":
        """The table of some rows alone."""
        return Hits(self.bits[which], self.neurons)

    def parts(self, which: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Some rows, as many at a time as there is room for: the place of the first one, and the rows."""
        size = max(1, CHUNK // max(1, 8 * self.bits.shape[1]))
        for start in range(0, len(which), size):
            yield start, self.rows(which[start : start + size])

    def first(self, which: Tensor) -> Tensor:
        """Of some rows in their order the place of the first that activates each neuron; as many as rows for none.

        Returns:
            int64 ``[neurons]``.
        """
        found = torch.full((self.neurons,), len(which), dtype=torch.int64, device=self.bits.device)
        for start, part in self.parts(which):
            place = torch.where(part.any(0), part.to(torch.uint8).argmax(0) + start, len(which))
            found = torch.minimum(found, place)
        return found

    def times(self, which: Tensor) -> Tensor:
        """How many of some rows activate each neuron, int64 ``[neurons]``."""
        found = torch.zeros(self.neurons, dtype=torch.int64, device=self.bits.device)
        for _, part in self.parts(which):
            found += part.sum(0)
        return found

    def counts(self, which: Tensor, columns: Tensor) -> Tensor:
        """How many of some neurons each of some rows activates, int64 ``[rows]``; the neurons as bool ``[neurons]``."""
        sums = [(part & columns).sum(1) for _, part in self.parts(which)]
        return torch.cat(sums) if sums else torch.zeros(0, dtype=torch.int64, device=self.bits.device)


def pack(rows: Tensor) -> Hits:
    """A table from bool ``[tests, neurons]``."""
    padded = torch.nn.functional.pad(rows.to(torch.uint8), (0, -rows.shape[1] % 8))
    padded = padded.view(len(rows), (rows.shape[1] + 7) // 8, 8)
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=rows.device)
    return Hits((padded * weights).sum(2, dtype=torch.uint8), rows.shape[1])
