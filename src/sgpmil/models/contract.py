"""What every model takes and gives."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.shapes import Float, Int

__all__ = ["Loss", "MILModel", "ModelOutput"]


@dataclass(frozen=True, slots=True)
class ModelOutput:
    r"""What a model says of a packed batch.

    Args:
        logits: Class logits of each bag and sample.
        attention: Attention of each sample for each instance, as the model defines it.
        weights: The weight $\tilde a_{si}$ with which an instance's embedding enters its bag's:
            the attention after the pooling's normalisation.
        instance_logits: $w_c^\top h_i$ where the classifier is linear in the pooled embedding, so
            that $\sum_i \tilde a_{si}\, w_c^\top h_i$ is the bag's logit less its bias.
        penalties: Terms that the loss adds, by name.
    """

    logits: Float[Tensor, "B S C"]
    attention: Float[Tensor, "S T"]
    weights: Float[Tensor, "S T"]
    instance_logits: Float[Tensor, "T C"] | None = None
    penalties: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)

    @property
    def score(self) -> Float[Tensor, " T"]:
        """The attention of each instance, averaged over samples."""
        return self.attention.mean(0)

    @property
    def probs(self) -> Float[Tensor, "B S C"]:
        """Class probabilities of each bag and sample."""
        return self.logits.softmax(-1)

    @property
    def evidence(self) -> Float[Tensor, "T C"] | None:
        r"""$\mathrm E_s[\tilde a_{si}]\, w_c^\top h_i$: an instance's share in each logit."""
        if self.instance_logits is None:
            return None
        return self.weights.mean(0).unsqueeze(1) * self.instance_logits


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss and the terms it is the sum of.

    Args:
        total: What is minimised.
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
        num_classes: Number of classes.
        settings: The model's settings, a frozen dataclass.
    """

    is_probabilistic: ClassVar[bool] = False
    """Whether the model gives more than one sample, and so a standard deviation."""

    name: str = ""
    """The name under which the registry built the model."""

    def __init__(self, in_dim: int, num_classes: int, settings: Any) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.num_classes = num_classes
        self.settings = settings

    @abstractmethod
    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch."""

    def loss(self, output: ModelOutput, labels: Int[Tensor, " B"], num_bags: int) -> Loss:
        """Compute what training minimises: an average over bags.

        Args:
            output: What `forward` gave.
            labels: Class index of each bag.
            num_bags: Number of bags of the training set, over which terms that belong to the
                whole model (a KL divergence) are spread.
        """
        return Loss.of(
            cross_entropy=F.cross_entropy(output.logits.mean(1), labels), **output.penalties
        )

    def initialise(self, features: Float[Tensor, "T D"], *, seed: int) -> None:
        """Adapt what depends on the data before training starts.

        Args:
            features: A sample of the training instances.
            seed: Seed of whatever is drawn.
        """

    def num_parameters(self) -> int:
        """Count the trainable parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)
