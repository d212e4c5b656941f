r"""DGR-MIL: learnt lesion vectors that attend to the instances (Zhu et al., 2024).

A projection $P$ (two ReLU layers) is shared by instances and $K$ learnt global vectors $G_0$:
$H = \mathrm{LN}(\mathrm{trans}(P(X)))$, $G = P(G_0)$ and $T = \mathrm{LN}(\mathrm{trans}([c; G]))$
with a class token $c$, where $\mathrm{trans}(t) = t + \mathrm{attention}(\mathrm{LN}(t))$ is
Nyström attention. $T$ attends to $H$ by multi-head cross-attention; its first row, through a
linear layer and a LayerNorm, is classified. The instance score is that row of the attention.

Two centres follow the mean projected instance of normal and of other bags. After a warm-up the
loss adds, with $\hat G$ the rows of $G$ scaled to length 1 and $d = 1 - \cos$,

$$ -\log\det(\hat G \hat G^\top + \epsilon I) \quad\text{and}\quad
   \tfrac1K \sum_k \max(0,\; d(G_k, c_+) - d(G_k, c_-) + 1). $$
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.segments import OneSegment, Segments
from sgpmil.errors import SettingsError
from sgpmil.models.contract import Loss, MILModel, ModelOutput, Recordable
from sgpmil.models.nystrom import NystromSettings, PreNormAttention
from sgpmil.models.pooling import pool
from sgpmil.models.registry import ONE_BAG_A_STEP, register
from sgpmil.shapes import Float, Int

_JITTER = 1e-6
"""Added to the Gram matrix, which is singular where a ReLU makes vectors equal or zero."""


@dataclass(frozen=True)
class DGRMILSettings(NystromSettings):
    """Settings of DGR-MIL.

    Args:
        dropout: Dropout of every attention.
        num_lesions: Number of global vectors $K$.
        instance_dropout: Share of the instances that each layer of the projection drops.
        warmup_epochs: Number of epochs without diversity and triplet terms.
        diversity_weight: Weight of the diversity term.
        triplet_weight: Weight of the triplet term.
        centre_update: Weight of a step's bags in the new centre.
        normal_class: Class whose bags hold no lesion.
    """

    dropout: float = 0.4
    num_lesions: int = 5
    instance_dropout: float = 0.1
    warmup_epochs: int = 10
    diversity_weight: float = 0.1
    triplet_weight: float = 0.1
    centre_update: float = 0.6
    normal_class: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "num_lesions")
        self.check_at_least(0, "warmup_epochs", "normal_class")
        self.check_at_least(0, "diversity_weight", "triplet_weight", "centre_update")
        self.check_dropout("instance_dropout")
        if self.centre_update > 1:
            raise SettingsError(
                f"Expected centre_update from 0 to 1, but got {self.centre_update}."
            )


@register(
    "dgrmil",
    presets={"released": {"standardise": False, "zero_padding": True, "warmup_epochs": 20}},
    # Zhu et al., ECCV 2024.
    training={
        **ONE_BAG_A_STEP,
        "epochs": 200,
        "optimiser": "sgd",
        "momentum": 0.9,
        "learning_rate": 5e-4,
        "weight_decay": 1e-4,
        "schedule": "cosine",
        "warmup_epochs": 10,
        "warmup_learning_rate": 0.0,
        "min_learning_rate": 1e-5,
    },
)
class DGRMIL(MILModel):
    """The model of this module; its arguments are those of `MILModel`.

    Raises:
        SettingsError: The normal class is none of the classes.
    """

    recordable = Recordable.BAGS
    settings: DGRMILSettings
    centres: Tensor

    def __init__(self, in_dim: int, num_outputs: int, settings: DGRMILSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        if settings.normal_class >= num_outputs:
            raise SettingsError(
                f"Expected normal_class below the number of classes, but got "
                f"{settings.normal_class} of {num_outputs}."
            )
        dim = settings.hidden_dim
        self.lower = nn.Linear(self.feature_dim, dim)
        self.upper = nn.Linear(dim, dim)
        self.instance_dropout = nn.Dropout1d(settings.instance_dropout)
        self.lesions = nn.Parameter(torch.randn(settings.num_lesions, self.feature_dim))
        self.class_token = nn.Parameter(torch.randn(1, dim))
        self.instance_attention = PreNormAttention(settings)
        self.instance_norm = nn.LayerNorm(dim)
        self.token_attention = PreNormAttention(settings)
        self.token_norm = nn.LayerNorm(dim)
        self.cross_attention = nn.MultiheadAttention(
            dim, settings.num_heads, dropout=settings.dropout
        )
        self.readout = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.classifier = nn.Linear(dim, num_outputs)
        self.register_buffer("centres", torch.randn(2, dim))  # of normal and of other bags

    @property
    def in_warmup(self) -> bool:
        """Return whether the loss still leaves out the diversity and triplet terms."""
        return self.epoch < self.settings.warmup_epochs

    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch."""
        features = self.prepare(batch.features)
        instances = self.instance_dropout(self.lower(features).relu())
        instances = self.instance_dropout(self.upper(instances).relu())
        lesions = self.upper(self.lower(self.lesions.to(features.dtype)).relu()).relu()
        tokens = torch.cat([self.class_token.to(lesions.dtype), lesions])
        tokens = self.token_norm(self.token_attention(tokens, OneSegment.of_rows(tokens))[0])
        attended, _ = self.instance_attention(instances, batch.segments)
        attended = self.instance_norm(attended)
        bag_embeddings, attention = self._cross_attend(tokens, attended, batch.segments)
        embeddings = self.readout(bag_embeddings)
        uniform = batch.sizes.to(self.centres.dtype).reciprocal()[batch.bag_index]
        means = pool(uniform.unsqueeze(0), instances.detach(), batch.segments)
        return ModelOutput(
            logits=self.classifier(embeddings).unsqueeze(1),
            attention=attention,
            extras={"lesions": lesions, "bag_means": means.squeeze(1)},
        )

    def _cross_attend(
        self, tokens: Float[Tensor, "K d"], instances: Float[Tensor, "T d"], segments: Segments
    ) -> tuple[Float[Tensor, "B d"], Float[Tensor, "1 T"]]:
        """Let the class token attend to the instances of each bag; nobody uses the lesions' output.

        Bags of one size are computed together.
        """
        lengths = segments.lengths
        if len(lengths) > 1 and len(set(lengths)) == 1:
            bags = instances.unflatten(0, (-1, lengths[0])).transpose(0, 1)
            queries = tokens[:1].unsqueeze(1).expand(1, len(lengths), -1)
            found, weights = self.cross_attention(queries, bags, bags)
            return found.squeeze(0), weights.flatten().unsqueeze(0)
        pairs = [self.cross_attention(tokens[:1], b, b) for b in instances.split(lengths)]
        return torch.stack([found[0] for found, _ in pairs]), torch.cat([w for _, w in pairs], 1)

    def predict_bags_of_one(self, batch: BagBatch) -> Float[Tensor, "B 1 C"]:
        """Return the logits of bags of one instance, all at once: any token attends to it alone."""
        if not self.instance_attention.attention.is_exact(1):
            return super().predict_bags_of_one(batch)
        instances = self.upper(self.lower(self.prepare(batch.features)).relu()).relu()
        attended = self.instance_attention.attend_exactly(instances.unsqueeze(1))
        key = self.instance_norm(attended).transpose(0, 1)
        found, _ = self.cross_attention(key, key, key)
        return self.classifier(self.readout(found)).transpose(0, 1)

    def loss(self, output: ModelOutput, labels: Int[Tensor, " B"], num_bags: int) -> Loss:
        """Cross-entropy and, after the warm-up, diversity and triplet terms.

        In training, the centres move towards the step's bags afterwards.
        """
        del num_bags
        settings = self.settings
        terms = {"cross_entropy": F.cross_entropy(output.logits.mean(1), labels)}
        if not self.in_warmup:
            lesions = output.extras["lesions"]
            terms["diversity"] = settings.diversity_weight * diversity_penalty(lesions)
            # A copy: its gradient needs the centres as they are now.
            centres = self.centres.clone()
            terms["triplet"] = settings.triplet_weight * triplet_penalty(lesions, centres)
        if self.training:
            self._move_centres(output.extras["bag_means"], labels)
        return Loss.of(**terms)

    @torch.no_grad()
    def _move_centres(self, bag_means: Float[Tensor, "B H"], labels: Int[Tensor, " B"]) -> None:
        is_normal = labels == self.settings.normal_class
        share = self.settings.centre_update
        # Not by indexing: that would wait for the device.
        sides = torch.stack([is_normal, ~is_normal]).to(self.centres.dtype)
        counts = sides.sum(1, keepdim=True)
        means = sides @ bag_means.to(self.centres.dtype) / counts.clamp(min=1)
        moved = (1 - share) * self.centres + share * means
        self.centres.copy_(torch.where(counts > 0, moved, self.centres))


def diversity_penalty(lesions: Float[Tensor, "K H"]) -> Float[Tensor, ""]:
    r"""Return $-\log\det(\hat G \hat G^\top + \epsilon I)$: small where the vectors differ.

    Example:
        >>> round(diversity_penalty(torch.eye(2)).item(), 4)
        -0.0
        >>> diversity_penalty(torch.zeros(2, 3)).isfinite().item()
        True
    """
    with torch.autocast(lesions.device.type, enabled=False):
        unit = F.normalize(lesions.double(), dim=1, eps=_JITTER)
        eye = torch.eye(len(unit), dtype=unit.dtype, device=unit.device)
        return -torch.logdet(unit @ unit.T + _JITTER * eye).to(lesions.dtype)


def triplet_penalty(
    lesions: Float[Tensor, "K H"], centres: Float[Tensor, "2 H"]
) -> Float[Tensor, ""]:
    """Penalise lesion vectors that are nearer to the centre of normal bags than to the other."""
    normal, positive = (1 - F.cosine_similarity(lesions, centre[None]) for centre in centres)
    return (positive - normal + 1).relu().mean()
