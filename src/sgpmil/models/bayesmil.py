r"""BayesMIL: a Bayesian neural network whose attention is smooth on the slide (Cui et al., 2023).

$h_i = \mathrm{ReLU}(W_1 x_i + b_1)$; layers of variational dropout (`VariationalLinear`)
give each instance a distribution of its attention logit,

$$ (\mu_i, \log\sigma_i^2) = V_3\big(\sigma(V_1 h_i) \odot \tanh(V_2 h_i)\big), \qquad
   g_i \sim N(\bar\mu_i, \sigma_i^2), $$

where $\bar\mu$ is $\mu$ smoothed over neighbouring patches (see `patch_grid`). The attention
$A_i = \sigma(g_i)$ gives $z = \sum_i A_i h_i / \sum_i A_i$ and logits $V_4 z$. Minimised is

$$ -\log p_y + \lambda_w \sum_l R_l + \lambda_d \,\mathrm{mean}_i\,
   \mathrm{KL}\big(N(\bar\mu_i, \sigma_i^2) \,\Vert\, N(\mu_y, \sigma_y^2)\big), $$

with a prior of the attention that depends on the bag's label: low attention in negative bags.

Against the published code: the divergence exponentiates log-variances (there they are squared)
and is over patches only; the grid's pitch is a patch (there always 224 pixels, so that most
neighbours were missed) and its rows have their true length; predictions average samples of the
weights, where one pass was taken.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.errors import BagError
from sgpmil.gp.noise import FreshNoise, Noise, RepeatableNoise
from sgpmil.models.clam import CLAM_TRAINING
from sgpmil.models.contract import Loss, MILModel, ModelOutput, ModelSettings, Recordable
from sgpmil.models.likelihood import negative_log_likelihood
from sgpmil.models.patch_grid import grid_cells, grid_pitch, smooth
from sgpmil.models.pooling import bag_softmax, pool
from sgpmil.models.registry import register
from sgpmil.shapes import Float, Int

_BINARY_PRIOR = ((-5.0, -1.0), (0.0, 3.0))
"""Mean and log-variance of attention logits in bags of class 0 and of class 1."""
_PRIOR = (3.0, 5.0)
"""The same for every class, where there are more than two."""

_UNDECIDED, _WITH_GRID, _WITHOUT_GRID = 0, 1, 2
"""Values of `BayesMIL.grid`: whether the training bags had coordinates; `initialise` decides."""

_MAX_LOG_VARIANCE = 20.0
"""A sigmoid is saturated long before; at 88 the exponential of a float32 overflows."""


_WEIGHT_STD = 0.01
_MIN_WEIGHT_VARIANCE = 1e-8
_MIN_OUTPUT_VARIANCE = 1e-16
"""Floor of an output's variance, which is 0 where all inputs are: a square root's slope there is
infinite."""
_K1, _K2, _K3 = 0.6134, 0.2026, 0.7126


@dataclass(frozen=True)
class BayesMILSettings(ModelSettings):
    """Settings of BayesMIL.

    Args:
        hidden_dim: Width of the embedding.
        attention_dim: Width of the attention's hidden layer; 256 in the published small size.
        dropout: Dropout of the embedding and of the attention's hidden layers.
        spatial: Whether attention is smoothed over neighbouring patches.
        num_samples: Number of samples that prediction draws; training draws one.
        weight_penalty: Weight of the divergences of the weights.
        data_penalty: Weight of the divergence of the attention from its prior.
        noise_seed: Seed of the samples that prediction draws.
    """

    hidden_dim: int = 512
    attention_dim: int = 384
    dropout: float = 0.25
    spatial: bool = True
    num_samples: int = 30
    weight_penalty: float = 1e-8
    data_penalty: float = 1e-6
    noise_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "hidden_dim", "attention_dim", "num_samples")
        self.check_at_least(0, "weight_penalty", "data_penalty", "noise_seed")
        self.check_dropout("dropout")


class VariationalLinear(nn.Module):
    r"""A linear layer whose weights are normal distributions: variational dropout.

    Each weight has the posterior $w_{ji} \sim N(W_{ji}, \alpha_{ji} W_{ji}^2 + 10^{-8})$; the bias
    is a number. The output of a row $x$ is then normal too,

    $$ y_j \sim N\Big(\sum_i W_{ji} x_i + b_j,\;
       \sum_i x_i^2 (\alpha_{ji} W_{ji}^2 + 10^{-8})\Big), $$

    and can be drawn in two ways that have the same distribution for each row:

    *locally*
        a draw for each output of each row, for training: its gradient varies least;
    *as a function*
        a draw of the weights, the same for all rows, for prediction: then the uncertainty that the
        instances of a bag share does not average out over many instances.

    The divergence from a log-uniform prior has no closed form; it is approximated by

    $$ R = \sum_j \frac1I \sum_i \tfrac12 \log(1 + \alpha_{ji}^{-1})
       - k_1 \exp\big(-(k_2 + k_3 \log\alpha_{ji})^2\big). $$

    Args:
        in_dim: Number of inputs.
        out_dim: Number of outputs.
        log_alpha: Initial logarithm of every weight's noise ratio.
    """

    def __init__(self, in_dim: int, out_dim: int, *, log_alpha: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(_WEIGHT_STD * torch.randn(out_dim, in_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.log_alpha = nn.Parameter(torch.full((out_dim, in_dim), log_alpha))

    def forward(
        self, x: Float[Tensor, "... I"], eps: Float[Tensor, "O I"] | None = None
    ) -> Float[Tensor, "... O"]:
        """Draw the outputs: locally, or from the weights that a standard normal `eps` gives."""
        return self.local(x) if eps is None else self.sampled(x, eps)

    def local(self, x: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        """Draw each output of each row afresh."""
        mean = F.linear(x, self.weight, self.bias)
        # Half precision cannot hold variances of weights this small.
        with torch.autocast(x.device.type, enabled=False):
            inputs = x.to(self.weight.dtype)
            variance = F.linear(inputs.square(), self.weight_variance())
            deviation = variance.clamp(min=_MIN_OUTPUT_VARIANCE).sqrt()
            return mean + deviation * torch.randn_like(deviation)

    def sampled(
        self, x: Float[Tensor, "... I"], eps: Float[Tensor, "O I"]
    ) -> Float[Tensor, "... O"]:
        """Apply one draw of the weights to every row."""
        return F.linear(x, self.draw(eps), self.bias)

    def draw(self, eps: Float[Tensor, "*S O I"]) -> Float[Tensor, "*S O I"]:
        """Turn standard normal values into draws of the weights."""
        return self.weight + self.weight_variance().sqrt() * eps

    def weight_variance(self) -> Float[Tensor, "O I"]:
        r"""$\alpha W^2 + 10^{-8}$."""
        return self.log_alpha.exp() * self.weight.square() + _MIN_WEIGHT_VARIANCE

    def penalty(self) -> Float[Tensor, ""]:
        """The approximate divergence $R$ from the prior."""
        log_alpha = self.log_alpha
        # log(1 + 1/alpha), without alpha's overflow.
        bound = 0.5 * F.softplus(-log_alpha)
        correction = _K1 * (-(_K2 + _K3 * log_alpha).square()).exp()
        return (bound - correction).mean(1).sum()


@register(
    "bayesmil",
    presets={
        "vis": {"spatial": False, "data_penalty": 0.0},
        "enc": {"spatial": False},
        "released": {"data_penalty": 1e-12, "standardise": False},
    },
    # Cui et al., ICLR 2023: CLAM's loop.
    training={**CLAM_TRAINING, "weight_decay": 2e-5},
)
class BayesMIL(MILModel):
    """The model of this module; its arguments are those of `MILModel`."""

    is_probabilistic: ClassVar[bool] = True
    recordable = Recordable.BAGS
    settings: BayesMILSettings
    grid: Tensor
    prior: Tensor

    def __init__(self, in_dim: int, num_outputs: int, settings: BayesMILSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        hidden, width = settings.hidden_dim, settings.attention_dim
        first = nn.Linear(self.feature_dim, hidden)
        nn.init.xavier_normal_(first.weight)
        nn.init.zeros_(first.bias)
        self.mlp = nn.Sequential(first, nn.Dropout(settings.dropout), nn.ReLU())
        self.gate = VariationalLinear(hidden, width, log_alpha=-4.0)
        self.value = VariationalLinear(hidden, width, log_alpha=-4.0)
        self.attention = VariationalLinear(width, 2, log_alpha=-4.0)
        self.classifier = VariationalLinear(hidden, num_outputs, log_alpha=-3.0)
        self.dropout = nn.Dropout(settings.dropout)
        # A buffer, so that it is part of a checkpoint, and a number too, which is read without
        # waiting for the device.
        self.register_buffer("grid", torch.tensor(_UNDECIDED))
        self._grid = _UNDECIDED
        self.register_load_state_dict_post_hook(_read_grid)
        table = _BINARY_PRIOR if num_outputs == 2 else (_PRIOR,) * num_outputs
        self.register_buffer("prior", torch.tensor(table), persistent=False)

    @property
    def uses_coordinates(self) -> bool:
        """Return whether attention is smoothed over neighbouring patches."""
        return self.settings.spatial

    @property
    def takes_noise(self) -> bool:
        """See `MILModel`."""
        return True

    @property
    def not_exportable(self) -> str:
        """The patch grid is searched for neighbours."""
        if not self.settings.spatial or self._grid == _WITHOUT_GRID:
            return ""
        return (
            "smooths attention over neighbouring patches, which it finds by a search in sorted "
            "coordinates, for which ONNX has no operator. Train with the setting spatial false."
        )

    @property
    def variational_layers(self) -> tuple[VariationalLinear, ...]:
        """The layers whose weights are distributions."""
        return self.gate, self.value, self.attention, self.classifier

    def forward(self, batch: BagBatch, noise: Noise | None = None) -> ModelOutput:
        """Classify the bags of a packed batch.

        Args:
            batch: The bags.
            noise: Source of the draws. By default fresh in training, where each layer draws
                locally, and in prediction the same for every bag, so that a slide's result does
                not depend on its batch.

        Raises:
            BagError: The model was trained on the patch grid and a bag has no coordinates.
        """
        num_samples = 1 if self.training else self.settings.num_samples
        is_local = noise is None and self.training
        if noise is None:
            noise = FreshNoise() if self.training else RepeatableNoise(self.settings.noise_seed)
        draws = None if is_local else self._weight_noise(noise, num_samples)
        embeddings = self.through(self.mlp, batch.features)
        mean, log_variance = self._attention_logits(embeddings, draws)
        bag_index = batch.bag_index
        if self._is_on_grid(batch):
            mean = smooth(mean, self._cells(batch), bag_index)
        eps = noise.per_instance(num_samples, batch.segments, like=mean)
        logits_of_attention = mean + (0.5 * log_variance).exp() * eps
        # A / sum(A), where the sum of very small sigmoids would underflow.
        weights = bag_softmax(F.logsigmoid(logits_of_attention), batch.segments)
        bag_embeddings = pool(weights, embeddings, batch.segments)
        evidence = alone = None
        if draws is None:
            logits = self.classifier(bag_embeddings)
        else:
            classifiers = self.classifier.draw(torch.stack([draw[-1] for draw in draws]))
            logits = torch.einsum("bsh,sch->bsc", bag_embeddings, classifiers)
            logits = logits + self.classifier.bias
            instance_logits = torch.einsum("th,sch->stc", embeddings, classifiers)
            evidence = instance_logits * weights.unsqueeze(2)
            alone = None if self.training else instance_logits + self.classifier.bias
        return ModelOutput(
            logits=logits,
            attention=logits_of_attention.sigmoid(),
            weights=weights,
            evidence_samples=evidence,
            single_samples=alone,
            extras={
                "mean": mean,
                "log_variance": log_variance,
                "bag_index": bag_index,
                "sizes": batch.sizes,
            },
        )

    def loss(self, output: ModelOutput, labels: Int[Tensor, " B"], num_bags: int) -> Loss:
        """Cross-entropy of the samples, and the two divergences."""
        del num_bags
        settings = self.settings
        fit = negative_log_likelihood(self.target, output.logits, labels, "mean_log_prob")
        terms = {"cross_entropy": fit}
        if settings.weight_penalty > 0:
            divergence = torch.stack([layer.penalty() for layer in self.variational_layers]).sum()
            terms["weight_penalty"] = settings.weight_penalty * divergence
        if settings.data_penalty > 0:
            terms["data_penalty"] = settings.data_penalty * self._divergence(output, labels)
        return Loss.of(**terms)

    def initialise(self, sample: BagBatch, *, seed: int) -> None:
        """Fit the standardisation, and find out whether the bags have a patch grid."""
        super().initialise(sample, seed=seed)
        if self.settings.spatial and sample.coords is None:
            warnings.warn(
                "The bags have no coordinates, so that bayesmil is trained without the patch "
                "grid: its attention is not smoothed over neighbouring patches.",
                UserWarning,
                stacklevel=2,
            )
        self._grid = _WITHOUT_GRID if sample.coords is None else _WITH_GRID
        self.grid.fill_(self._grid)

    def _weight_noise(self, noise: Noise, num_samples: int) -> list[tuple[Tensor, ...]]:
        """Draw the noise of each sample for the weights of each variational layer."""
        shapes = [layer.weight.shape for layer in self.variational_layers]
        counts = [shape.numel() for shape in shapes]
        draws = noise.per_function(num_samples, sum(counts), like=self.classifier.weight)
        return [
            tuple(part.view(shape) for part, shape in zip(draw.split(counts), shapes, strict=True))
            for draw in draws
        ]

    def _attention_logits(
        self, embeddings: Float[Tensor, "T H"], draws: list[tuple[Tensor, ...]] | None
    ) -> tuple[Float[Tensor, "S T"], Float[Tensor, "S T"]]:
        """Return mean and log-variance of the attention logits before they are smoothed."""
        # A sample at a time: hidden layers of all samples and instances would be too large.
        samples = []
        each: Sequence[Sequence[Tensor | None]] = draws or [(None, None, None)]
        for gate_eps, value_eps, eps, *_ in each:
            gate = self.dropout(self.gate(embeddings, gate_eps).sigmoid())
            value = self.dropout(self.value(embeddings, value_eps).tanh())
            samples.append(self.attention(gate * value, eps))
        # Not in half precision, whose exponential overflows early.
        mean, log_variance = torch.stack(samples).to(self.classifier.weight.dtype).unbind(2)
        return mean, log_variance.clamp(max=_MAX_LOG_VARIANCE)

    def _is_on_grid(self, batch: BagBatch) -> bool:
        """Return whether to smooth attention: as in training, or before it if it can be."""
        has_coords = batch.coords is not None
        return self.settings.spatial and (
            self._grid == _WITH_GRID or (self._grid == _UNDECIDED and has_coords)
        )

    def _cells(self, batch: BagBatch) -> Int[Tensor, "T 2"]:
        if batch.coords is None:
            raise BagError(
                "Expected coordinates of every patch, because the model was trained on the patch "
                f"grid, but they are missing in at least one of {', '.join(batch.slide_ids)}. "
                'Give bags with coordinates, or train with `model_settings={"spatial": False}`.'
            )
        bag_index = batch.bag_index
        pitch = grid_pitch(batch.coords, bag_index, batch.num_bags)
        if batch.patch_sizes is not None:
            pitch = torch.where(batch.patch_sizes > 0, batch.patch_sizes, pitch)
        return grid_cells(batch.coords, bag_index, pitch)

    def _divergence(self, output: ModelOutput, labels: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Divergence of the attention from its prior: mean of a bag's patches, then of bags."""
        mean, log_variance = output.extras["mean"], output.extras["log_variance"]
        bag_index = output.extras["bag_index"]
        prior = self.prior[labels][bag_index]
        divergence = attention_divergence(mean, log_variance, prior[:, 0], prior[:, 1]).mean(0)
        return (divergence / output.extras["sizes"][bag_index]).sum() / len(labels)


def _read_grid(model: BayesMIL, _: object) -> None:
    """Hook of `load_state_dict`."""
    model._grid = int(model.grid)


def attention_divergence(
    mean: Float[Tensor, "*S T"],
    log_variance: Float[Tensor, "*S T"],
    prior_mean: Float[Tensor, " T"],
    prior_log_variance: Float[Tensor, " T"],
) -> Float[Tensor, "*S T"]:
    r"""Divergence of normals from normals.

    $$ \mathrm{KL} = \tfrac12 (\log\sigma_p^2 - \log\sigma_q^2)
       + \frac{\sigma_q^2 + (\mu_p - \mu_q)^2}{2\sigma_p^2} - \tfrac12 $$
    """
    squares = log_variance.exp() + (prior_mean - mean).square()
    scaled = squares * (-prior_log_variance).exp()
    return 0.5 * (prior_log_variance - log_variance + scaled - 1)
