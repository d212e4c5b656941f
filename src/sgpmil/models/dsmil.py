r"""DSMIL: attention to the instances that resemble a critical one (Li et al., 2021).

The first stream scores each instance, $c_{ik} = u_k^\top x_i + d_k$; the critical instance of
class $k$ is $m_k = \arg\max_i c_{ik}$. The second compares all with it,
$a_{\cdot k} = \mathrm{softmax}_i(q(x_i)^\top q(x_{m_k}) / \sqrt{Q})$, pools
$z_k = \sum_i a_{ik} v(x_i)$ and classifies all the pooled together,
$\ell^{\text{bag}}_k = b_k + \sum_c W_{kc}^\top z_c$. $q$ is two layers (ReLU, tanh), $v$ the
identity or dropout and one ReLU layer. Weights start orthogonal, biases at zero.

``softmax``  $\ell = \frac12(\ell^{\text{bag}} + c_{m_k k})$ and cross-entropy, for classes that
             exclude each other
``sigmoid``  as published: half the binary cross-entropy of each stream and class. The logits
             are then $\log \sigma(\ell^{\text{bag}})$, whose softmax is the normalised
             sigmoids.

Two sigmoids that are trained on two exclusive classes both learn the log-odds, one with the
opposite sign. A softmax of *their* logits takes the difference, twice the log-odds, and is
overconfident. A softmax of their logarithms gives the probability that each of them states.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.models.contract import Loss, MILModel, ModelOutput, ModelSettings, Recordable
from sgpmil.models.pooling import bag_softmax, pool
from sgpmil.models.registry import ONE_BAG_A_STEP, register
from sgpmil.shapes import Float, Int


@dataclass(frozen=True)
class DSMILSettings(ModelSettings):
    """Settings of DSMIL.

    Args:
        query_dim: Width of both layers of the queries.
        value_network: Whether the features pass a layer before they are pooled.
        dropout: Dropout in front of that layer.
        likelihood: ``softmax`` for classes that exclude each other, or a ``sigmoid`` per class.
    """

    query_dim: int = 128
    value_network: bool = False
    dropout: float = 0.0
    likelihood: Literal["softmax", "sigmoid"] = "softmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "query_dim")
        self.check_dropout("dropout")
        self.check_choice("likelihood", ("softmax", "sigmoid"))
        if self.dropout > 0 and not self.value_network:
            raise SettingsError(
                f"Expected value_network for dropout {self.dropout}, which is in front of it, "
                "but got none."
            )


@register(
    "dsmil",
    presets={"released": {"likelihood": "sigmoid", "standardise": False}},
    # Li, Li, Eliceiri, CVPR 2021.
    training={
        **ONE_BAG_A_STEP,
        "epochs": 50,
        "optimiser": "adam",
        "betas": (0.5, 0.9),
        "learning_rate": 1e-4,
        "weight_decay": 1e-3,
        "schedule": "cosine",
        "min_learning_rate": 5e-6,
        "select": "best",
        "patience": 10,
        "validation": "optional",
    },
)
class DSMIL(MILModel):
    """The model of this module; its arguments are those of `MILModel`."""

    recordable = Recordable.STEPS
    settings: DSMILSettings

    def __init__(self, in_dim: int, num_outputs: int, settings: DSMILSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        width, query_dim = self.feature_dim, settings.query_dim
        self.instance_classifier = nn.Linear(width, num_outputs)
        self.query = nn.Sequential(
            nn.Linear(width, query_dim), nn.ReLU(), nn.Linear(query_dim, query_dim), nn.Tanh()
        )
        self.value = nn.Sequential()  # the identity
        if settings.value_network:
            self.value.extend([nn.Dropout(settings.dropout), nn.Linear(width, width), nn.ReLU()])
        self.bag_classifier = nn.Linear(num_outputs * width, num_outputs)
        for part in (self.instance_classifier, self.query, self.value, self.bag_classifier):
            part.apply(_start_orthogonal)

    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch.

        The attention is that of the predicted class of each bag.
        """
        features = self.prepare(batch.features)
        instance_logits = self.instance_classifier(features)
        critical = critical_instances(instance_logits, batch.segments)
        max_logits = instance_logits.gather(0, critical)
        attention = self._attention(self.query(features), critical, batch)
        values = self.value(features)
        bag_logits = self.bag_classifier(pool(attention, values, batch.segments).flatten(1))
        evidence = None
        if self.settings.likelihood == "softmax":
            logits = (bag_logits + max_logits) / 2
            evidence = self._evidence(attention, values, instance_logits, critical)
        else:
            logits = F.logsigmoid(bag_logits)  # not a sum over instances, so without evidence
        attended = logits.argmax(1)[batch.bag_index]
        return ModelOutput(
            logits=logits.unsqueeze(1),
            attention=attention.gather(0, attended.unsqueeze(0)),
            evidence_samples=evidence,
            single_samples=None if self.training else self._alone(values, instance_logits),
            extras={"bag_logits": bag_logits, "max_logits": max_logits},
        )

    def loss(self, output: ModelOutput, labels: Int[Tensor, " B"], num_bags: int) -> Loss:
        """Cross-entropy of the streams' mean, or half the binary one of each."""
        if self.settings.likelihood == "softmax":
            return super().loss(output, labels, num_bags)
        streams = output.extras["bag_logits"], output.extras["max_logits"]
        bag_logits, max_logits = (stream[: len(labels)] for stream in streams)
        targets = F.one_hot(labels, self.num_outputs).to(bag_logits.dtype)
        return Loss.of(
            bag=F.binary_cross_entropy_with_logits(bag_logits, targets) / 2,
            critical=F.binary_cross_entropy_with_logits(max_logits, targets) / 2,
        )

    def _attention(
        self, queries: Float[Tensor, "T Q"], critical: Int[Tensor, "B C"], batch: BagBatch
    ) -> Float[Tensor, "C T"]:
        # With the critical instances of all bags, which are few, and then of its own alone:
        # T×C×Q is never formed.
        similarity = (queries[critical.flatten()] @ queries.T).unflatten(0, critical.shape)
        own = batch.bag_index.expand(1, critical.shape[1], -1)
        scaled = similarity.gather(0, own).squeeze(0) / math.sqrt(self.settings.query_dim)
        return bag_softmax(scaled, batch.segments)

    def _alone(
        self, values: Float[Tensor, "T E"], instance_logits: Float[Tensor, "T C"]
    ) -> Float[Tensor, "1 T C"]:
        """Return the logits of bags of one instance, critical and fully attended for each class."""
        weight = self.bag_classifier.weight.unflatten(1, (self.num_outputs, -1)).sum(1)
        bag_logits = F.linear(values, weight, self.bag_classifier.bias)
        if self.settings.likelihood == "sigmoid":
            return F.logsigmoid(bag_logits).unsqueeze(0)
        return ((bag_logits + instance_logits) / 2).unsqueeze(0)

    def _evidence(
        self,
        attention: Float[Tensor, "C T"],
        values: Float[Tensor, "T E"],
        instance_logits: Float[Tensor, "T C"],
        critical: Int[Tensor, "B C"],
    ) -> Float[Tensor, "1 T C"]:
        r"""$\frac12 \sum_c a_{ic} W_{kc}^\top v_i + \frac12 [i = m_k] (c_{ik} - d_k)$."""
        weight = self.bag_classifier.weight.view(self.num_outputs * self.num_outputs, -1)
        shares = (values @ weight.T).unflatten(1, (self.num_outputs, self.num_outputs))
        pooled = (shares * attention.T.unsqueeze(1)).sum(2)
        is_critical = torch.zeros_like(instance_logits).scatter(0, critical, 1.0)
        foremost = is_critical * (instance_logits - self.instance_classifier.bias)
        return ((pooled + foremost) / 2).unsqueeze(0)


def critical_instances(
    instance_logits: Float[Tensor, "T C"], segments: Segments
) -> Int[Tensor, "B C"]:
    """Return the row of each bag's instance with the largest logit, the first one, for each class.

    Example:
        >>> logits = torch.tensor([[1.0, 0.0], [3.0, -1.0], [2.0, 2.0]])
        >>> critical_instances(logits, Segments.of(torch.tensor([0, 2, 3])))
        tensor([[1, 0],
                [2, 2]])
    """
    logits = instance_logits.detach()
    num_rows, num_outputs = logits.shape
    index = segments.index.unsqueeze(1).expand_as(logits)
    lowest = logits.new_full((len(segments), num_outputs), -torch.inf)
    peak = lowest.scatter_reduce(0, index, logits, "amax")
    # The largest of a bag with NaN is NaN, which is equal to nothing.
    is_peak = (logits == peak.gather(0, index)) | logits.isnan()
    rows = torch.arange(num_rows, device=logits.device).unsqueeze(1)
    last = index.new_full((len(segments), num_outputs), num_rows - 1)
    return last.scatter_reduce(0, index, rows.where(is_peak, num_rows), "amin")


def _start_orthogonal(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(layer.bias)
