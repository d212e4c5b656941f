r"""Baselines without attention, which a model should beat.

They are not published models. Where attention does no better than ``mean-pool``, the labels do
not depend on single instances. Where ``max-pool`` does as well, one instance of a slide is enough.
Where ``bag-size`` does well, the labels depend on the number of patches, which every model whose
pooling grows with the bag can use.

``mean-pool``  $h_i = \mathrm{ReLU}(W_1 x_i + b_1)$, $\ell = W \frac1N \sum_i h_i + b$
``max-pool``   $\ell_c = \max_i (w_c^\top h_i + b_c)$ with the same $h_i$
``bag-size``   $\ell = w (\log_{10} N - 3) + b$
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.errors import SettingsError
from sgpmil.models.abmil import ABMIL_TRAINING
from sgpmil.models.contract import MILModel, ModelOutput, ModelSettings, Recordable
from sgpmil.models.dsmil import critical_instances
from sgpmil.models.embedding import relu_layers
from sgpmil.models.pooling import bag_softmax, pool
from sgpmil.models.registry import register
from sgpmil.shapes import Float

_USUAL_SIZE = 3.0
"""Decimal logarithm of a slide's usual number of patches, about which bag sizes are centred."""


@dataclass(frozen=True)
class PoolSettings(ModelSettings):
    """Settings of a pooling without attention.

    Args:
        hidden_dim: Width of the embedding.
    """

    hidden_dim: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "hidden_dim")


@dataclass(frozen=True)
class BagSizeSettings(ModelSettings):
    """Settings of bag-size: none of its own, and no encoder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder != "none":
            raise SettingsError(
                f"Expected encoder 'none' for bag-size, which reads no features, but got "
                f"'{self.encoder}'."
            )


class _PlainPool(MILModel):
    """Layers of a pooling without attention; its arguments are those of `MILModel`."""

    recordable = Recordable.STEPS
    settings: PoolSettings

    def __init__(self, in_dim: int, num_outputs: int, settings: PoolSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        self.mlp = relu_layers((self.feature_dim, settings.hidden_dim))
        self.classifier = nn.Linear(settings.hidden_dim, num_outputs)


# Nothing is published for plain pooling; it is ABMIL with the attention fixed.
@register("mean-pool", training=ABMIL_TRAINING)
class MeanPool(_PlainPool):
    """The mean embedding of a bag: every instance counts alike."""

    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch."""
        embeddings = self.through(self.mlp, batch.features)
        weights = _uniform(batch, embeddings)
        return ModelOutput(
            logits=self.classifier(pool(weights, embeddings, batch.segments)),
            attention=weights,
            weights=weights,
            instance_logits=embeddings @ self.classifier.weight.T,
            instance_bias=self.classifier.bias,
        )


@register("max-pool", training=ABMIL_TRAINING)
class MaxPool(_PlainPool):
    """The largest logit of a bag's instances: one instance decides for each class.

    The attention is a softmax over the bag of an instance's logit of the predicted class, less the
    mean of its other logits. Only the instances that decide have evidence.
    """

    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch."""
        instance_logits = self.classifier(self.through(self.mlp, batch.features))
        deciding = critical_instances(instance_logits, batch.segments)
        logits = instance_logits.gather(0, deciding)
        bag_index = batch.bag_index
        chosen = instance_logits.gather(1, logits.argmax(1)[bag_index].unsqueeze(1))
        others = (instance_logits.sum(1, keepdim=True) - chosen) / (self.num_outputs - 1)
        is_deciding = torch.zeros_like(instance_logits).scatter(0, deciding, 1.0)
        evidence = is_deciding * (instance_logits - self.classifier.bias)
        return ModelOutput(
            logits=logits.unsqueeze(1),
            attention=bag_softmax((chosen - others).T, batch.segments),
            evidence_samples=evidence.unsqueeze(0),
            single_samples=None if self.training else instance_logits.unsqueeze(0),
        )


@register(
    "bag-size",
    # A logistic regression on one number; nothing is published.
    training={
        "warmup_epochs": 0,
        "epochs": 20,
        "optimiser": "adam",
        "learning_rate": 0.05,
        "weight_decay": 0.0,
        "schedule": "constant",
        "bags_per_step": 8,
    },
)
class BagSize(MILModel):
    """A logistic regression on the number of instances; its arguments are those of `MILModel`.

    No instance has a share in the logits, so there is no evidence, and the attention is uniform.
    """

    settings: BagSizeSettings

    def __init__(self, in_dim: int, num_outputs: int, settings: BagSizeSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        self.classifier = nn.Linear(1, num_outputs)

    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch."""
        # The filler of a recorded step may be empty.
        logarithm = batch.sizes.clamp(min=1).to(self.classifier.weight.dtype).log10()
        return ModelOutput(
            logits=self.classifier((logarithm - _USUAL_SIZE).view(-1, 1, 1)),
            attention=_uniform(batch, self.classifier.weight),
        )


def _uniform(batch: BagBatch, like: Float[Tensor, "..."]) -> Float[Tensor, "1 T"]:
    """Return equal weights of a bag's instances, which sum to 1."""
    # Half precision cannot hold every number of instances.
    sizes = batch.sizes.to(torch.promote_types(like.dtype, torch.float32))
    return sizes.reciprocal()[batch.bag_index].unsqueeze(0)
