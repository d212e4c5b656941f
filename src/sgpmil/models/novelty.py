r"""Novelty: how unlike the instances of the training set an instance is.

A model keeps a sample of its training instances $y_m$: their principal components
$c_m = V^\top y_m$ and their lengths. Features are centred at the training mean and *not* clamped.
The distance of an instance $y$, with components $c = V^\top y$, to one of the sample, and the
distance to the training set that follows, are

$$ \delta_m^2 = \lVert y \rVert^2 + \lVert y_m \rVert^2 - 2\, c^\top c_m, \qquad
   d = \frac1k \sum_{m \in N_k} \delta_m \Big/ \Bigl( \frac1k \sum_{m \in N_k} r_m \Bigr)^{3/4}. $$

$N_k$ are the $k$ nearest of the sample. Outside the components, two instances count as orthogonal:
there is what a new tissue or another scanner adds. $r_m$ is the mean distance of $y_m$ to its own
$k$ nearest: the same distance tells more where training instances lie closely together.

The *novelty* of an instance is $d$ divided by the level that one training instance in a hundred
exceeds. Training instances are compared with those of other patients alone, as a new slide is.

A slide is compared with the training slides. Let $t_i$ be the share of training instances that are
at least as novel as instance $i$, and $s$ the mean of $-\ln t_i$ over the slide's $n$ instances.
With the variance $\tau^2$ of $s$ between training slides and $\omega^2$ of $-\ln t_i$ within them,

$$ z = (s - \bar s) \Big/ \sqrt{\tau^2 + \omega^2 / n}, \qquad
   p = \frac{1 + \#\{\text{training slides with } z_j \ge z\}}{1 + \#\{\text{training slides}\}}. $$

A slide like the training slides has $p \le \alpha$ with probability $\alpha$ or less.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.shapes import Bool, Float, Int

NUM_COMPONENTS = 64
NUM_NEIGHBOURS = 5
NUM_KEPT = 1000
"""Most training instances that are kept; the time of a prediction grows with them."""
LEVEL = 0.01
"""Share of the training instances with a novelty above 1."""
_SPACING_POWER = 0.75
_WIDEST = 3.0
"""Largest standard deviation of a feature, in those of the median feature: one that has another
unit does not outweigh all others."""
_NUM_FITTED = 8000
"""Most training instances that the principal components are computed from."""
_NUM_TAILS = 256
_ROWS = {"cpu": 2**10, "cuda": 2**16}
"""Rows whose distances are computed at once; on a CPU, as many as its cache holds."""
_TINY = 1e-12
_BUFFERS = (
    *("mean", "scale", "components", "kept", "lengths", "spacing"),
    *("level", "tails", "spread", "slides"),
)


@dataclass(frozen=True, slots=True)
class SlideNovelty:
    """Novelty of a slide.

    Args:
        share: Share of its instances with a novelty above 1: about .01 on a training slide.
        p_value: Probability that a slide like the training slides is as unlike them.
    """

    share: float
    p_value: float


class Novelty(nn.Module):
    """Distance of instances to those of the training set; see the head of this module.

    Before `fit` there is nothing to compare with. All that it keeps are buffers, which are part of
    a checkpoint.
    """

    mean: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]
    components: Float[Tensor, "D P"]
    kept: Float[Tensor, "M P"]
    lengths: Float[Tensor, " M"]
    """Squared length of each kept instance."""
    spacing: Float[Tensor, " M"]
    level: Float[Tensor, ""]
    tails: Float[Tensor, " _"]
    """Distances that ever smaller shares of the training instances exceed."""
    spread: Float[Tensor, "3"]
    """Mean, variance between slides and variance within slides of the surprise."""
    slides: Float[Tensor, " S"]
    """The statistic z of each training slide."""
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in _BUFFERS:
            self.register_buffer(name, None)
        # Follows the model to its device and number format before the others exist.
        self.register_buffer("place", torch.empty(0), persistent=False)

    @property
    def is_fitted(self) -> bool:
        """Return whether there are training instances to compare with."""
        return self._buffers["kept"] is not None

    @property
    def num_slides(self) -> int:
        """Number of training slides that slides are compared with."""
        return len(self.slides) if self.is_fitted else 0

    @torch.no_grad()
    def fit(self, sample: BagBatch, *, cases: Sequence[str] | None = None, seed: int = 0) -> None:
        """Keep some of the training instances, and measure all of the sample by them.

        Args:
            sample: Every training bag, of large ones a part of the instances.
            cases: Patient of each bag; by default each has one of its own.
            seed: Seed of the choice.
        """
        names = list(sample.slide_ids if cases is None else cases)
        number = {name: i for i, name in enumerate(dict.fromkeys(names))}
        patients = torch.tensor([number[name] for name in names])
        patients = patients.repeat_interleave(sample.offsets.diff())
        if len(number) == 1:  # no other patient: an instance is compared with all other instances
            patients = torch.arange(len(patients))
        order = torch.randperm(len(patients), generator=torch.Generator().manual_seed(seed))
        features, device = sample.features, sample.features.device
        patients, order = patients.to(device), order.to(device)
        self._fit_components(features[order[:_NUM_FITTED]])
        chosen, owners = order[:NUM_KEPT], patients[order[:NUM_KEPT]]
        self.kept, self.lengths = self._reduced(features[chosen])
        self.spacing = torch.ones_like(self.lengths)  # so that the distance is a plain mean
        found = self._distance(features[chosen], owners[:, None] == owners).nan_to_num()
        self.spacing = found.clamp(min=1e-3 * float(found.mean()) or 1.0)
        rows = _rows(features)
        parts = zip(features.split(rows), patients.split(rows), strict=True)
        distances = [self._distance(part, own[:, None] == owners) for part, own in parts]
        self._fit_levels(torch.cat(distances).double().cpu(), sample.offsets)

    @torch.no_grad()
    def forward(self, features: Float[Tensor, "T D"]) -> Float[Tensor, " T"]:
        """Compute the novelty of instances from their features as the encoder gave them."""
        parts = features.split(_rows(features))
        return torch.cat([self._distance(part) for part in parts]) / self.level

    def of_rows(
        self, matrix: Float[Tensor, "N D"], starts: Int[Tensor, " B"], segments: Segments
    ) -> Float[Tensor, " T"]:
        """Compute the novelty of the instances of some bags in the matrix of all bags.

        Args:
            matrix: Features of all bags.
            starts: First row of each bag that is taken.
            segments: Division of the rows taken into bags.
        """
        index = segments.index
        within = torch.arange(len(index), device=index.device) - segments.bounds[index]
        rows = (starts[index] + within).split(_rows(matrix))
        return torch.cat([self(matrix[part]) for part in rows])

    def of_slides(
        self, novelty: Float[Tensor, " T"], offsets: Int[Tensor, " _"]
    ) -> list[SlideNovelty]:
        """Compare slides with the training slides.

        Args:
            novelty: Novelty of the instances of all slides.
            offsets: First instance of each slide, and the end of the last.
        """
        level, slides = self.level.double().cpu(), self.slides.double().cpu()
        novelty = novelty.double().cpu()
        z = _statistic(self._surprise(novelty * level), offsets, self.spread.double().cpu())
        # Rounding of a checkpoint must not decide whether two slides are equal.
        as_unlike = (slides[None] >= z[:, None] - 1e-6 * z[:, None].abs()).sum(1)
        p_values = (1 + as_unlike) / (1 + len(slides))
        shares, _ = _moments((novelty > 1).double(), offsets)
        pairs = zip(shares.tolist(), p_values.tolist(), strict=True)
        return [SlideNovelty(share, p_value) for share, p_value in pairs]

    def _reduced(
        self, features: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, "T P"], Float[Tensor, " T"]]:
        """Return the principal components of instances, and their squared lengths."""
        centred = (features.to(self.mean.dtype) - self.mean).div_(self.scale)
        return centred @ self.components, torch.linalg.vecdot(centred, centred)

    def _distance(
        self, features: Float[Tensor, "T D"], excluded: Bool[Tensor, "T M"] | None = None
    ) -> Float[Tensor, " T"]:
        """Compute the distance to the training set; NaN where all of its instances are excluded."""
        with torch.autocast(features.device.type, enabled=False):
            reduced, lengths = self._reduced(features)
            squared = torch.addmm(self.lengths, reduced, self.kept.T, alpha=-2)
        if excluded is not None:
            squared = squared.masked_fill(excluded, torch.inf)
        count = min(NUM_NEIGHBOURS, len(self.kept))
        nearest, index = squared.topk(count, dim=1, largest=False, sorted=False)
        found = nearest.add_(lengths[:, None]).clamp_(min=0).sqrt_()
        valid = found.isfinite()
        mean = found.where(valid, 0).sum(1) / valid.sum(1)
        spacing = self.spacing[index].where(valid, 0).sum(1) / valid.sum(1)
        return mean / spacing**_SPACING_POWER

    def _fit_components(self, features: Float[Tensor, "T D"]) -> None:
        values = features.double()
        std = values.std(dim=0, correction=0)
        varies = std > 1e-6 * values.abs().amax(0)
        usual = std[varies].median() if varies.any() else torch.ones_like(std[0])
        centred = values - values.mean(0)
        # One unit for all, which is that of the usual feature.
        scale = usual * (std / (_WIDEST * usual)).clamp(min=1)
        centred /= scale
        _, vectors = torch.linalg.eigh(centred.T @ centred)
        self.mean, self.scale = values.mean(0).to(self.place), scale.to(self.place)
        self.components = vectors.flip(1)[:, :NUM_COMPONENTS].to(self.place).contiguous()

    def _fit_levels(self, distance: Float[Tensor, " T"], offsets: Int[Tensor, " _"]) -> None:
        """Take the levels of instances and the statistic of slides from the training set."""
        known = distance[distance.isfinite()].sort().values
        known = distance.new_zeros(1) if len(known) == 0 else known
        count = len(known)
        exceed = torch.logspace(0, -1, _NUM_TAILS, base=count + 1, dtype=torch.float64)
        place = ((1 - exceed) * count).long().clamp(max=count - 1)
        self.tails = known[place].to(self.place)
        level = known[min(count - 1, int((1 - LEVEL) * count))]
        self.level = level.clamp(min=_TINY).to(self.place)
        surprise = self._surprise(distance.to(self.tails.dtype).double())
        surprise[~distance.isfinite()] = surprise[distance.isfinite()].mean().nan_to_num()
        means, variances = _moments(surprise, offsets)
        sizes = offsets.diff().double()
        within = (variances * sizes).sum() / (sizes.sum() - len(sizes)).clamp(min=1)
        between = means.var(correction=1) if len(means) > 1 else means.new_zeros(())
        between = (between - (within / sizes).mean()).clamp(min=0)
        self.spread = torch.stack([means.mean(), between, within]).to(self.place)
        self.slides = _statistic(surprise, offsets, self.spread.double().cpu()).to(self.place)

    def _surprise(self, distance: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Compute -ln of the share of training instances as distant, in steps of a fixed size."""
        tails = self.tails.double().cpu()
        return torch.searchsorted(tails, distance, right=True).double()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        *lists: list[str],
    ) -> None:
        """Take over tensors of any size; a checkpoint of an earlier version has none."""
        given = {name: state_dict.get(prefix + name) for name in _BUFFERS}
        if all(value is None for value in given.values()):
            return
        for name, value in given.items():
            if value is None:
                missing_keys.append(prefix + name)
            else:
                setattr(self, name, self.place.new_empty(value.shape))
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, *lists
        )


def _rows(features: Tensor) -> int:
    return _ROWS.get(features.device.type, _ROWS["cpu"])


def _statistic(
    surprise: Float[Tensor, " T"], offsets: Int[Tensor, " _"], spread: Float[Tensor, "3"]
) -> Float[Tensor, " B"]:
    mean, between, within = spread
    means, _ = _moments(surprise, offsets)
    return (means - mean) / (between + within / offsets.diff()).clamp(min=_TINY).sqrt()


def _moments(
    values: Float[Tensor, " T"], offsets: Int[Tensor, " _"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Compute mean and variance of the values of each slide."""
    parts = values.tensor_split(offsets[1:-1].cpu())
    return (
        torch.stack([part.mean() for part in parts]),
        torch.stack([part.var(correction=0) for part in parts]),
    )
