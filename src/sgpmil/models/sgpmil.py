r"""SGPMIL: attention with a sparse Gaussian process posterior.

Each instance is embedded, $h_i = \mathrm{MLP}(x_i)$, and projected to the inputs of the process,
$g_i = \sigma(W h_i + b)$. Attention logits $f \sim q(f)$ are drawn $S$ times; each sample gives
an attention $a_s$, a bag embedding $z_s = \sum_i \tilde a_{si} h_i$ and class logits. AGP is the
same mechanism with other settings.

`sgpmil.models.process_inputs` has the other inputs that are not sigmoids, and
`sgpmil.models.inducing_patches` the inducing points that are patches.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.chunks import by_chunks
from sgpmil.gp.linear_part import LinearPart
from sgpmil.gp.noise import FreshNoise, Noise, PairedNoise, RepeatableNoise
from sgpmil.gp.prior import (
    ScaledRBF,
    build_kernel,
    build_mean,
    set_lengthscale,
    set_lengthscale_from_data,
    set_outputscale,
)
from sgpmil.gp.sampling import draw
from sgpmil.gp.sparse import (
    Posterior,
    SparseGP,
    Whitening,
    kmeans_points,
    medoids,
    uniform_points,
)
from sgpmil.gpu.cholesky import MAX_SIZE
from sgpmil.gpu.recording import side_by_side
from sgpmil.models.contract import Loss, MILModel, ModelOutput, Recordable
from sgpmil.models.embedding import InstanceLinear, relu_layers
from sgpmil.models.enough_samples import Samples, enough_samples
from sgpmil.models.inducing_patches import InducingPatches, draw_pool
from sgpmil.models.likelihood import negative_log_likelihood
from sgpmil.models.pooling import bag_softmax, pool, pooling_weights
from sgpmil.models.process_inputs import InputFrame, preserved_components
from sgpmil.models.registry import ONE_BAG_A_STEP, register
from sgpmil.models.sgpmil_settings import AGP, AGP_PRESETS, PRESETS, SGPMILSettings
from sgpmil.shapes import Float, Int

_CLASSIFIER_STREAM = 1000
"""Number of the stream of noise of the classifier's weights."""

_CLASSIFIER_START = -3.0
"""Initial logarithm of the standard deviation of the classifier's weights over the prior's."""


@dataclass(frozen=True, slots=True)
class _EmbeddedBags:
    """Instances of bags on their way through the model.

    Args:
        inputs: Inputs of the process.
        embeddings: Embeddings.
        logits: Class logits of each instance.
        segments: Division of the instances into bags.
    """

    inputs: Float[Tensor, "T G"]
    embeddings: Float[Tensor, "T H"]
    logits: Float[Tensor, "T C"]
    segments: Segments

    def chosen(self, bags: Int[Tensor, " _"]) -> "_EmbeddedBags":
        """Return some of the bags."""
        wanted = torch.zeros(len(self.segments), dtype=torch.bool, device=bags.device)
        wanted[bags] = True
        rows = wanted[self.segments.index].nonzero().squeeze(1)
        sizes = self.segments.offsets.diff()[bags.to(self.segments.offsets.device)]
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        bounds = offsets.to(self.segments.bounds.device)
        return _EmbeddedBags(
            self.inputs[rows], self.embeddings[rows], self.logits[rows], Segments(offsets, bounds)
        )


def _paired(noise: Noise, number: int) -> Noise:
    """Return the noise of a round of samples: pairs of opposite draws."""
    return PairedNoise(noise.stream(number))


