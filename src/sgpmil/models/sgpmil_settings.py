"""Settings of SGPMIL and AGP, which are one mechanism: the package's own, and published ones."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from sgpmil.errors import SettingsError
from sgpmil.gp.prior import MEANS, MeanName
from sgpmil.gp.sampling import SAMPLING_SCHEMES, SamplingScheme
from sgpmil.gp.sparse import INDUCING_STARTS, InducingStart
from sgpmil.models.contract import ModelSettings
from sgpmil.models.likelihood import LIKELIHOODS, Likelihood
from sgpmil.models.pooling import POOLINGS, Pooling

_MOST_ROUNDS = 1024
"""Times that samples are drawn one after another in prediction, before they are doubled."""

LengthscaleStart = Literal["log2", "cube", "median", "unit"]


@dataclass(frozen=True)
class SGPMILSettings(ModelSettings):
    """Settings of SGPMIL. The defaults are the package's own; `PRESETS` has published ones.

    Args:
        hidden_dims: Widths of the embedding's layers.
        feature_dropout: Share of the features that a training step leaves out, the same ones for
            all of its instances; the others are scaled up accordingly.
        gp_dim: Number of learned inputs of the Gaussian process.
        num_inducing: Number of inducing points.
        num_samples: Number of posterior samples in training.
        kernel: A name (see `sgpmil.gp.KERNELS`) or any GPyTorch kernel.
        mean: Prior mean of the attention logits.
        mean_scale: Standard deviation of a linear mean's initial weights and bias.
        mean_bias: Initial bias of the mean; None draws it.
        linear_scale: Prior standard deviation of a linear part of the process, which is under the
            KL divergence; None has no such part.
        activation: From attention logits to attention.
        pooling: Normalisation of the attention before the embeddings are summed.
        sampling: Sampling scheme of the posterior of a bag.
        likelihood: Likelihood of the label, given the samples.
        inducing: ``patches``, training instances that are carried through the network at every
            step; or ``points``, which are learned and start at `inducing_start`.
        inducing_start: Initial inducing points.
        renewals: Shares of the epochs after which inducing patches are chosen anew.
        inputs: Inputs of the process: the projection ``standardised`` over the inducing patches,
            or its ``sigmoid``.
        preserved_dim: Number of principal components of the features among standardised inputs.
        preserved_weight: Their weight $w$.
        lengthscale_start: ``unit``, 1, the root mean square distance of standardised inputs;
            ``log2`` as published; ``cube``, half the diagonal of the unit cube in which sigmoids
            lie; or ``median``, the median distance of training inputs.
        outputscale: Initial scale $s$ of the kernel; None leaves it at log 2.
        variational_rate: Learning rate of q(v), of the linear part and of the classifier's standard
            deviations, as a multiple of the network's.
        classifier_scale: Prior standard deviation of the classifier's weights, which then are
            normal distributions; None learns numbers.
        classifier_kl: Weight of their KL divergence beside that of the process. As independent
            distributions they say less than is known of the classifier, the more so the fewer
            bags there are; a weight below 1 makes up for it.
        jitter: Value added to the diagonals of kernel matrices.
        kl_factor: Weight of the KL divergence.
        kl_bags: Fewest training bags by whose number the KL divergence is divided. The labels of
            few bags hardly move a wide prior, and predictions then are not sure enough; with
            this number the posterior of fewer bags is as narrow as if there were so many.
        prediction_samples: Number of posterior samples in prediction, drawn as pairs of opposite
            noise; 0 takes `num_samples` independent ones.
        prediction_error: Standard error of a bag's probabilities above which its samples are
            doubled, up to 32 times as many, fewer of slides of over 17,000 patches; 0 never
            doubles them. It needs `scores` by moments.
        scores: Attention and evidence of instances: ``moments`` of the posterior in closed form,
            where attention is a softmax that is not divided by the bag's size; or ``samples``,
            their mean and standard deviation over samples.
        noise_seed: Seed of the samples that prediction draws.
    """

    hidden_dims: tuple[int, ...] = (512, 256)
    feature_dropout: float = 0.3
    gp_dim: int = 64
    num_inducing: int = 80
    num_samples: int = 30
    kernel: Any = "rbf-alone"
    mean: MeanName = "constant"
    mean_scale: float = 0.1
    mean_bias: float | None = 0.0
    linear_scale: float | None = None
    activation: Literal["sigmoid", "softmax"] = "softmax"
    pooling: Pooling = "sum"
    sampling: SamplingScheme = "inducing"
    likelihood: Likelihood = "mean_log_prob"
    inducing: Literal["points", "patches"] = "patches"
    inducing_start: InducingStart = "uniform"
    renewals: tuple[float, ...] = (0.25, 0.5, 0.7)
    inputs: Literal["sigmoid", "standardised"] = "standardised"
    preserved_dim: int = 32
    preserved_weight: float = 1.0
    lengthscale_start: LengthscaleStart = "unit"
    outputscale: float | None = 4.0
    variational_rate: float = 20.0
    classifier_scale: float | None = 0.3
    classifier_kl: float = 0.3
    jitter: float = 1e-4
    kl_factor: float = 1.0
    kl_bags: int = 200
    prediction_samples: int = 480
    prediction_error: float = 0.002
    scores: Literal["samples", "moments"] = "moments"
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
        self.check_choice("inducing", ("points", "patches"))
        self.check_choice("inputs", ("sigmoid", "standardised"))
        self.check_choice("scores", ("samples", "moments"))
        self.check_at_least(1, "gp_dim", "num_inducing", "num_samples", "kl_bags")
        self.check_at_least(0, "mean_scale", "kl_factor", "noise_seed", "preserved_dim")
        self.check_at_least(0, "preserved_weight", "prediction_samples", "classifier_kl")
        self.check_at_least(0, "prediction_error")
        if self.prediction_samples > _MOST_ROUNDS * self.num_samples:
            raise SettingsError(
                f"Expected prediction_samples of at most {_MOST_ROUNDS} times num_samples, which "
                f"are drawn at once, but got {self.prediction_samples} and {self.num_samples}."
            )
        self.check_dropout("feature_dropout")
        for name in _POSITIVE:
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
                f"them, but got '{self.inducing}'. The preset 'points' has sigmoid inputs."
            )

    @property
    def num_preserved(self) -> int:
        """Number of principal components among the inputs, where the features are as many."""
        return self.preserved_dim if self.inputs == "standardised" else 0

    @property
    def has_moments(self) -> bool:
        """Return whether scores come from the moments of the posterior."""
        sums_to_one = self.activation == "softmax" and self.pooling != "mean"
        return self.scores == "moments" and sums_to_one


_POSITIVE = ("jitter", "variational_rate", "outputscale", "classifier_scale", "linear_scale")

POINTS: dict[str, Any] = {
    "hidden_dims": (768, 384, 256),
    "feature_dropout": 0.0,
    "kernel": "rbf",
    "mean": "linear",
    "inducing": "points",
    "inputs": "sigmoid",
    "preserved_dim": 0,
    "lengthscale_start": "cube",
    "outputscale": None,
    "variational_rate": 1.0,
    "classifier_scale": None,
    "kl_bags": 1,
    "prediction_samples": 0,
    "prediction_error": 0.0,
    "scores": "samples",
}
"""Learned inducing points and a linear mean, as published, with the start and activation that
measured best with them: the default before inducing patches."""

_PAPER = {
    **POINTS,
    "mean_scale": 1.0,
    "mean_bias": None,
    "activation": "sigmoid",
    "sampling": "independent",
    "lengthscale_start": "log2",
    "standardise": False,
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": _PAPER,
    "released": {**_PAPER, "sampling": "shared", "likelihood": "mean_logits"},
    "points": POINTS,
}
"""Settings of SGPMIL by name: of the paper's text, of its released code, and `POINTS`."""

AGP: dict[str, Any] = {
    **POINTS,
    "mean": "constant",
    "mean_bias": 0.0,
    "sampling": "full",
    "likelihood": "log_mean_prob",
    "jitter": 1e-3,
}
"""Settings of AGP that differ from those of SGPMIL."""

AGP_PRESETS: dict[str, dict[str, Any]] = {
    "released": {"likelihood": "mean_logits", "lengthscale_start": "log2", "standardise": False}
}
