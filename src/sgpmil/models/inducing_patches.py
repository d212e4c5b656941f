r"""Inducing patches: inducing points that are instances of the training set.

The inducing points of a process are the inputs of $M$ training instances, $z_m = g(x_m)$, carried
through the network at every step. They cannot be left behind when the network moves, and each can
be shown as a patch. The patches are chosen before training, and anew when a share of the epochs in
`settings.renewals` is over: medoids of the process's present inputs, out of a pool of which one
half is drawn at random and the other has the highest attention logits of each bag.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.shapes import Float, Int

POOL_SIZE = 6144
"""Instances out of which patches are chosen."""

_NAME_BYTES = 256
"""Longest slide name that is kept, in bytes of UTF-8."""

_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class PatchOrigin:
    """The place of an instance in the training set.

    Args:
        slide_id: Its slide; empty where the model is not trained.
        row: Its row in the bag of the slide.
        coords: Top-left corner in level-0 pixels (x, y), where the bag has coordinates.
    """

    slide_id: str
    row: int
    coords: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Pool:
    """Instances out of which patches are chosen.

    Args:
        features: Their features, as the bags have them.
        origins: Their places.
    """

    features: Float[Tensor, "T D"]
    origins: tuple[PatchOrigin, ...]


class InducingPatches(nn.Module):
    """The features and places of M training instances.

    Before training they are random.

    Args:
        num_patches: Number of patches M.
        dim: Number of features.
    """

    features: Tensor
    names: Tensor
    rows: Tensor
    coords: Tensor

    def __init__(self, num_patches: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(num_patches, dim))
        # Tensors alone: they are saved, copied and sent to other processes with the weights.
        self.register_buffer("names", torch.zeros(num_patches, _NAME_BYTES, dtype=torch.uint8))
        self.register_buffer("rows", torch.full((num_patches,), _UNKNOWN))
        self.register_buffer("coords", torch.full((num_patches, 2), _UNKNOWN))

    def __len__(self) -> int:
        return len(self.features)

    @torch.no_grad()
    def take(self, pool: Pool, chosen: Int[Tensor, " M"]) -> None:
        """Take patches out of a pool."""
        self.features.copy_(pool.features[chosen.to(pool.features.device)])
        for number, index in enumerate(chosen.tolist()):
            origin = pool.origins[index]
            name = origin.slide_id.encode()[:_NAME_BYTES]
            self.names[number] = 0
            self.names[number, : len(name)] = torch.tensor(list(name), dtype=torch.uint8)
            self.rows[number] = origin.row
            self.coords[number] = torch.tensor(origin.coords or (_UNKNOWN, _UNKNOWN))

    def forget_slides(self) -> None:
        """Forget the names of the slides, which may be those of patients."""
        self.names.zero_()

    @property
    def origins(self) -> tuple[PatchOrigin, ...]:
        """The place of each patch in the training set."""
        names, rows, coords = self.names.cpu().numpy(), self.rows.tolist(), self.coords.tolist()
        return tuple(
            PatchOrigin(
                slide_id=bytes(name).rstrip(b"\0").decode(errors="ignore"),
                row=row,
                coords=None if x == y == _UNKNOWN else (x, y),
            )
            for name, row, (x, y) in zip(names, rows, coords, strict=True)
        )


def draw_pool(
    batches: Iterable[BagBatch],
    *,
    num_bags: int,
    seed: int,
    score: Callable[[Float[Tensor, "T D"]], Float[Tensor, " T"]] | None,
) -> Pool:
    """Draw the pool: some instances of every bag.

    Args:
        batches: The training bags.
        num_bags: Their number.
        seed: Seed of the draw.
        score: Attention logits of instances. Where given, half of a bag's share are those with
            the highest, up to a tenth of the bag.
    """
    generator = np.random.default_rng(seed)
    share = max(2, POOL_SIZE // num_bags)
    features: list[Tensor] = []
    origins: list[PatchOrigin] = []
    for batch in batches:
        logits = None if score is None else score(batch.features).float().cpu()
        bounds = batch.offsets.tolist()
        for slide_id, start, end in zip(batch.slide_ids, bounds[:-1], bounds[1:], strict=True):
            drawn = generator.permutation(end - start)[: share if logits is None else share // 2]
            rows = set(drawn.tolist())
            if logits is not None:
                most = min(share // 2, -(-(end - start) // 10))
                rows.update(logits[start:end].topk(most).indices.tolist())
            wanted = [start + row for row in sorted(rows)]
            features.append(batch.features[wanted])
            coords = None if batch.coords is None else batch.coords[wanted].tolist()
            origins += [
                PatchOrigin(slide_id, at - start, None if coords is None else tuple(coords[i]))
                for i, at in enumerate(wanted)
            ]
    return Pool(torch.cat(features), tuple(origins))
