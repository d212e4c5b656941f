r"""MixMIL: a generalised linear mixed model with attention (Engelmann et al., 2024).

For each of $P$ outputs the features have effects $u_p$ on the attention and $z_p$ on the bag (see
`mixed_effects`). With the features $x_k$ of an instance, which are projected and divided by
$\sqrt Q$, so that an attention logit has the same prior for any number $Q$ of them,

$$ w_{kp} = \mathrm{softmax}_k(x_k \cdot u_p), \quad b_p = \mathrm{rms}(z_p), \quad
   r_p = \sum_k w_{kp}\, \frac{x_k \cdot z_p}{b_p}, \quad
   \ell_p = \alpha_p + b_p \frac{r_p - \bar r_p}{\mathrm{sd}(r_p)}, $$

where mean and deviation are over bags. Two classes have one output and the logits $(0, \ell)$;
more classes have one each. The loss of a bag is $-\mathrm E_q[\log p_y]$ plus the divergence of the
effects' posterior $q$ over the number of bags.

The published code takes mean and deviation of $r$ from the batch that it predicts, so that a bag
alone always gets 0, and leaves out the intercept. Here training takes those of the batch
where it has `MIN_BAGS` bags or more, and running ones otherwise. Prediction draws the same
functions of the posterior every time; each has its own statistics over the training bags, which
`MixMIL.conclude` computes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.errors import SettingsError
from sgpmil.gp.noise import FreshNoise, Noise, RepeatableNoise
from sgpmil.models.contract import Loss, MILModel, ModelOutput, ModelSettings, Recordable
from sgpmil.models.likelihood import negative_log_likelihood
from sgpmil.models.mixed_effects import COVARIANCES, Covariance, EffectPosterior, fit_mean_model
from sgpmil.models.pooling import bag_softmax, pool
from sgpmil.models.registry import register
from sgpmil.shapes import Float, Int

MIN_BAGS = 16
"""Bags of a batch from which on training standardises by the batch's own statistics."""

_MOMENTUM = 0.1
_MIN_STD = 1e-6
_Likelihood = Literal["auto", "bernoulli", "categorical"]


@dataclass(frozen=True)
class MixMILSettings(ModelSettings):
    """Settings of MixMIL.

    Args:
        projection_dim: Number of features after a learnt projection; 0 leaves them as they are.
        covariance: Whether effects are correlated in the posterior.
        likelihood: ``bernoulli`` has one output for two classes, ``categorical`` one per class;
            ``auto`` is the former for two classes and the latter for more.
        num_samples: Number of samples that prediction draws.
        num_train_samples: Number of samples that a training step draws.
        kl_factor: Weight of the KL divergence.
    """

    projection_dim: int = 512
    covariance: Covariance = "full"
    likelihood: _Likelihood = "auto"
    num_samples: int = 30
    num_train_samples: int = 8
    kl_factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("covariance", COVARIANCES)
        self.check_choice("likelihood", get_args(_Likelihood))
        self.check_at_least(0, "projection_dim", "kl_factor")
        self.check_at_least(1, "num_samples", "num_train_samples")


@dataclass(frozen=True, slots=True)
class _Mixture:
    r"""Results of R sampled functions for the instances and bags of a batch.

    Args:
        weights: Softmax weights $w$ of the instances.
        values: $x_k \cdot z / b$ of the instances.
        effects: $r$ of the bags.
        scale: $b$.
    """

    weights: Float[Tensor, "R P T"]
    values: Float[Tensor, "R P T"]
    effects: Float[Tensor, "R P B"]
    scale: Float[Tensor, "R P"]


