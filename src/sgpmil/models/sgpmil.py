r"""SGPMIL: attention with a sparse Gaussian process posterior.

Each instance is embedded, $h_i = \mathrm{MLP}(x_i)$, and projected to the inputs of the process,
$g_i = \sigma(W h_i + b)$. Attention logits $f \sim q(f)$ are drawn $S$ times; each sample gives
an attention $a_s$, a bag embedding $z_s = \sum_i \tilde a_{si} h_i$ and class logits. AGP is the
same mechanism with other settings.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.chunks import by_chunks
from sgpmil.errors import SettingsError
from sgpmil.gp.noise import FreshNoise, Noise, RepeatableNoise
from sgpmil.gp.prior import (
    MEANS,
    MeanName,
    ScaledRBF,
    build_kernel,
    build_mean,
    set_lengthscale,
    set_lengthscale_from_data,
)
from sgpmil.gp.sampling import SAMPLING_SCHEMES, SamplingScheme, draw
from sgpmil.gp.sparse import (
    INDUCING_STARTS,
    InducingStart,
    Posterior,
    SparseGP,
    kmeans_points,
    uniform_points,
)
from sgpmil.gpu.cholesky import MAX_SIZE
from sgpmil.gpu.recording import side_by_side
from sgpmil.models.contract import Loss, MILModel, ModelOutput, ModelSettings, Recordable
from sgpmil.models.embedding import InstanceLinear, relu_layers
from sgpmil.models.likelihood import LIKELIHOODS, Likelihood, negative_log_likelihood
from sgpmil.models.pooling import POOLINGS, Pooling, bag_softmax, pool, pooling_weights
from sgpmil.models.registry import ONE_BAG_A_STEP, register
from sgpmil.shapes import Float, Int

LengthscaleStart = Literal["log2", "cube", "median"]


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
            which the inputs lie; or ``median``, the median distance of training inputs.
        jitter: Value added to the diagonals of kernel matrices.
        kl_factor: Weight of the KL divergence.
        noise_seed: Seed of the samples that prediction draws.
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
        self.check_at_least(1, "gp_dim", "num_inducing", "num_samples")
        self.check_at_least(0, "mean_scale", "kl_factor", "noise_seed")
        if not self.jitter > 0:
            raise SettingsError(f"Expected jitter > 0, but got {self.jitter}.")


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

    def __init__(self, in_dim: int, num_outputs: int, settings: SGPMILSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        hidden_dim = settings.hidden_dims[-1]
        self.mlp = relu_layers((self.feature_dim, *settings.hidden_dims))
        self.projection = InstanceLinear(hidden_dim, settings.gp_dim)
        self.gp = SparseGP(
            build_kernel(settings.kernel),
            build_mean(
                settings.mean,
                settings.gp_dim,
                scale=settings.mean_scale,
                bias=settings.mean_bias,
            ),
            uniform_points(settings.num_inducing, settings.gp_dim),
            jitter=settings.jitter,
        )
        if settings.lengthscale_start == "cube":
            set_lengthscale(self.gp.kernel, settings.gp_dim**0.5 / 2)
        self.classifier = nn.Linear(hidden_dim, num_outputs)

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

    def gp_inputs(self, embeddings: Float[Tensor, "T H"]) -> Float[Tensor, "T G"]:
        r"""Project embeddings to the inputs of the process: $g_i = \sigma(W h_i + b)$."""
        return self.projection(embeddings).sigmoid()

    def _embed_and_project(
        self, features: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, "T H"], Float[Tensor, "T G"]]:
        embeddings = self.embed(features)
        return embeddings, self.gp_inputs(embeddings)

    def attention_posterior(
        self, features: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
        """Return mean and variance of the attention logits $q(f_i)$."""
        posterior = self.posterior(features)
        return posterior.mean, posterior.variance

    def kl(self) -> Float[Tensor, ""]:
        """Divergence of the inducing values' posterior from their prior."""
        return self.gp.kl()

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
        whitening, (embeddings, inputs) = side_by_side(
            batch.features.device,
            self.gp.whitening,
            lambda: by_chunks(self._embed_and_project, batch.features),
        )
        logits_of_attention = draw(
            self.gp,
            inputs,
            segments,
            scheme=self.settings.sampling,
            num_samples=self.settings.num_samples,
            noise=noise,
            whitening=whitening,
        )
        if self.settings.activation == "softmax":
            attention = bag_softmax(logits_of_attention, segments)
        else:
            attention = logits_of_attention.sigmoid()
        weights = pooling_weights(attention, segments, self.settings.pooling)
        # Not in half precision: of thousands of instances, each adds a little.
        with torch.autocast(weights.device.type, enabled=False):
            classes = self.classifier.weight
            instance_logits = embeddings.to(classes.dtype) @ classes.T
            # The classifier is linear: to pool its outputs takes less than to pool its inputs.
            logits = pool(weights, instance_logits, segments) + self.classifier.bias
        return ModelOutput(
            logits=logits,
            attention=attention,
            weights=weights,
            instance_logits=instance_logits,
            instance_bias=self.classifier.bias if self._weighs_one_fully else None,
        )

    def loss(self, output: ModelOutput, labels: Int[Tensor, " B"], num_bags: int) -> Loss:
        """Negative ELBO a bag: the samples' negative log-likelihood, and KL / num_bags."""
        nll = negative_log_likelihood(self.target, output.logits, labels, self.settings.likelihood)
        return Loss.of(nll=nll, kl=self.settings.kl_factor * self.kl() / num_bags)

    @torch.no_grad()
    def initialise(self, sample: BagBatch, *, seed: int) -> None:
        """Fit the standardisation, and place kernel and inducing points by the data."""
        super().initialise(sample, seed=seed)
        settings = self.settings
        if settings.inducing_start == "uniform" and settings.lengthscale_start != "median":
            return
        inputs = self.gp_inputs(self.embed(sample.features))
        if settings.inducing_start == "kmeans":
            points = kmeans_points(inputs, settings.num_inducing, seed=seed)
            self.gp.inducing_points.copy_(points)
        if settings.lengthscale_start == "median":
            set_lengthscale_from_data(self.gp.kernel, inputs)

    def posterior(self, features: Float[Tensor, "T D"]) -> Posterior:
        """Return the terms of the posterior of the attention logits."""
        return self.gp.posterior(self.gp_inputs(self.embed(features)))
