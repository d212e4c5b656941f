"""Segments of packed rows, one a bag."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sgpmil.shapes import Int


@dataclass(frozen=True, slots=True)
class Segments:
    """Bag b holds rows ``offsets[b]`` to ``offsets[b + 1]``.

    Args:
        offsets: First row of each bag, and the end of the last, in main memory: cutting rows by
            them does not wait for a GPU.
        bounds: The same on the device of the rows, to compute with.

    Example:
        >>> Segments.of(torch.tensor([0, 3, 4])).index
        tensor([0, 0, 0, 1])
    """

    offsets: Int[Tensor, " _"]
    bounds: Int[Tensor, " _"]

    @staticmethod
    def of(offsets: Int[Tensor, " _"], device: torch.device | str = "cpu") -> "Segments":
        """Return the segments of rows that are on a device."""
        return Segments(offsets, offsets.to(device, non_blocking=True))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows of all segments T."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> list[int]:
        """Number of rows of each segment, to cut rows by."""
        found: list[int] = self.offsets.diff().tolist()
        return found

    @property
    def sizes(self) -> Int[Tensor, " B"]:
        """Number of rows of each segment."""
        return self.bounds.diff()

    @property
    def index(self) -> Int[Tensor, " T"]:
        """Number of the segment that each row belongs to."""
        rows = torch.arange(self.num_rows, device=self.bounds.device)
        # The number of segments that end at or before a row is the number of its own segment.
        return torch.bucketize(rows, self.bounds[1:], right=True)


@dataclass(frozen=True, slots=True)
class OneSegment(Segments):
    """A single segment, whose length `torch.export` may leave open.

    Args:
        length: Its number of rows.
    """

    length: Any

    @staticmethod
    def of_rows(rows: Tensor) -> "OneSegment":
        """Return the segment of all rows."""
        return OneSegment.of_length(rows.shape[0], rows.device)

    @staticmethod
    def of_length(length: Any, device: torch.device | str = "cpu") -> "OneSegment":
        """Return the segment of a number of rows that are on a device."""
        bounds = torch.arange(2, device=device) * length
        return OneSegment(bounds, bounds, length)

    def __len__(self) -> int:
        return 1

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.length

    @property
    def lengths(self) -> list[int]:
        """Number of rows, alone in a list."""
        return [self.length]

    @property
    def index(self) -> Int[Tensor, " T"]:
        """Zeros: every row belongs to the segment."""
        return torch.zeros(self.length, dtype=torch.long, device=self.bounds.device)