@register(
    "mixmil",
    # Engelmann et al., AISTATS 2024: the mean over a step's bags needs many of them.
    training={
        "warmup_epochs": 0,
        "epochs": 1000,
        "optimiser": "adam",
        "learning_rate": 1e-3,
        "weight_decay": 0.0,
        "schedule": "constant",
        "bags_per_step": 64,
        "gradient_clip": 0.0,
        "balanced_sampling": False,
    },
)
class MixMIL(MILModel):
    """The model of this module; its arguments are those of `MILModel`.

    Raises:
        SettingsError: The likelihood is Bernoulli, but there are more than two classes.
    """

    is_probabilistic: ClassVar[bool] = True
    recordable = Recordable.BAGS
    settings: MixMILSettings
    effect_mean: Tensor
    effect_std: Tensor
    bags_seen: Tensor

    def __init__(self, in_dim: int, num_outputs: int, settings: MixMILSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        if settings.likelihood == "bernoulli" and num_outputs > 2:
            raise SettingsError(
                "Expected two classes for the likelihood 'bernoulli', "
                f"but got {num_outputs}. Use 'categorical'."
            )
        is_bernoulli = num_outputs == 2 and settings.likelihood != "categorical"
        num_heads = 1 if is_bernoulli else num_outputs
        num_features = settings.projection_dim or self.feature_dim
        self.projection: nn.Module = nn.Identity()
        if settings.projection_dim:
            self.projection = nn.Linear(self.feature_dim, num_features)
            # The origin of the features has no effect but through running statistics.
            nn.init.zeros_(self.projection.bias)
        self.posterior = EffectPosterior(num_heads, num_features, settings.covariance)
        self.intercept = nn.Parameter(torch.zeros(num_heads))
        # Mean and deviation of r over training bags: of the posterior's mean, and of each
        # function that prediction draws.
        rows = 1 + settings.num_samples
        self.register_buffer("effect_mean", torch.zeros(rows, num_heads))
        self.register_buffer("effect_std", torch.ones(rows, num_heads))
        self.register_buffer("bags_seen", torch.zeros(num_outputs))
        self._frozen: Tensor | None = None

    def forward(self, batch: BagBatch, noise: Noise | None = None) -> ModelOutput:
        """Classify the bags of a packed batch.

        Args:
            batch: The bags.
            noise: Source of the draws. By default fresh in training, and in prediction that of
                the functions whose statistics the model has; the statistics of functions from
                any other source are taken to be those of the posterior's mean.
        """
        if self.training:
            draws = self.posterior.draw(noise or FreshNoise(), self.settings.num_train_samples)
            found = self._mix(batch, draws)
            return self._output(batch, found, *self._training_statistics(found.effects))
        rows = slice(None) if noise is None else slice(1)
        found = self._mix(batch, self._mean_and_draws(noise))
        return self._output(
            batch, found, self.effect_mean[rows], self.effect_std[rows], has_mean=True
        )

    def freeze(self) -> None:
        """Keep the functions of prediction."""
        self._frozen = None
        self._frozen = self._mean_and_draws(None)

    def kl(self) -> Float[Tensor, ""]:
        """Divergence of the effects' posterior from their prior."""
        return self.posterior.kl()

    def loss(self, output: ModelOutput, labels: Int[Tensor, " B"], num_bags: int) -> Loss:
        """Negative ELBO a bag: the samples' negative log-likelihood, and KL / num_bags."""
        if self.training:
            # Not by counting: that would wait for the device.
            classes = torch.arange(self.num_outputs, device=labels.device)
            self.bags_seen += (labels.unsqueeze(1) == classes).sum(0)
        nll = negative_log_likelihood(self.target, output.logits, labels, "mean_log_prob")
        return Loss.of(nll=nll, kl=self.settings.kl_factor * self.kl() / num_bags)

    @torch.no_grad()
    def initialise(self, sample: BagBatch, *, seed: int) -> None:
        """Fit the standardisation, and start from a regression of the bags' mean features."""
        super().initialise(sample, seed=seed)
        self.bags_seen.zero_()
        labels = sample.labels.tolist()
        # A class without bags, or bags without a class, leave effects as they are.
        if set(labels) == set(range(self.num_outputs)):
            features = self._features(sample)
            total = features.new_zeros(sample.num_bags, features.shape[1])
            means = total.index_add(0, sample.bag_index, features) / sample.sizes.unsqueeze(1)
            fitted = fit_mean_model(means, labels, len(self.intercept))
            if fitted is not None:
                bag_effects, intercepts = fitted
                self.posterior.start(bag_effects, torch.Generator().manual_seed(seed))
                self.intercept.copy_(intercepts)
        self.conclude([sample])

    @torch.no_grad()
    def conclude(self, batches: Iterable[BagBatch]) -> None:
        """Take the statistics of each function of prediction over the training bags.

        Classes count as often as training drew them, because the intercept was learnt for these
        proportions. Balanced sampling draws rare classes more often than they occur.
        """
        was_training = self.training
        self.eval()
        functions = self._mean_and_draws(None)
        parts, labels = [], []
        for batch in batches:
            moved = batch.to(functions.device, dtype=functions.dtype)
            parts.append(self._mix(moved, functions).effects.double())
            labels.append(moved.labels)
        self.train(was_training)
        r = torch.cat(parts, 2)
        if r.shape[2] < 2:
            return
        share = self._shares(torch.cat(labels))
        mean = r @ share
        # The unbiased variance where bags do not count alike.
        variance = (r - mean.unsqueeze(2)).square() @ share / (1 - share.square().sum())
        self.effect_mean.copy_(mean)
        self.effect_std.copy_(variance.sqrt().clamp(min=_MIN_STD))

    def _features(self, batch: BagBatch) -> Float[Tensor, "T Q"]:
        projected = self.through(self.projection, batch.features)
        return projected.to(self.intercept.dtype) / projected.shape[1] ** 0.5

    def _mean_and_draws(self, noise: Noise | None) -> Float[Tensor, "R P E"]:
        """The functions of prediction: first the posterior's mean, then the samples."""
        if noise is None and self._frozen is not None:
            return self._frozen
        # Always the same seed: the model keeps statistics of each function.
        source = noise or RepeatableNoise()
        draws = self.posterior.draw(source, self.settings.num_samples)
        return torch.cat([self.posterior.mean.unsqueeze(0), draws])

    def _mix(self, batch: BagBatch, functions: Float[Tensor, "R P E"]) -> _Mixture:
        x = self._features(batch)
        shape = functions.shape[:2]
        # Not in half precision: bags differ by little in r.
        with torch.autocast(x.device.type, enabled=False):
            u, z = functions.flatten(0, 1).chunk(2, dim=1)
            scale = z.square().mean(1, keepdim=True).clamp(min=_MIN_STD**2).sqrt()
            weights = bag_softmax(u @ x.T, batch.segments)
            values = (z / scale) @ x.T
            ones = x.new_ones(x.shape[0], 1)
            effects = pool(weights * values, ones, batch.segments).squeeze(2).T
        return _Mixture(
            weights=weights.unflatten(0, shape),
            values=values.unflatten(0, shape),
            effects=effects.unflatten(0, shape),
            scale=scale.view(shape),
        )

    def _output(
        self,
        batch: BagBatch,
        found: _Mixture,
        mean: Float[Tensor, "#R P"],
        std: Float[Tensor, "#R P"],
        *,
        has_mean: bool = False,
    ) -> ModelOutput:
        """Make logits, attention and evidence of the functions.

        Args:
            batch: The bags.
            found: Results of the functions.
            mean: Mean of $r$ over bags.
            std: Deviation of $r$ over bags.
            has_mean: Whether the first function is the posterior's mean and not a sample.
        """
        centre, gain = mean.unsqueeze(2), (found.scale / std).unsqueeze(2)
        outputs = self.intercept.unsqueeze(1) + gain * (found.effects - centre)
        # Weights sum to 1, so that this sums to the logit less the intercept; without the centre
        # it would depend on the origin of the features, which prediction does not.
        values = gain * (found.values - centre)
        evidence = found.weights * values
        samples = slice(int(has_mean), None)
        logits = _logits(outputs)[samples].permute(2, 0, 1)
        if outputs.shape[1] == 1:
            attention = found.weights.squeeze(1)
        else:
            predicted = logits.softmax(-1).mean(1).argmax(1)[batch.bag_index]
            attention = found.weights.gather(1, predicted.expand(len(outputs), 1, -1)).squeeze(1)
        return ModelOutput(
            logits=logits,
            attention=attention[samples],
            weights=attention[samples],
            evidence_samples=_logits(evidence)[samples].mT,
            single_samples=None if self.training else self._alone(values)[samples],
            attention_score=attention[0] if has_mean else None,
        )

    def _alone(self, values: Float[Tensor, "R P T"]) -> Float[Tensor, "R T C"]:
        """Return the logits of bags of one instance, whose weight is 1."""
        return _logits(self.intercept.unsqueeze(1) + values).mT

    def _training_statistics(
        self, effects: Float[Tensor, "S P B"]
    ) -> tuple[Float[Tensor, "#S P"], Float[Tensor, "#S P"]]:
        """Return mean and deviation of $r$ to standardise by, and update the running ones."""
        num_bags = effects.shape[2]
        running_mean = self.effect_mean[1:].mean(0)
        running_variance = self.effect_std[1:].square().mean(0)
        mean = effects.mean(2)
        # A bag alone does not deviate from its own mean.
        centre = mean if num_bags > 1 else running_mean.expand_as(mean)
        squares = (effects - centre.unsqueeze(2)).square()
        variance = squares.sum(2) / max(num_bags - 1, 1)
        next_variance = running_variance.lerp(variance.detach().mean(0), _MOMENTUM)
        self.effect_mean.copy_(running_mean.lerp(mean.detach().mean(0), _MOMENTUM))
        self.effect_std.copy_(next_variance.sqrt().clamp(min=_MIN_STD))
        if num_bags >= MIN_BAGS:
            return mean, variance.clamp(min=_MIN_STD**2).sqrt()
        return running_mean.unsqueeze(0), running_variance.sqrt().unsqueeze(0)

    def _shares(self, labels: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the weight of each bag: classes weigh as often as training drew them."""
        seen = self.bags_seen.double()
        counts = labels.clamp(min=0).bincount(minlength=self.num_outputs)
        weight = (seen / counts.clamp(min=1))[labels.clamp(min=0)]
        if bool((labels < 0).any()) or bool((weight == 0).any()):
            weight = torch.ones_like(weight)
        return weight / weight.sum()


def _logits(outputs: Float[Tensor, "R P N"]) -> Float[Tensor, "R C N"]:
    """Add the logit of the first of two classes, 0, where they share an output."""
    is_shared = outputs.shape[1] == 1
    return torch.cat([torch.zeros_like(outputs), outputs], 1) if is_shared else outputs
