r"""Novelty: how unlike the instances of the training set an instance is.

The features $x$ of an instance, as the encoder gives them, are brought to one unit and divided by
the root of their length; $\bar v$ is the mean over training instances:

$$ v = x / \sqrt{\lVert x \rVert}, \qquad y = v - \bar v. $$

So the direction of $x$ counts more than its length, which varies with contrast alone. A model keeps
a sample of its training instances $y_m$: their principal components $c_m = V^\top y_m$ and their
lengths. The distance of an instance $y$ with components $c = V^\top y$ to one of them is

$$ \delta_m^2 = \lVert y \rVert^2 + \lVert y_m \rVert^2 - 2\, c^\top c_m . $$

Outside the components, two instances count as orthogonal: there is what a new tissue or another
scanner adds. $r_m$ is the mean distance of $y_m$ to its own $k$ nearest: the same distance tells
more where training instances lie closely together. The sample is divided at random into $G$ groups
of one size, and the distance to the training set is the mean of the nearest of each group:

$$ d = \frac1G \sum_{g=1}^G \min_{m \in g} \frac{\delta_m}{r_m^{3/4}} . $$

The $G$ nearest of all would tell as much. They take longer to find than all the rest takes.

The *novelty* of an instance is $d$ divided by the level that one training instance in a hundred
exceeds. Training instances are measured as those of a new slide are: patients are divided into ten
folds, and those of a fold are compared with the others alone, by components of the others alone.

A slide is compared with the training slides. Let $t_i$ be the share of training instances that are
at least as novel as instance $i$, $e_i = (-\ln t_i)^{3/2}$ its surprise, and $s$ the mean of $e_i$
over the slide's $n$ instances. It grows when all are a little novel, and when a few are very novel.
With the variance $\tau^2$ of $s$ between training slides and $\omega^2$ of $e_i$ within them,

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
from sgpmil.shapes import Float, Int

NUM_COMPONENTS = 64
NUM_NEIGHBOURS = 5
NUM_GROUPS = 4
NUM_KEPT = 2000
"""Most training instances that are kept; the time of a prediction grows with them."""
LEVEL = 0.01
"""Share of the training instances with a novelty above 1."""
_SPACING_POWER = 0.75
_SURPRISE_POWER = 1.5
_WIDEST = 5.0
"""Largest standard deviation of a feature, in those of the median feature: one that has another
unit does not outweigh all others."""
_NUM_FITTED = 4000
"""Most training instances that the principal components are computed from."""
_NUM_ITERATIONS = 3
_NUM_FOLDS = 10
"""Most groups of patients that are measured by the others."""
_NUM_TAILS = 256
_ROWS = {"cpu": 2**8, "cuda": 2**16}
"""Rows whose distances are computed at once; on a CPU, as many as its cache holds."""
_TINY = 1e-12
_BUFFERS = (
    *("scale", "mean", "components", "kept", "lengths"),
    *("level", "tails", "spread", "slides"),
)
_EARLIER = "spacing"
"""A buffer that checkpoints of an earlier definition hold."""


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

    scale: Float[Tensor, " D"]
    mean: Float[Tensor, " D"]
    components: Float[Tensor, "D P"]
    kept: Float[Tensor, "Q M"]
    r"""$(-2 c_m, 1) / r_m^{3/2}$ of each kept instance, group after group."""
    lengths: Float[Tensor, " M"]
    r"""$\lVert y_m \rVert^2 / r_m^{3/2}$ of each kept instance."""
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
        features, device = sample.features, sample.features.device
        generator = torch.Generator().manual_seed(seed)
        patients = _patients(sample, cases)
        order = torch.randperm(len(patients), generator=generator).to(device)
        number = torch.randperm(int(patients.max()) + 1, generator=generator)
        folds, patients = (number % _NUM_FOLDS)[patients].to(device), patients.to(device)
        distance = torch.full((len(order),), torch.nan, dtype=torch.float64)
        for fold in range(min(_NUM_FOLDS, len(number))):
            others = order[folds[order] != fold]
            if len(others) > 0:
                self._learn(features, patients, others)
                for rows in (folds == fold).nonzero().squeeze(1).split(_rows(features)):
                    distance[rows.cpu()] = self._distance(features[rows]).double().cpu()
        self._learn(features, patients, order)
        self._fit_levels(distance, sample.offsets)

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

    def _scaled(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Bring features to one unit, and divide them by the root of their length."""
        scaled = features.to(self.scale.dtype) / self.scale
        lengths = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
        return scaled.div_(lengths.clamp_(min=_TINY).sqrt_())

    def _reduced(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T Q"]:
        """Return the principal components of instances, and in the end their squared length."""
        centred = self._scaled(features).sub_(self.mean)
        squared = torch.linalg.vecdot(centred, centred)
        return torch.cat([centred @ self.components, squared[:, None]], dim=1)

    def _squared(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T M"]:
        """Compute weighted squared distances to the kept instances."""
        with torch.autocast(features.device.type, enabled=False):
            return torch.addmm(self.lengths, self._reduced(features), self.kept)

    def _distance(self, features: Float[Tensor, "T D"]) -> Float[Tensor, " T"]:
        """Compute the distance to the training set."""
        squared = self._squared(features)
        groups = min(NUM_GROUPS, squared.shape[1])
        nearest = squared.unflatten(1, (groups, -1)).amin(2)
        return nearest.clamp_(min=0).sqrt_().mean(1)

    def _learn(
        self,
        features: Float[Tensor, "T D"],
        patients: Int[Tensor, " T"],
        order: Int[Tensor, " N"],
    ) -> None:
        """Compute unit, mean and components of the features, and keep instances.

        Args:
            features: Features of instances.
            patients: Patient of each instance.
            order: Instances that are used, in a random order.
        """
        self._fit_components(features[order[:_NUM_FITTED]])
        count = min(NUM_KEPT, len(order))
        chosen = order[: count - count % min(NUM_GROUPS, count)]  # groups of one size
        reduced = self._reduced(features[chosen])
        rows = torch.cat([-2 * reduced[:, :-1], torch.ones_like(reduced[:, :1])], dim=1)
        self.kept, self.lengths = rows.T.contiguous(), reduced[:, -1].contiguous()
        spacing = _spacing(self._squared(features[chosen]), patients[chosen])
        self.kept *= spacing ** (-2 * _SPACING_POWER)
        self.lengths *= spacing ** (-2 * _SPACING_POWER)

    def _fit_components(self, features: Float[Tensor, "T D"]) -> None:
        values = features.to(self.place)
        std = values.std(dim=0, correction=0)
        varies = std > 1e-6 * values.abs().amax(0)
        usual = std[varies].median() if varies.any() else torch.ones_like(std[0])
        # One unit for all, which is that of the usual feature.
        self.scale = usual * (std / (_WIDEST * usual)).clamp(min=1)
        scaled = self._scaled(values)
        self.mean = scaled.mean(0)
        self.components = _principal(scaled - self.mean)

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
        """Compute the surprise of instances, the logarithm in steps of a fixed size."""
        tails = self.tails.double().cpu()
        return torch.searchsorted(tails, distance, right=True).double() ** _SURPRISE_POWER

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        *lists: list[str],
    ) -> None:
        """Take over tensors of any size; a checkpoint of an earlier definition has none."""
        if prefix + _EARLIER in state_dict:
            return
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


def _patients(sample: BagBatch, cases: Sequence[str] | None) -> Int[Tensor, " T"]:
    """Number the patient of each instance."""
    names = list(sample.slide_ids if cases is None else cases)
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    found = torch.tensor([number[name] for name in names])
    found = found.repeat_interleave(sample.offsets.diff())
    # Without another patient, an instance is compared with all other instances.
    return found if len(number) > 1 else torch.arange(len(found))


def _principal(centred: Float[Tensor, "T D"]) -> Float[Tensor, "D P"]:
    """Compute the first principal components of centred rows by subspace iteration."""
    generator = torch.Generator().manual_seed(0)
    found = torch.randn(centred.shape[1], 3 * NUM_COMPONENTS // 2, generator=generator)
    found = found.to(centred)
    for _ in range(_NUM_ITERATIONS):
        found = torch.linalg.qr(centred.T @ (centred @ found)).Q
    projected = (centred @ found).double()
    _, vectors = torch.linalg.eigh(projected.T @ projected)
    return (found @ vectors.flip(1)[:, :NUM_COMPONENTS].to(found)).contiguous()


def _spacing(squared: Float[Tensor, "M M"], patients: Int[Tensor, " M"]) -> Float[Tensor, " M"]:
    """Compute the mean distance of instances to their nearest of other patients."""
    excluded = patients[:, None] == patients
    if excluded.all():  # no other patient
        excluded = torch.eye(len(patients), dtype=torch.bool, device=patients.device)
    squared = squared.masked_fill(excluded, torch.inf)
    nearest = squared.topk(min(NUM_NEIGHBOURS, len(patients)), dim=1, largest=False).values
    known = nearest.isfinite()
    distance = nearest.clamp(min=0).sqrt().where(known, 0).sum(1) / known.sum(1).clamp(min=1)
    return distance.clamp(min=1e-3 * float(distance.mean()) or 1.0)


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
