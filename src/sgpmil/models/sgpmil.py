r"""SGPMIL: attention with a sparse Gaussian process posterior.

Each instance is embedded, $h_i = \mathrm{MLP}(x_i)$, and projected to the inputs of the process,
$g_i = \sigma(W h_i + b)$. Attention logits $f \sim q(f)$ are drawn $S$ times; each sample gives
an attention $a_s$, a bag embedding $z_s = \sum_i \tilde a_{si} h_i$ and class logits. AGP is the
same mechanism with other settings.

With ``inputs="standardised"`` the inputs are $u_i = W h_i + b$, standardised over the inducing
patches, and beside them $P$ principal components $V^\top x_i$ of the standardised features, which
training does not move:

$$ g_i = \Big[ \frac{u_i - \bar u}{\sqrt{2G}\, \mathrm{sd}(u)},\;
   \sqrt{w}\, \frac{V^\top x_i}{\sqrt{2 \sum_p \mathrm{var}(V_p^\top x)}} \Big]. $$

The mean square distance of two patches is 1 in either part (times $w$), throughout training.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.chunks import by_chunks
from sgpmil.errors import SettingsError
from sgpmil.gp.noise import FreshNoise, Noise, PairedNoise, RepeatableNoise
from sgpmil.gp.prior import (
    MEANS,
    MeanName,
    ScaledRBF,
    build_kernel,
    build_mean,
    set_lengthscale,
    set_lengthscale_from_data,
    set_outputscale,
)
from sgpmil.gp.sampling import SAMPLING_SCHEMES, SamplingScheme, draw
from sgpmil.gp.sparse import (
    INDUCING_STARTS,
    InducingStart,
    Posterior,
    SparseGP,
    Whitening,
    kmeans_points,
    medoids,
    uniform_points,
)
from sgpmil.gpu.cholesky import MAX_SIZE
from sgpmil.gpu.recording import side_by_side
from sgpmil.models.contract import Loss, MILModel, ModelOutput, ModelSettings, Recordable
from sgpmil.models.embedding import InstanceLinear, relu_layers
from sgpmil.models.inducing_patches import InducingPatches, draw_pool
from sgpmil.models.likelihood import LIKELIHOODS, Likelihood, negative_log_likelihood
from sgpmil.models.pooling import POOLINGS, Pooling, bag_softmax, pool, pooling_weights
from sgpmil.models.registry import ONE_BAG_A_STEP, register
from sgpmil.shapes import Float, Int

_CLASSIFIER_STREAM = 1000
"""Number of the stream of noise of the classifier's weights."""

_LEAST_SD = 1e-4
"""Added to a standard deviation, so that an input that patches share cannot blow up."""

LengthscaleStart = Literal["log2", "cube", "median", "unit"]


