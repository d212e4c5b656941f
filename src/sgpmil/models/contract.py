"""Contract of all models: settings, output, loss, and the class that a model derives from."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.feature_origin import FeatureOrigin
from sgpmil.bags.seen_slides import SeenSlides
from sgpmil.bags.target import ClassTarget, Target
from sgpmil.chunks import by_chunks
from sgpmil.errors import SettingsError
from sgpmil.models.embedding import ENCODERS, Standardise, build_encoder
from sgpmil.models.likelihood import negative_log_likelihood
from sgpmil.models.novelty import Novelty
from sgpmil.models.prevalence import ClassShares, Prevalence, prior_shift
from sgpmil.notebook import counted, html_table, shortened
from sgpmil.shapes import Float, Int

_WORK = ("num_samples", "num_train_samples", "prediction_samples", "pinv_iterations")
"""Settings that multiply the work and have no weights: a small file may claim any number."""
_MOST_WORK = 2**16
"""Four times as many samples as SGPMIL ever draws by itself."""
_LARGEST = 2**53
"""Largest whole number of any other setting, such as a seed."""
_BAGS_OF_ONE = 4096
"""Bags of one instance that pass a model together."""


class Recordable(Enum):
    """The part of a model's training that a GPU may record once and replay.

    A recorded step starts with one call instead of hundreds, which is several times as fast. A
    replay repeats the recorded operations on new numbers, without running Python code: so all
    decisions that Python takes must be the same each time. `NOTHING` is always right; the others
    are promises that a model makes.
    """

    NOTHING = "nothing"
    """Python decides something in each step, or nobody has checked."""

    BAGS = "bags"
    """The forward and backward pass of a bag, replayed for the same bag; or a whole step of several
    bags, where all training bags have one size.

    The model copies nothing to or from the device, keeps state in buffers alone, and its loss
    depends on `MILModel.epoch` through `MILModel.in_warmup` alone.
    """

    STEPS = "steps"
    """A whole step, replayed for other bags with as many rows.

    Features enter through `MILModel.prepare` alone, rows divide into bags by `Segments.bounds`
    alone, and a bag without a label has no part in the loss. Nothing depends on
    `MILModel.epoch`, and no buffer changes but at the start of an epoch, in place.
    """


@dataclass(frozen=True)
class ModelSettings:
    """Settings that every model has.

    Args:
        standardise: Whether features are standardised over the training instances.
        encoder: A network of `sgpmil.models.embedding.ENCODERS` that is trained in front of the
            model, for instances that are not embeddings yet.
    """

    standardise: bool = True
    encoder: str = "none"

    def __post_init__(self) -> None:
        self.check_choice("encoder", tuple(ENCODERS))
        for one in fields(self):
            value = getattr(self, one.name)
            most = _MOST_WORK if one.name in _WORK else _LARGEST
            whole = int if one.name not in _WORK else int | float
            if isinstance(value, whole) and value > most:
                raise SettingsError(
                    f"Expected {one.name} of at most {most:,}, but got {reprlib.repr(value)}."
                )

    def check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        """Refuse a value that is not among the choices."""
        value = getattr(self, name)
        if value not in choices:
            raise SettingsError(
                f"Expected {name} to be one of {', '.join(choices)}, but got '{value}'."
            )

    def check_at_least(self, lowest: int, *names: str) -> None:
        """Refuse values below the lowest, and those that are not numbers."""
        for name in names:
            if not getattr(self, name) >= lowest:
                raise SettingsError(f"Expected {name} >= {lowest}, but got {getattr(self, name)}.")

    def check_dropout(self, *names: str) -> None:
        """Refuse values that are not from 0 to below 1."""
        for name in names:
            if not 0 <= getattr(self, name) < 1:
                raise SettingsError(
                    f"Expected {name} from 0 to below 1, but got {getattr(self, name)}."
                )


@dataclass(frozen=True, slots=True)
class ModelOutput:
    r"""Output of a model for a packed batch.

    Args:
        logits: Class logits of each bag and sample.
        num_different: Number of different samples of each bag, where those of some are repeated
            until all bags have as many.
        attention: Attention of each sample for each instance, as the model defines it; a single
            row where `moments` describe all samples.
        weights: The weight $\tilde a_{si}$ with which an instance's embedding enters its bag's:
            the attention after the pooling's normalisation.
        instance_logits: $w_c^\top h_i$ where the classifier is linear in the pooled embedding, so
            that $\sum_i \tilde a_{si}\, w_c^\top h_i$ is the bag's logit less its bias.
        instance_logits_std: Posterior standard deviation of those, where the classifier's weights
            are independent normal distributions; `instance_logits` are then their means.
        instance_bias: $b_c$ where the pooling weights of a bag of one instance are 1, so that its
            logits are $w_c^\top h_i + b_c$.
        single_samples: Logits of bags that hold one instance each, for each sample, where they are
            not that sum and cost little; in prediction alone.
        evidence_samples: Share of each instance in each logit, for each sample, where it is not
            the product of those two (a pooling per class, an uncertain classifier).
        attention_score: Score of each instance where it is not the attention's mean.
        moments: Mean and standard deviation of the pooling weights, where they are known in closed
            form: scores and evidence then do not depend on the samples.
        penalties: Terms that the loss adds, by name.
        extras: Other tensors that the model's own loss needs.
    """

    logits: Float[Tensor, "B S C"]
    attention: Float[Tensor, "A T"]
    weights: Float[Tensor, "A T"] | None = None
    num_different: Int[Tensor, " B"] | None = None
    instance_logits: Float[Tensor, "T C"] | None = None
    instance_logits_std: Float[Tensor, "T C"] | None = None
    instance_bias: Float[Tensor, " C"] | None = None
    single_samples: Float[Tensor, "S T C"] | None = None
    evidence_samples: Float[Tensor, "S T C"] | None = None
    attention_score: Float[Tensor, " T"] | None = None
    moments: tuple[Float[Tensor, " T"], Float[Tensor, " T"]] | None = None
    penalties: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        bags, samples, outputs = self.logits.shape
        num = self.attention.shape[-1]
        return (
            f"ModelOutput({counted(bags, 'bag')}, {counted(num, 'instance')}, "
            f"{counted(samples, 'sample')}, {counted(outputs, 'output')})"
        )

    @property
    def score(self) -> Float[Tensor, " T"]:
        """Score of each instance: the mean attention, unless the model has another score."""
        if self.moments is not None:
            return self.moments[0]
        return self.attention.mean(0) if self.attention_score is None else self.attention_score

    @property
    def score_std(self) -> Float[Tensor, " T"]:
        """Standard deviation of the attention."""
        return _std(self.attention) if self.moments is None else self.moments[1]

    @property
    def probs(self) -> Float[Tensor, "B S C"]:
        """Class probabilities for the class shares that training drew, of each bag and sample.

        Predictions are of the logits that `MILModel.corrected` gives.
        """
        return self.logits.softmax(-1)

    @property
    def evidence(self) -> Float[Tensor, "T C"] | None:
        r"""$\mathrm E_s[\tilde a_{si}]\, w_c^\top h_i$: an instance's share in each logit."""
        if self.evidence_samples is not None:
            return self.evidence_samples.mean(0)
        if self.instance_logits is None or self.weights is None:
            return None
        mean, _ = self._weight_moments(self.weights)
        return mean * self.instance_logits

    @property
    def evidence_std(self) -> Float[Tensor, "T C"] | None:
        r"""Standard deviation of the evidence.

        Of a product of independent $\tilde a_i$ and $q_{ic} = w_c^\top h_i$ it is
        $\sqrt{\mathrm E[\tilde a]^2 \mathrm{var}(q) + \mathrm{var}(\tilde a) (\mathrm E[q]^2 +
        \mathrm{var}(q))}$.
        """
        if self.evidence_samples is not None:
            return _std(self.evidence_samples)
        if self.instance_logits is None or self.weights is None:
            return None
        variance = None if self.instance_logits_std is None else self.instance_logits_std.square()
        return self._product_std(self.weights, self.instance_logits, variance)

    @property
    def margin_std(self) -> Float[Tensor, "T C"] | None:
        """Standard deviation of each class's evidence less the mean of the others'.

        Given where it does not follow from the evidence's own: where classes vary on their own.
        """
        samples, std = self.evidence_samples, self.instance_logits_std
        if samples is not None:
            return _std(_margins(samples))
        if self.instance_logits is None or self.weights is None or std is None:
            return None
        variance, C = std.square(), std.shape[1]
        others = (variance.sum(1, keepdim=True) - variance) / (C - 1) ** 2
        return self._product_std(self.weights, _margins(self.instance_logits), variance + others)

    def _weight_moments(
        self, weights: Float[Tensor, "A T"]
    ) -> tuple[Float[Tensor, "T 1"], Float[Tensor, "T 1"]]:
        mean, std = (weights.mean(0), _std(weights)) if self.moments is None else self.moments
        return mean.unsqueeze(1), std.unsqueeze(1)

    def _product_std(
        self,
        weights: Float[Tensor, "A T"],
        values: Float[Tensor, "T C"],
        variance: Float[Tensor, "T C"] | None,
    ) -> Float[Tensor, "T C"]:
        """Return the standard deviation of pooling weights times independent values."""
        mean, std = self._weight_moments(weights)
        if variance is None:
            return std * values.abs()
        return (mean.square() * variance + std.square() * (values.square() + variance)).sqrt()


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss and the terms it is the sum of.

    Args:
        total: Quantity that is minimised.
        terms: Its summands, by name.
    """

    total: Float[Tensor, ""]
    terms: Mapping[str, Float[Tensor, ""]]

    @staticmethod
    def of(**terms: Float[Tensor, ""]) -> "Loss":
        """Sum named terms."""
        return Loss(total=torch.stack(list(terms.values())).sum(), terms=terms)


class MILModel(nn.Module, ABC):
    """A classifier of bags.

    Args:
        in_dim: Number of features of an instance.
        num_outputs: Number of outputs of the target: one per class.
        settings: The model's settings, a frozen dataclass.
    """

    is_probabilistic: ClassVar[bool] = False
    """Whether the model gives more than one sample, and so a standard deviation."""

    settings: ModelSettings
    """The model's settings; a model narrows the annotation to the type of its own."""

    name: str = ""
    """The name under which the registry built the model."""

    target: Target
    """Quantity that is predicted; numbered classes where `build_model` is given no target."""

    origin: FeatureOrigin = FeatureOrigin()
    """Encoder, magnification and patch side of the training bags, where they state them."""

    seen: SeenSlides = SeenSlides()
    """Slides that it was trained and validated on, where `sgpmil.fit` trained it."""

    shares: ClassShares | None = None
    """Class shares of training and of the slides that are predicted; None where nobody said."""

    is_exact: bool = True
    """Whether prediction draws as many samples as each bag needs. Training sets it to False while
    it validates an epoch, for which the first samples are enough."""

    epoch: int = 0
    """Number of the epoch, which training sets; losses may depend on it."""

    def __init__(self, in_dim: int, num_outputs: int, settings: Any) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.target = ClassTarget.numbered(num_outputs)
        self.settings = settings
        self.standardise = Standardise(in_dim)
        self.novelty = Novelty()
        self.encoder, self.feature_dim = build_encoder(settings.encoder, in_dim)

    def extra_repr(self) -> str:
        """Return the line that torch puts at the head of a printed model."""
        return (
            f"{counted(self.in_dim, 'feature')} → {shortened(self.target.names)}, "
            f"{self.num_parameters():,} parameters"
        )

    def _repr_html_(self) -> str:
        facts = {
            "features of an instance": self.in_dim,
            "outputs": shortened(self.target.names),
            "parameters": f"{self.num_parameters():,}",
            "gives standard deviations": "yes" if self.is_probabilistic else "no",
        }
        name = self.name or type(self).__name__
        note = "print(model) shows the layers"
        return html_table(f"Model {name}", ["", ""], list(facts.items()), note)

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the target."""
        return self.target.num_outputs

    @property
    def num_classes(self) -> int:
        """Number of classes, which is that of the outputs."""
        return self.target.num_outputs

    def prepare(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T E"]:
        """Standardise features, and encode them where the model has an encoder."""
        return self.encoder(self.standardise(features))

    def through(self, network: nn.Module, features: Float[Tensor, "T D"]) -> Float[Tensor, "T H"]:
        """Prepare features, and pass them through a network of single instances."""
        (found,) = by_chunks(lambda rows: (network(self.prepare(rows)),), features)
        return found

    @torch.no_grad()
    def single_logits(self, batch: BagBatch, output: ModelOutput) -> Float[Tensor, "S T C"]:
        """Return the logits that the model gives a bag of each instance alone.

        They are those of `forward` for bags of one instance, with the draws that prediction takes
        for any bag. They come from the output of the whole bags where it has them, and otherwise
        from another pass.

        Args:
            batch: The bags; the model is in evaluation mode.
            output: Output of `forward` for them.

        Returns:
            The logits of each sample; one sample where all are equal.
        """
        if output.single_samples is not None:
            return output.single_samples
        if output.instance_logits is not None and output.instance_bias is not None:
            return (output.instance_logits + output.instance_bias).unsqueeze(0)
        T = len(batch.features)
        parts = [
            self.predict_bags_of_one(batch.alone(start, min(start + _BAGS_OF_ONE, T)))
            for start in range(0, T, _BAGS_OF_ONE)
        ]
        return torch.cat(parts).transpose(0, 1)

    def predict_bags_of_one(self, batch: BagBatch) -> Float[Tensor, "B S C"]:
        """Return the logits of bags of one instance; override it where `forward` is slow there."""
        return self(batch).logits

    @property
    def uses_coordinates(self) -> bool:
        """Return whether the output depends on the coordinates of instances."""
        return False

    @property
    def not_exportable(self) -> str:
        """Reason why prediction cannot be a graph for other runtimes; empty where it can.

        A sentence of which the model's name is the subject.
        """
        return ""

    @property
    def takes_noise(self) -> bool:
        """Return whether `forward` takes a source of noise as its second argument."""
        return False

    def freeze(self) -> None:
        """Compute once what depends on the weights alone; they do not change any more."""

    @property
    def in_warmup(self) -> bool:
        """Return whether the loss still leaves out terms, because `epoch` is too small."""
        return False

    @property
    def recordable(self) -> Recordable:
        """The part of training that a GPU may record and replay; see `Recordable`."""
        return Recordable.NOTHING

    @abstractmethod
    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch."""

    def loss(self, output: ModelOutput, labels: Int[Tensor, " B"], num_bags: int) -> Loss:
        """Compute the loss that training minimises: an average over bags.

        Args:
            output: Output of `forward`.
            labels: Label of each bag.
            num_bags: Number of bags of the training set, over which terms that belong to the
                whole model (a KL divergence) are spread.
        """
        fit = negative_log_likelihood(self.target, output.logits, labels, "mean_logits")
        return Loss.of(cross_entropy=fit, **output.penalties)

    def corrected(
        self, logits: Float[Tensor, "... C"], prevalence: Prevalence | None = None
    ) -> Float[Tensor, "... C"]:
        """Shift logits to the class shares that a prediction is for.

        Args:
            logits: Logits of `forward`, which are for the class shares that training drew.
            prevalence: Class shares of the slides, where they are not those of `shares`.

        Raises:
            SettingsError: The prevalence does not fit the classes.
        """
        shift = prior_shift(self.shares, self.target, prevalence)
        if shift is None:
            return logits
        values = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return values + values.new_tensor(shift)

    def initialise(self, sample: BagBatch, *, seed: int) -> None:
        """Prepare the model with training bags, before training starts.

        Args:
            sample: Every training bag, of large ones a part of the instances.
            seed: Seed of random draws.
        """
        del seed
        if self.settings.standardise:
            self.standardise.fit(sample.features)

    def rate_factor(self, name: str) -> float:
        """Return the learning rate of a parameter, as a multiple of the others'.

        Parameters with another factor than 1 are those of distributions, and have no weight decay.
        """
        del name
        return 1.0

    def start_epoch(
        self, epoch: int, *, epochs: int, batches: Iterable[BagBatch], num_bags: int, seed: int
    ) -> bool:
        """Prepare the model for an epoch of training; return whether that changed it.

        Args:
            epoch: Number of the epoch.
            epochs: Number of epochs in all.
            batches: All training bags, on the model's device; they are read when asked for.
            num_bags: Number of training bags.
            seed: Seed of random draws.
        """
        del epoch, epochs, batches, num_bags, seed
        return False

    def conclude(self, batches: Iterable[BagBatch]) -> None:
        """Compute statistics of the training bags that prediction needs, after training."""

    def num_parameters(self) -> int:
        """Count the trainable parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


def _margins(values: Float[Tensor, "*R C"]) -> Float[Tensor, "*R C"]:
    """Return each class's value less the mean of the others'."""
    C = values.shape[-1]
    return (C * values - values.sum(-1, keepdim=True)) / (C - 1)


def _std(samples: Float[Tensor, "S ..."]) -> Float[Tensor, "..."]:
    return samples.std(0, correction=1) if len(samples) > 1 else torch.zeros_like(samples[0])
