"""Which tests activate which neurons: a table of bits, eight neurons in a byte, since a table of bytes is too large.

A suite may have tens of thousands of tests for hundreds of thousands of neurons.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Hits", "pack"]

CHUNK = 2**26  # entries that are unpacked at a time
WORD = 64  # bits that are counted at once: rows are padded to full words


@dataclass(frozen=True)
class Hits:
    """A table, a row for each test.

    Attributes:
        bits: uint8 ``[tests, bytes]``, whole words of 64 bits, the last of them padded with zeros.
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

    def any(self, which: Tensor) -> Tensor:
        """Which neurons some of some rows activate, bool ``[neurons]``."""
        bits = self.bits[which]
        if not len(bits):
            return torch.zeros(self.neurons, dtype=torch.bool, device=bits.device)
        while len(bits) > 1:
            half = len(bits) // 2
            bits = torch.cat([bits[:half] | bits[half : 2 * half], bits[2 * half :]])
        return Hits(bits, self.neurons).row(0)

    def times(self, which: Tensor) -> Tensor:
        """How many of some rows activate each neuron, int64 ``[neurons]``."""
        found = torch.zeros(self.neurons, dtype=torch.int64, device=self.bits.device)
        for _, part in self.parts(which):
            found += part.view(torch.uint8).sum(0, dtype=torch.int32)  # of bool it is twice as slow
        return found

    def counts(self, which: Tensor, columns: Tensor) -> Tensor:
        """How many of some neurons each of some rows activates, int64 ``[rows]``; the neurons as bool ``[neurons]``."""
        mask, size = pack(columns[None]).bits, max(1, CHUNK // max(1, 8 * self.bits.shape[1]))
        sums = [_ones(self.bits[some] & mask) for some in which.split(size)] if len(which) else []
        return torch.cat(sums) if sums else torch.zeros(0, dtype=torch.int64, device=self.bits.device)


def _ones(bits: Tensor) -> Tensor:
    """How many bits of each row are set, int64 ``[rows]``: sums of pairs, of fours, of bytes, within every word."""
    words = bits.view(torch.int64)
    words = words - ((words >> 1) & 0x5555555555555555)
    words = (words & 0x3333333333333333) + ((words >> 2) & 0x3333333333333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F0F0F0F0F
    return words.view(torch.uint8).sum(1, dtype=torch.int64)


def pack(rows: Tensor) -> Hits:
    """A table from bool ``[tests, neurons]``."""
    padded = torch.nn.functional.pad(rows.to(torch.uint8), (0, -rows.shape[1] % WORD))
    padded = padded.view(len(rows), -(-rows.shape[1] // WORD) * WORD // 8, 8)
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=rows.device)
    return Hits((padded * weights).sum(2, dtype=torch.uint8), rows.shape[1])