@dataclass(frozen=True)
class SGPMILSettings(ModelSettings):
    """Settings of SGPMIL. The defaults are the package's own; `presets` are published ones.

    Args:
        hidden_dims: Widths of the embedding's layers.
        gp_dim: Number of inputs of the Gaussian process.
        num_inducing: Number of inducing points.
        num_samples: Number of posterior samples, in training and prediction.
        kernel: A name (see `sgpmil.gp.KERNELS`) or any GPyTorch kernel.
        mean: Prior mean of the attention logits.
        mean_scale: Standard deviation of a linear mean's initial weights and bias.
        mean_bias: Initial bias of the mean; None draws it.
        activation: From attention logits to attention.
        pooling: Normalisation of the attention before the embeddings are summed.
        sampling: Sampling scheme of the posterior of a bag.
        likelihood: Likelihood of the label, given the samples.
        inducing_start: Initial inducing points.
        lengthscale_start: ``log2`` as published; ``cube``, half the diagonal of the unit cube in
            which the inputs lie; ``median``, the median distance of training inputs; or ``unit``,
            1, the root mean square distance of standardised inputs.
        jitter: Value added to the diagonals of kernel matrices.
        kl_factor: Weight of the KL divergence.
        noise_seed: Seed of the samples that prediction draws.
        inducing: ``points``, which are learned and start at `inducing_start`; or ``patches``,
            training instances that are carried through the network at every step.
        renewals: Shares of the epochs after which inducing patches are chosen anew.
        inputs: Inputs of the process: ``sigmoid`` of the projection, or the projection
            ``standardised`` over the inducing patches.
        preserved_dim: Number of principal components of the features among the inputs; only
            with standardised inputs.
        preserved_weight: Their weight $w$.
        outputscale: Initial scale $s$ of the kernel; None leaves it at log 2.
        variational_rate: Learning rate of q(v), as a multiple of the network's.
        prediction_samples: Number of posterior samples in prediction, drawn as pairs of opposite
            noise; 0 takes `num_samples` independent ones.
        scores: Attention and evidence of instances: ``samples``, their mean and standard deviation
            over samples; or ``moments`` of the posterior in closed form, with softmax attention.
        classifier_scale: Prior standard deviation of the classifier's weights, which then are
            normal distributions; None learns numbers.
    """

    hidden_dims: tuple[int, ...] = (768, 384, 256)
    gp_dim: int = 64
    num_inducing: int = 80
    num_samples: int = 30
    kernel: Any = "rbf"
    mean: MeanName = "linear"
    mean_scale: float = 0.1
    mean_bias: float | None = 0.0
    activation: Literal["sigmoid", "softmax"] = "softmax"
    pooling: Pooling = "sum"
    sampling: SamplingScheme = "inducing"
    likelihood: Likelihood = "mean_log_prob"
    inducing_start: InducingStart = "uniform"
    lengthscale_start: LengthscaleStart = "cube"
    jitter: float = 1e-4
    kl_factor: float = 1.0
    noise_seed: int = 0
    inducing: Literal["points", "patches"] = "points"
    renewals: tuple[float, ...] = (0.25, 0.5, 0.7)
    inputs: Literal["sigmoid", "standardised"] = "sigmoid"
    preserved_dim: int = 0
    preserved_weight: float = 1.0
    outputscale: float | None = None
    variational_rate: float = 1.0
    prediction_samples: int = 0
    scores: Literal["samples", "moments"] = "samples"
    classifier_scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "hidden_dims", tuple(self.hidden_dims))
        self.check_choice("mean", MEANS)
        self.check_choice("activation", ("sigmoid", "softmax"))
        self.check_choice("pooling", POOLINGS)
        self.check_choice("sampling", SAMPLING_SCHEMES)
        self.check_choice("likelihood", LIKELIHOODS)
        self.check_choice("inducing_start", INDUCING_STARTS)
        self.check_choice("lengthscale_start", get_args(LengthscaleStart))
        if not self.hidden_dims or min(self.hidden_dims) < 1:
            raise SettingsError(
                f"Expected hidden_dims to be one or more widths, but got {self.hidden_dims}."
            )
        self.check_choice("inducing", ("points", "patches"))
        self.check_choice("inputs", ("sigmoid", "standardised"))
        self.check_choice("scores", ("samples", "moments"))
        self.check_at_least(1, "gp_dim", "num_inducing", "num_samples")
        self.check_at_least(0, "mean_scale", "kl_factor", "noise_seed", "preserved_dim")
        self.check_at_least(0, "preserved_weight", "prediction_samples")
        for name in ("jitter", "variational_rate", "outputscale", "classifier_scale"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SettingsError(f"Expected {name} > 0, but got {value}.")
        if not all(0 < share < 1 for share in self.renewals):
            raise SettingsError(f"Expected renewals between 0 and 1, but got {self.renewals}.")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.inputs == "standardised" and self.inducing != "patches":
            raise SettingsError(
                "Expected inducing 'patches' with standardised inputs, which are standardised over "
                f"them, but got '{self.inducing}'."
            )
        if self.preserved_dim and self.inputs != "standardised":
            raise SettingsError(
                f"Expected standardised inputs with preserved_dim {self.preserved_dim}, but got "
                f"'{self.inputs}'."
            )
        if self.scores == "moments" and (self.activation, self.pooling) != ("softmax", "sum"):
            raise SettingsError(
                "Expected activation 'softmax' and pooling 'sum' with scores 'moments', but got "
                f"'{self.activation}' and '{self.pooling}'."
            )


_PAPER = {
    "mean_scale": 1.0,
    "mean_bias": None,
    "activation": "sigmoid",
    "sampling": "independent",
    "likelihood": "mean_log_prob",
    "inducing_start": "uniform",
    "lengthscale_start": "log2",
    "standardise": False,
}


_PATCHES = {
    "kernel": "rbf-alone",
    "mean": "constant",
    "inducing": "patches",
    "inputs": "standardised",
    "preserved_dim": 32,
    "lengthscale_start": "unit",
    "outputscale": 4.0,
    "variational_rate": 20.0,
    "prediction_samples": 120,
    "scores": "moments",
}


@register(
    "agp",
    settings={
        "mean": "constant",
        "mean_bias": 0.0,
        "activation": "softmax",
        "sampling": "full",
        "likelihood": "log_mean_prob",
        "jitter": 1e-3,
    },
    presets={
        "released": {
            "likelihood": "mean_logits",
            "inducing_start": "uniform",
            "lengthscale_start": "log2",
            "standardise": False,
        }
    },
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
    presets={
        "paper": _PAPER,
        "patches": _PATCHES,
        "released": {**_PAPER, "sampling": "shared", "likelihood": "mean_logits"},
    },
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
        num_preserved = min(settings.preserved_dim, in_dim)
        has_patches = settings.inducing == "patches"
        self.gp = SparseGP(
            build_kernel(settings.kernel),
            build_mean(
                settings.mean,
                settings.gp_dim + num_preserved,
                scale=settings.mean_scale,
                bias=settings.mean_bias,
            ),
            settings.num_inducing
            if has_patches
            else uniform_points(settings.num_inducing, settings.gp_dim),
            jitter=settings.jitter,
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
        self.classifier = nn.Linear(hidden_dim, num_outputs)
        scale = settings.classifier_scale
        self.classifier_log_sd = (
            None
            if scale is None
            else nn.Parameter(torch.full((num_outputs, hidden_dim), math.log(scale) - 3.0))
        )

    @property
    def recordable(self) -> Recordable:
        """Steps, unless bags are drawn one by one or other libraries compute kernel or factor."""
        few = self.settings.num_inducing <= MAX_SIZE
        own_kernel = few and ScaledRBF.of(self.gp.kernel) is not None
        is_joint = self.settings.sampling == "full"
        return Recordable.STEPS if own_kernel and not is_joint else Recordable.NOTHING

    @property
    def _weighs_one_fully(self) -> bool:
        """Return whether the only instance of a bag has the pooling weight 1."""
        return self.settings.activation == "softmax" or self.settings.pooling == "normalised"

    def embed(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T H"]:
        """Embed instances: $h_i$."""
        return self.mlp(self.prepare(features))

    def gp_inputs(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T G"]:
        """Compute the inputs of the process: $g_i$."""
        frame, _ = self._frame()
        (projected,) = by_chunks(lambda rows: self._project(self.standardise(rows))[1:], features)
        return frame(projected)

    def whitening(self) -> Whitening:
        """Return the inducing points and the kernel at their present values."""
        return self._inducing()[1]

    def _project(
        self, standardised: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, "T H"], Float[Tensor, "T G"]]:
        """Embed instances, and return them with what a `_Frame` makes inputs of."""
        embeddings = self.mlp(self.encoder(standardised))
        projected = self.projection(embeddings)
        if self.settings.inputs == "sigmoid":
            return embeddings, projected.sigmoid()
        if self.preserved is not None:
            projected = torch.cat([projected, standardised @ self.preserved], dim=1)
        return embeddings, projected

    def _frame(self) -> tuple["_Frame", Float[Tensor, "M G"]]:
        """Return how inputs are made of projections, and the inducing points."""
        if self.patches is None:
            return _Frame(), self.gp.points
        # Features of a recorded step are standardised before they enter; the patches are not.
        _, projected = self._project(self.standardise.standardised(self.patches.features))
        if self.settings.inputs == "sigmoid":
            return _Frame(), projected
        with torch.autocast(projected.device.type, enabled=False):
            frame = _Frame.over(
                projected.to(self.gp.whitened_mean.dtype),
                self.settings.gp_dim,
                self.settings.preserved_weight,
            )
            return frame, frame(projected)

    def _inducing(self) -> tuple["_Frame", Whitening]:
        frame, points = self._frame()
        return frame, self.gp.whitening(points)

    def attention_posterior(
        self, features: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
        """Return mean and variance of the attention logits $q(f_i)$."""
        posterior = self.posterior(features)
        return posterior.mean, posterior.variance

    def kl(self) -> Float[Tensor, ""]:
        """Divergence of the posterior from the prior: of inducing values, and of the classifier."""
        if self.classifier_log_sd is None or self.settings.classifier_scale is None:
            return self.gp.kl()
        log_ratio = 2 * (self.classifier_log_sd - math.log(self.settings.classifier_scale))
        square = self.classifier.weight.square() / self.settings.classifier_scale**2
        return self.gp.kl() + 0.5 * (log_ratio.exp() + square - 1 - log_ratio).sum()

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
        (frame, whitening), (embeddings, projected) = side_by_side(
            batch.features.device,
            self._inducing,
            lambda: by_chunks(lambda rows: self._project(self.standardise(rows)), batch.features),
        )
        inputs = frame(projected)
        # Not in half precision: of thousands of instances, each adds a little.
        with torch.autocast(inputs.device.type, enabled=False):
            classes = self.classifier.weight
            # The classifier is linear: to pool its outputs takes less than to pool its inputs.
            instance_logits = embeddings.to(classes.dtype) @ classes.T

        def sample(source: Noise) -> tuple[Tensor, Tensor, Tensor]:
            drawn = draw(
                self.gp,
                inputs,
                segments,
                scheme=self.settings.sampling,
                num_samples=self.settings.num_samples,
                noise=source,
                whitening=whitening,
            )
            is_softmax = self.settings.activation == "softmax"
            attention = bag_softmax(drawn, segments) if is_softmax else drawn.sigmoid()
            weights = pooling_weights(attention, segments, self.settings.pooling)
            with torch.autocast(inputs.device.type, enabled=False):
                if self.classifier_log_sd is None:
                    logits = pool(weights, instance_logits, segments)
                else:
                    C, H = self.classifier_log_sd.shape
                    own = source.stream(_CLASSIFIER_STREAM)
                    epsilon = own.per_function(self.settings.num_samples, C * H, classes)
                    drawn_classes = classes + self.classifier_log_sd.exp() * epsilon.view(-1, C, H)
                    pooled = pool(weights, embeddings.to(classes.dtype), segments)
                    logits = torch.einsum("bsh,sch->bsc", pooled, drawn_classes)
                logits = logits + self.classifier.bias
            return logits, attention, weights

        if self.training or not self.settings.prediction_samples:
            logits, attention, weights = sample(noise)
            moments = None if self.training else self._moments(inputs, segments, whitening)
        else:
            moments = self._moments(inputs, segments, whitening)
            rounds = -(-self.settings.prediction_samples // self.settings.num_samples)
            found = []
            for number in range(rounds):
                part = sample(PairedNoise(noise.stream(number)))
                # With moments, nobody needs the attention of each sample, which is large.
                found.append(part if moments is None else part[:1])
            logits = torch.cat([part[0] for part in found], dim=1)
            if moments is None:
                attention, weights = (torch.cat([part[k] for part in found]) for k in (1, 2))
            else:
                attention = weights = moments[0].unsqueeze(0)
        return ModelOutput(
            logits=logits,
            attention=attention,
            weights=weights,
            instance_logits=instance_logits,
            instance_logits_std=self._instance_logits_std(embeddings),
            instance_bias=self.classifier.bias if self._weighs_one_fully else None,
            moments=moments,
        )

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
        if self.settings.scores != "moments":
            return None

        def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
            posterior = self.gp.posterior(rows, whitening)
            return posterior.mean, posterior.variance

        mean, variance = by_chunks(moments, inputs)
        attention = bag_softmax(mean.unsqueeze(0), segments).squeeze(0)
        return attention, attention * variance.sqrt()

    def loss(self, output: ModelOutput, labels: Int[Tensor, " B"], num_bags: int) -> Loss:
        """Negative ELBO a bag: the samples' negative log-likelihood, and KL / num_bags."""
        nll = negative_log_likelihood(self.target, output.logits, labels, self.settings.likelihood)
        return Loss.of(nll=nll, kl=self.settings.kl_factor * self.kl() / num_bags)

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
        """Let q(v) learn at a rate of its own."""
        is_variational = name.startswith(("gp.variational.", "classifier_log_sd"))
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
                inputs = frame(self._project(self.standardise(features))[1])
                return self.gp.posterior(inputs, whitening).mean

            pool = draw_pool(
                batches,
                num_bags=num_bags,
                seed=seed + epoch,
                score=lambda rows: by_chunks(lambda r: (score(r),), rows)[0],
            )
            inputs = frame(self._project(self.standardise(pool.features))[1])
            chosen = medoids(inputs, len(self.patches), seed=seed)
            self.patches.take(pool, chosen)
            self.gp.move(inputs[chosen.to(inputs.device)], whitening, self._inducing()[1])
        self.train(was_training)
        return True

    def posterior(self, features: Float[Tensor, "T D"]) -> Posterior:
        """Return the terms of the posterior of the attention logits."""
        frame, whitening = self._inducing()
        (projected,) = by_chunks(lambda rows: self._project(self.standardise(rows))[1:], features)
        return self.gp.posterior(frame(projected), whitening)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Shift and scale that make inputs of the process of projections; none for sigmoids.

    Args:
        shift: Subtracted.
        scale: Multiplied.
    """

    shift: Float[Tensor, " G"] | None = None
    scale: Float[Tensor, " G"] | None = None

    @staticmethod
    def over(projected: Float[Tensor, "M G"], gp_dim: int, weight: float) -> "_Frame":
        """Standardise the learned inputs over patches; weight those behind them."""
        learned = projected[:, :gp_dim]
        sd = learned.std(dim=0, correction=0) + _LEAST_SD
        shift = torch.zeros_like(projected[0])
        scale = torch.full_like(shift, weight**0.5)
        return _Frame(
            torch.cat([learned.mean(0), shift[gp_dim:]]),
            torch.cat([1 / (sd * (2 * gp_dim) ** 0.5), scale[gp_dim:]]),
        )

    def __call__(self, projected: Float[Tensor, "T G"]) -> Float[Tensor, "T G"]:
        if self.shift is None or self.scale is None:
            return projected
        return (projected.to(self.shift.dtype) - self.shift) * self.scale


def preserved_components(
    standardised: Float[Tensor, "T D"], num_components: int
) -> Float[Tensor, "D P"]:
    """Return principal components, scaled so that the mean square distance of instances is 1."""
    values = standardised.double()
    covariance = torch.cov(values.T, correction=0).reshape(values.shape[1], -1)
    variances, vectors = torch.linalg.eigh(covariance)
    total = 2 * variances[-num_components:].sum().clamp(min=torch.finfo(torch.float32).tiny)
    return (vectors[:, -num_components:].flip(1) / total.sqrt()).to(standardised.dtype)