@register(
    "agp",
    settings=AGP,
    presets=AGP_PRESETS,
    # The released configuration of the SGPMIL paper.
    training={
        **ONE_BAG_A_STEP,
        "epochs": 20,
        "optimiser": "adamw",
        "learning_rate": 2e-4,
        "weight_decay": 5e-5,
        "schedule": "cosine",
        "min_learning_rate": 1e-7,
    },
)
@register(
    "sgpmil",
    presets=PRESETS,
    training={"epochs": 40, "learning_rate": 6e-4, "weight_decay": 0.6, "bags_per_step": 4},
)
class SGPMIL(MILModel):
    """The model of this module.

    Args:
        in_dim: Number of features of an instance.
        num_outputs: Number of outputs, one per class.
        settings: Its settings.
    """

    is_probabilistic: ClassVar[bool] = True
    settings: SGPMILSettings
    preserved: Tensor | None

    def __init__(self, in_dim: int, num_outputs: int, settings: SGPMILSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        hidden_dim = settings.hidden_dims[-1]
        self.mlp = relu_layers((self.feature_dim, *settings.hidden_dims))
        self.projection = InstanceLinear(hidden_dim, settings.gp_dim)
        num_preserved = min(settings.num_preserved, in_dim)
        gp_inputs = settings.gp_dim + num_preserved
        scale = settings.linear_scale
        has_patches = settings.inducing == "patches"
        self.gp = SparseGP(
            build_kernel(settings.kernel),
            build_mean(
                settings.mean,
                gp_inputs,
                scale=settings.mean_scale,
                bias=settings.mean_bias,
            ),
            settings.num_inducing
            if has_patches
            else uniform_points(settings.num_inducing, settings.gp_dim),
            jitter=settings.jitter,
            linear=None if scale is None else LinearPart(gp_inputs, scale),
        )
        if settings.lengthscale_start == "cube":
            set_lengthscale(self.gp.kernel, settings.gp_dim**0.5 / 2)
        elif settings.lengthscale_start == "unit":
            set_lengthscale(self.gp.kernel, 1.0)
        if settings.outputscale is not None:
            set_outputscale(self.gp.kernel, settings.outputscale)
        self.patches = InducingPatches(settings.num_inducing, in_dim) if has_patches else None
        self.register_buffer(
            "preserved", torch.zeros(in_dim, num_preserved) if num_preserved else None
        )
        self._frozen: tuple[InputFrame, Whitening] | None = None
        self.classifier = nn.Linear(hidden_dim, num_outputs)
        scale = settings.classifier_scale
        self.classifier_log_sd: nn.Parameter | None = None
        if scale is not None:
            start = torch.full((num_outputs, hidden_dim), math.log(scale) + _CLASSIFIER_START)
            self.classifier_log_sd = nn.Parameter(start)

    @property
    def recordable(self) -> Recordable:
        """Steps, unless bags are drawn one by one or other libraries compute kernel or factor."""
        few = self.settings.num_inducing <= MAX_SIZE
        own_kernel = few and ScaledRBF.of(self.gp.kernel) is not None
        is_joint = self.settings.sampling == "full"
        return Recordable.STEPS if own_kernel and not is_joint else Recordable.NOTHING

    @property
    def takes_noise(self) -> bool:
        """See `MILModel`."""
        return True

    @property
    def not_exportable(self) -> str:
        """The exact joint draw factorises a matrix of all pairs of instances."""
        if self.settings.sampling != "full":
            return ""
        return (
            "draws all instances of a slide jointly (sampling 'full'), by a Cholesky factor of "
            "their covariance, for which ONNX has no operator. Train with the setting sampling "
            "'inducing'."
        )

    def freeze(self) -> None:
        """Keep the inducing points and the factor of their covariance."""
        self._frozen = None
        self._frozen = self._inducing()

    @property
    def _weighs_one_fully(self) -> bool:
        """Return whether the only instance of a bag has the pooling weight 1."""
        return self.settings.activation == "softmax" or self.settings.pooling == "normalised"

    def embed(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T H"]:
        """Embed instances: $h_i$."""
        return self.mlp(self.prepare(features))

    def gp_inputs(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T G"]:
        """Compute the inputs of the process: $g_i$."""
        return self._inputs_of(features, self._frame()[0])

    def input_scale(self) -> Float[Tensor, " G"]:
        """Return the factor of each input of the process after its projection; 1 of sigmoids."""
        frame, points = self._frame()
        scale = torch.ones_like(points[0])
        if frame.scale is None:
            return scale
        scale[: self.settings.gp_dim] = frame.scale
        scale[self.settings.gp_dim :] *= self.settings.preserved_weight**0.5
        return scale

    def whitening(self) -> Whitening:
        """Return the inducing points and the kernel at their present values."""
        return self._inducing()[1]

    def _kept_features(self, features: Tensor) -> Float[Tensor, " D"] | None:
        """Draw the features that a training step keeps, as factors; None where it keeps all."""
        share = self.settings.feature_dropout
        if not (self.training and share):
            return None
        ones = torch.ones(self.in_dim, device=features.device)
        return nn.functional.dropout(ones, share)

    def _embed(
        self, standardised: Float[Tensor, "T D"], kept: Float[Tensor, " D"] | None = None
    ) -> tuple[Float[Tensor, "T H"], Float[Tensor, "T P"]]:
        """Embed instances, and return them with the inputs that training does not move."""
        seen = standardised if kept is None else standardised * kept.to(standardised.dtype)
        embeddings = self.mlp(self.encoder(seen))
        if self.preserved is None:
            return embeddings, embeddings[:, :0]
        # Components of all features: they tell how unlike two patches are.
        weight, fixed = self.settings.preserved_weight**0.5, standardised @ self.preserved
        return embeddings, fixed if weight == 1 else weight * fixed

    def _inputs(
        self, frame: InputFrame, embeddings: Float[Tensor, "T H"], fixed: Float[Tensor, "T P"]
    ) -> Float[Tensor, "T G"]:
        """Return the inputs of the process: those of the embeddings, and those that are fixed."""
        learned = frame.project(embeddings, self.projection)
        return torch.cat([learned, fixed], dim=1) if fixed.shape[1] else learned

    def _inputs_of(self, features: Float[Tensor, "T D"], frame: InputFrame) -> Float[Tensor, "T G"]:
        def inputs(rows: Tensor) -> tuple[Tensor]:
            return (self._inputs(frame, *self._embed(self.standardise(rows))),)

        return by_chunks(inputs, features)[0]

    def _frame(
        self, kept: Float[Tensor, " D"] | None = None
    ) -> tuple[InputFrame, Float[Tensor, "M G"]]:
        """Return how inputs are made of embeddings, and the inducing points."""
        if self.patches is None:
            return InputFrame(), self.gp.points
        # Features of a recorded step are standardised before they enter; the patches are not.
        standardised = self.standardise.standardised(self.patches.features)
        embeddings, fixed = self._embed(standardised, kept)
        if self.settings.inputs == "sigmoid":
            return InputFrame(), self._inputs(InputFrame(), embeddings, fixed)
        projected = self.projection(embeddings)
        with torch.autocast(projected.device.type, enabled=False):
            projected = projected.to(self.gp.whitened_mean.dtype)
            frame = InputFrame.over(projected)
            return frame, torch.cat([frame(projected), fixed.to(projected.dtype)], dim=1)

    def _inducing(self, kept: Float[Tensor, " D"] | None = None) -> tuple[InputFrame, Whitening]:
        if self._frozen is not None:
            return self._frozen
        frame, points = self._frame(kept)
        return frame, self.gp.whitening(points)

    def attention_posterior(
        self, features: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
        """Return mean and variance of the attention logits $q(f_i)$."""
        posterior = self.posterior(features)
        return posterior.mean, posterior.variance

    def kl(self) -> Float[Tensor, ""]:
        """Divergence of the posterior from the prior: of the process, and of the classifier.

        That of the classifier has the weight ``classifier_kl``.
        """
        with torch.autocast(self.classifier.weight.device.type, enabled=False):
            return self.gp.kl() + self.settings.classifier_kl * self._classifier_kl()

    def _classifier_kl(self) -> Float[Tensor, ""] | float:
        prior = self.settings.classifier_scale
        if self.classifier_log_sd is None or prior is None:
            return 0.0
        mean, log_sd = self.classifier.weight.flatten(), self.classifier_log_sd.flatten()
        sd = log_sd.exp()
        squares = (mean @ mean + sd @ sd) / prior**2
        return 0.5 * squares - log_sd.sum() + len(sd) * (math.log(prior) - 0.5)

    def forward(self, batch: BagBatch, noise: Noise | None = None) -> ModelOutput:
        """Classify the bags of a packed batch.

        Args:
            batch: The bags.
            noise: Source of the draws. By default fresh in training, and in prediction the same
                for every bag, so that a slide's result does not depend on its batch.
        """
        if noise is None:
            noise = FreshNoise() if self.training else RepeatableNoise(self.settings.noise_seed)
        segments = batch.segments
        kept = self._kept_features(batch.features)

        (frame, whitening), (embeddings, fixed) = side_by_side(
            batch.features.device,
            lambda: self._inducing(kept),
            lambda: by_chunks(
                lambda rows: self._embed(self.standardise(rows), kept), batch.features
            ),
        )
        inputs = self._inputs(frame, embeddings, fixed)
        # Not in half precision: of thousands of instances, each adds a little.
        with torch.autocast(inputs.device.type, enabled=False):
            classes = self.classifier.weight
            # The classifier is linear: to pool its outputs takes less than to pool its inputs.
            instance_logits = embeddings.to(classes.dtype) @ classes.T
        bags = _EmbeddedBags(inputs, embeddings, instance_logits, segments)
        different = None
        if self.training or not self.settings.prediction_samples:
            logits, attention, weights = self._sample(bags, whitening, noise)
            moments = None if self.training else self._moments(inputs, segments, whitening)
        elif (moments := self._moments(inputs, segments, whitening)) is not None:
            found = self._enough_samples(bags, whitening, noise)
            logits, different = found.logits, found.num_different
            attention = weights = moments[0].unsqueeze(0)
        else:
            numbers = range(self._num_rounds)
            parts = [self._sample(bags, whitening, _paired(noise, number)) for number in numbers]
            logits = torch.cat([part[0] for part in parts], dim=1)
            attention, weights = (torch.cat([part[k] for part in parts]) for k in (1, 2))
        return ModelOutput(
            logits=logits,
            num_different=different,
            attention=attention,
            weights=weights,
            instance_logits=instance_logits,
            instance_logits_std=self._instance_logits_std(embeddings),
            instance_bias=self.classifier.bias if self._weighs_one_fully else None,
            moments=moments,
        )

    @property
    def _num_rounds(self) -> int:
        """Number of times that `num_samples` samples are drawn in prediction."""
        return -(-self.settings.prediction_samples // self.settings.num_samples)

    def _enough_samples(self, bags: "_EmbeddedBags", whitening: Whitening, noise: Noise) -> Samples:
        """Draw the logits of bags; nobody needs the attention of each sample, which is large."""
        size = 2 * -(-self.settings.num_samples // 2)

        def logits_of(doubling: int, chosen: Tensor) -> Tensor:
            some = bags if len(chosen) == len(bags.segments) else bags.chosen(chosen)
            first = self._num_rounds * 2**doubling // 2 if doubling else 0
            last = self._num_rounds * 2**doubling
            rounds = [
                self._sample(some, whitening, _paired(noise, number), size)[0]
                # The two of a pair come next to each other.
                .unflatten(1, (2, -1))
                .transpose(1, 2)
                .flatten(1, 2)
                for number in range(first, last)
            ]
            return torch.cat(rounds, dim=1)

        error = self.settings.prediction_error if self.is_exact else 0.0
        sizes = bags.segments.bounds.diff()
        return enough_samples(logits_of, sizes, error=error, corrected=self.corrected)

    def _sample(
        self,
        bags: "_EmbeddedBags",
        whitening: Whitening,
        noise: Noise,
        num_samples: int | None = None,
    ) -> tuple[Float[Tensor, "B S C"], Float[Tensor, "S T"], Float[Tensor, "S T"]]:
        """Draw attention and classifier: logits of bags, attention, and pooling weights."""
        settings, segments = self.settings, bags.segments
        count = settings.num_samples if num_samples is None else num_samples
        drawn = draw(
            self.gp,
            bags.inputs,
            segments,
            scheme=settings.sampling,
            num_samples=count,
            noise=noise,
            whitening=whitening,
        )
        is_softmax = settings.activation == "softmax"
        attention = bag_softmax(drawn, segments) if is_softmax else drawn.sigmoid()
        weights = pooling_weights(attention, segments, settings.pooling)
        with torch.autocast(bags.inputs.device.type, enabled=False):
            classes = self.classifier.weight
            if self.classifier_log_sd is None:
                logits = pool(weights, bags.logits, segments)
            else:
                C, H = self.classifier_log_sd.shape
                epsilon = noise.stream(_CLASSIFIER_STREAM).per_function(count, C * H, classes)
                drawn_classes = classes + self.classifier_log_sd.exp() * epsilon.view(-1, C, H)
                pooled = pool(weights, bags.embeddings.to(classes.dtype), segments)
                logits = torch.einsum("bsh,sch->bsc", pooled, drawn_classes)
            return logits + self.classifier.bias, attention, weights

    def _instance_logits_std(self, embeddings: Float[Tensor, "T H"]) -> Float[Tensor, "T C"] | None:
        if self.training or self.classifier_log_sd is None:
            return None
        with torch.autocast(embeddings.device.type, enabled=False):
            variance = (2 * self.classifier_log_sd).exp()
            return (embeddings.to(variance.dtype).square() @ variance.T).sqrt()

    def _moments(
        self, inputs: Float[Tensor, "T G"], segments: Segments, whitening: Whitening
    ) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]] | None:
        r"""Return attention at the posterior mean, and its standard deviation to first order.

        $$ \bar a_i = \mathrm{softmax}(\mathrm E f)_i, \qquad
           \mathrm{sd}(a_i) \approx \bar a_i\, \mathrm{sd}(f_i). $$
        """
        if not self.settings.has_moments:
            return None

        def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
            posterior = self.gp.posterior(rows, whitening)
            return posterior.mean, posterior.variance

        mean, variance = by_chunks(moments, inputs)
        attention = bag_softmax(mean.unsqueeze(0), segments).squeeze(0)
        return attention, attention * variance.sqrt()

    def loss(self, output: ModelOutput, labels: Int[Tensor, " B"], num_bags: int) -> Loss:
        """Negative ELBO a bag: the samples' negative log-likelihood, and KL / number of bags.

        That number is ``kl_bags`` at least.
        """
        settings, logits = self.settings, output.logits
        kl, nll = side_by_side(
            logits.device,
            lambda: settings.kl_factor * self.kl() / max(num_bags, settings.kl_bags),
            lambda: negative_log_likelihood(self.target, logits, labels, settings.likelihood),
        )
        return Loss.of(nll=nll, kl=kl)

    @torch.no_grad()
    def initialise(self, sample: BagBatch, *, seed: int) -> None:
        """Fit the standardisation, and place kernel and inducing points by the data."""
        super().initialise(sample, seed=seed)
        settings = self.settings
        if self.preserved is not None:
            standardised = self.standardise(sample.features)
            self.preserved.copy_(preserved_components(standardised, self.preserved.shape[1]))
        by_kmeans = settings.inducing_start == "kmeans" and self.patches is None
        if not by_kmeans and settings.lengthscale_start != "median":
            return
        inputs = self.gp_inputs(sample.features)
        if by_kmeans:
            self.gp.points.copy_(kmeans_points(inputs, settings.num_inducing, seed=seed))
        if settings.lengthscale_start == "median":
            set_lengthscale_from_data(self.gp.kernel, inputs)

    def rate_factor(self, name: str) -> float:
        """Let q(v), the linear part and the classifier's spread learn at a rate of their own."""
        is_variational = name.startswith(("gp.variational.", "gp.linear.", "classifier_log_sd"))
        return self.settings.variational_rate if is_variational else 1.0

    @torch.no_grad()
    def start_epoch(
        self, epoch: int, *, epochs: int, batches: Iterable[BagBatch], num_bags: int, seed: int
    ) -> bool:
        """Choose the inducing patches before the first epoch, and anew where that is due."""
        due = {0, *(round(share * epochs) for share in self.settings.renewals)}
        if self.patches is None or epoch not in due:
            return False
        was_training = self.training
        self.eval()
        if epoch == 0:
            pool = draw_pool(batches, num_bags=num_bags, seed=seed, score=None)
            standardised = self.standardise(pool.features)
            # The network is not trained yet: distances in the features mean more than its own.
            start = standardised if self.preserved is None else standardised @ self.preserved
            self.patches.take(pool, medoids(start, len(self.patches), seed=seed))
        else:
            frame, whitening = self._inducing()

            def score(features: Tensor) -> Tensor:
                return self.gp.posterior(self._inputs_of(features, frame), whitening).mean

            pool = draw_pool(
                batches,
                num_bags=num_bags,
                seed=seed + epoch,
                score=lambda rows: by_chunks(lambda r: (score(r),), rows)[0],
            )
            inputs = self._inputs_of(pool.features, frame)
            chosen = medoids(inputs, len(self.patches), seed=seed)
            self.patches.take(pool, chosen)
            self.gp.move(inputs[chosen.to(inputs.device)], whitening, self._inducing()[1])
        self.train(was_training)
        return True

    def posterior(self, features: Float[Tensor, "T D"]) -> Posterior:
        """Return the terms of the posterior of the attention logits."""
        frame, whitening = self._inducing()
        return self.gp.posterior(self._inputs_of(features, frame), whitening)
