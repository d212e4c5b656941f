r"""CLAM: attention pooling that also classifies its extreme instances (Lu et al., 2021).

$h_i = \mathrm{ReLU}(W_1 x_i + b_1)$, $e_{ir} = u_r^\top(\tanh(V h_i) \odot \sigma(U h_i))$ and
$a_{\cdot r} = \mathrm{softmax}(e_{\cdot r})$ over the bag, for one branch $r$ (``single``,
CLAM-SB) or one per class (``per_class``, CLAM-MB). The bag's embedding is $z_r = \sum_i a_{ir} h_i$
and its logit $\ell_c = w_c^\top z_{r(c)} + b_c$, with $r(c) = 1$ or $c$.

Each class has an instance classifier $g_c(h) \in \mathbb R^2$. In a bag of class $y$ the $k$
instances with the most attention are positive for $g_y$ and the $k$ with the least negative; with
``subtyping``, where classes exclude each other patch by patch, the $k$ with the most are negative
for every other $g_c$ and the sum is divided by the number of classes. They are scored by the
smooth top-1 SVM, $\log \sum_j \exp(s_j + [j \ne t] - s_t)$: a cross-entropy with a unit margin.
The selection has no gradient; the embeddings of the selected have.

In a bag of $N$ instances $k = \min(B, \lfloor N / 2 \rfloor)$, so that no instance is on both
sides, and a bag of one instance has none. (The published code
takes $B$ always, and fails on a smaller bag.)
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.chunks import by_chunks
from sgpmil.models.contract import Loss, MILModel, ModelOutput, ModelSettings, Recordable
from sgpmil.models.embedding import relu_layers
from sgpmil.models.pooling import bag_softmax, pool
from sgpmil.models.registry import ONE_BAG_A_STEP, register
from sgpmil.shapes import Float, Int


@dataclass(frozen=True)
class CLAMSettings(ModelSettings):
    """Settings of CLAM.

    Args:
        hidden_dim: Width of the embedding.
        attention_dim: Width of the attention's hidden layer.
        dropout: Dropout of the embedding and of both factors of the gated attention.
        branches: One attention for all classes, or one per class.
        instances_per_side: Most instances of a bag that are taken as positive, and as negative.
        instance_weight: Weight of the instance loss; the bag loss has the rest. At 0 there are no
            instance classifiers.
        subtyping: Whether a bag's foremost instances are negative for the other classes.
    """

    hidden_dim: int = 512
    attention_dim: int = 384
    dropout: float = 0.25
    branches: Literal["single", "per_class"] = "single"
    instances_per_side: int = 8
    instance_weight: float = 0.3
    subtyping: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "hidden_dim", "attention_dim", "instances_per_side")
        # Without any weight on the bags there would be no classifier of them.
        self.check_dropout("dropout", "instance_weight")
        self.check_choice("branches", ("single", "per_class"))


CLAM_TRAINING = {
    **ONE_BAG_A_STEP,
    "epochs": 200,
    "optimiser": "adam",
    "learning_rate": 1e-4,
    "weight_decay": 1e-5,
    "schedule": "constant",
    "select": "best",
    "patience": 20,
    "min_epochs": 50,
    "validation": "optional",
}
"""Training of Lu et al., Nature Biomedical Engineering 2021."""


@register(
    "clam-mb",
    settings={"branches": "per_class"},
    presets={"released": {"instances_per_side": 32, "standardise": False}},
    training=CLAM_TRAINING,
)
@register(
    "clam-sb",
    presets={"released": {"instances_per_side": 32, "standardise": False}},
    training=CLAM_TRAINING,
)
class CLAM(MILModel):
    """The model of this module; its arguments are those of `MILModel`."""

    recordable = Recordable.STEPS
    settings: CLAMSettings

    def __init__(self, in_dim: int, num_outputs: int, settings: CLAMSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        width, attention_dim = settings.hidden_dim, settings.attention_dim
        self.mlp = relu_layers((self.feature_dim, width))
        self.value = nn.Linear(width, attention_dim)
        self.gate = nn.Linear(width, attention_dim)
        num_branches = 1 if settings.branches == "single" else num_outputs
        self.attention = nn.Linear(attention_dim, num_branches)
        self.dropout = nn.Dropout(settings.dropout)
        self.classifier = nn.Linear(
            width, num_outputs
        )  # a row for each class, in both kinds of branches
        # Scores of all classes side by side: (negative, positive) for class 0, for class 1, ...
        self.instance_classifiers = (
            nn.Linear(width, 2 * num_outputs) if settings.instance_weight > 0 else None
        )

    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch.

        With ``per_class`` branches, the attention is that of the predicted class of each bag.
        """
        embeddings, attended = by_chunks(self._attend, batch.features)
        attention_logits = attended.T
        bag_index = batch.bag_index
        attention = bag_softmax(attention_logits, batch.segments)
        bag_embeddings = pool(attention, embeddings, batch.segments)
        instance_logits = embeddings @ self.classifier.weight.T
        extras = self._loss_inputs(embeddings, attention_logits, batch)
        if self.settings.branches == "single":
            return ModelOutput(
                logits=self.classifier(bag_embeddings),
                attention=attention,
                weights=attention,
                instance_logits=instance_logits,
                instance_bias=self.classifier.bias,
                extras=extras,
            )
        logits = (bag_embeddings * self.classifier.weight).sum(-1) + self.classifier.bias
        branch = logits.argmax(1)[bag_index]
        return ModelOutput(
            logits=logits.unsqueeze(1),
            attention=attention.gather(0, branch.unsqueeze(0)),
            instance_logits=instance_logits,
            instance_bias=self.classifier.bias,
            evidence_samples=(attention.T * instance_logits).unsqueeze(0),
            extras=extras,
        )

    def _attend(
        self, features: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, "T H"], Float[Tensor, "T R"]]:
        """Return embeddings, and the attention before the softmax, a column for each branch."""
        embeddings = self.dropout(self.mlp(self.prepare(features)))
        value = self.dropout(self.value(embeddings).tanh())
        gate = self.dropout(self.gate(embeddings).sigmoid())
        return embeddings, self.attention(value * gate)

    def loss(self, output: ModelOutput, labels: Int[Tensor, " B"], num_bags: int) -> Loss:
        """Cross-entropy of the bags and smooth SVM of their extreme instances, weighted."""
        cross_entropy = F.cross_entropy(output.logits.squeeze(1), labels)
        if self.instance_classifiers is None:
            return Loss.of(cross_entropy=cross_entropy)
        weight = self.settings.instance_weight
        return Loss.of(
            cross_entropy=(1 - weight) * cross_entropy,
            instance=weight * self._instance_loss(output, labels),
        )

    def _loss_inputs(
        self,
        embeddings: Float[Tensor, "T H"],
        attention_logits: Float[Tensor, "R T"],
        batch: BagBatch,
    ) -> dict[str, Tensor]:
        if self.instance_classifiers is None:
            return {}
        return {
            "instance_scores": self.instance_classifiers(embeddings),
            # Logits order instances as attention does, but do not underflow to equal zeros.
            "attention_logits": attention_logits.detach(),
            "offsets": batch.offsets,
            "bounds": batch.segments.bounds,
        }

    def _instance_loss(self, output: ModelOutput, labels: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        found = output.extras
        scores = found["instance_scores"].unflatten(1, (self.num_outputs, 2))
        segments = Segments(found["offsets"], found["bounds"])
        most, least = extreme_instances(
            found["attention_logits"], segments, self.settings.instances_per_side
        )
        # All bags have equally many places, and small bags leave some empty: to count the places
        # would mean to wait for the device.
        places = torch.arange(most.shape[2], device=labels.device)
        bags = torch.arange(len(labels), device=labels.device)
        taken = (segments.sizes[bags] // 2).clamp(max=len(places)).unsqueeze(1)
        is_taken, divisor = places < taken, taken.clamp(min=1)
        branch = labels if len(most) > 1 else torch.zeros_like(labels)
        foremost, hindmost = most[branch, bags], least[branch, bags]
        own = labels.unsqueeze(1)
        positive = smooth_top1_svm(scores[foremost, own], torch.ones_like(foremost))
        negative = smooth_top1_svm(scores[hindmost, own], torch.zeros_like(hindmost))
        total = ((positive + negative) / (2 * divisor)).where(is_taken, 0).sum()
        if not self.settings.subtyping:
            return total / len(labels)
        classes = torch.arange(self.num_outputs, device=labels.device).view(-1, 1, 1)
        rows = most[:, bags].expand(self.num_outputs, -1, -1)
        others = smooth_top1_svm(scores[rows, classes], torch.zeros_like(rows))
        total = total + (others / divisor).where(is_taken & (classes != own), 0).sum()
        return total / (self.num_outputs * len(labels))


def extreme_instances(
    values: Float[Tensor, "R T"], segments: Segments, count: int
) -> tuple[Int[Tensor, "R B K"], Int[Tensor, "R B K"]]:
    """Return the rows of each bag's instances with the largest and with the smallest values.

    Of equal values the earlier row counts as the larger. Where a bag has fewer than `count`
    instances, the places beyond them hold arbitrary rows.

    Args:
        values: Values of the instances, a row for each ranking.
        segments: Division of the instances into bags.
        count: Number of instances on each side K.

    Example:
        >>> values = torch.tensor([[1.0, 3.0, 2.0, 7.0, 7.0]])
        >>> extreme_instances(values, Segments.of(torch.tensor([0, 3, 5])), 1)
        (tensor([[[1],
                 [3]]]), tensor([[[0],
                 [4]]]))
    """
    # One sort for both ends: two top-k calls can return the same instance of a tie.
    order = values.argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, segments.index[order].argsort(dim=1, stable=True))
    places = torch.arange(count, device=values.device)
    first = segments.bounds[:-1, None] + places
    last = segments.bounds[1:, None] - 1 - places
    within = values.shape[1] - 1
    return order[:, first.clamp(max=within)], order[:, last.clamp(min=0)]


def smooth_top1_svm(
    scores: Float[Tensor, "*R C"], targets: Int[Tensor, "*R"]
) -> Float[Tensor, "*R"]:
    r"""Return $\log \sum_j \exp(s_j + [j \ne t] - s_t)$ of each row, in single precision at least.

    Example:
        >>> smooth_top1_svm(torch.tensor([[50.0, 0.0]]), torch.tensor([1]))
        tensor([51.])
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    is_target = targets.unsqueeze(-1) == torch.arange(scores.shape[-1], device=scores.device)
    own = scores.where(is_target, 0).sum(-1, keepdim=True)
    return (scores + ~is_target - own).logsumexp(-1)
