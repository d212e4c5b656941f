r"""ABMIL: attention-based pooling, plain and gated (Ilse et al., 2018).

$h_i = \mathrm{ReLU}(W_1 x_i + b_1)$, $e_i = w^\top(\tanh(V h_i) \odot \sigma(U h_i))$ (plain:
without the gate), $a = \mathrm{softmax}(e)$ over the bag, $z = \sum_i a_i h_i$.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.chunks import by_chunks
from sgpmil.errors import SettingsError
from sgpmil.models.contract import MILModel, ModelOutput, ModelSettings, Recordable
from sgpmil.models.embedding import relu_layers
from sgpmil.models.pooling import bag_softmax, pool
from sgpmil.models.registry import ONE_BAG_A_STEP, register
from sgpmil.shapes import Float


@dataclass(frozen=True)
class ABMILSettings(ModelSettings):
    """Settings of ABMIL.

    Args:
        hidden_dim: Width of the embedding, which is one layer.
        hidden_dims: Widths of the layers of a deeper embedding, in the place of `hidden_dim`.
        attention_dim: Width of the attention's hidden layer.
        gated: Whether the attention has a sigmoid gate.
        dropout: Dropout of the bag embedding.
    """

    hidden_dim: int = 512
    attention_dim: int = 128
    gated: bool = True
    dropout: float = 0.15
    hidden_dims: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "hidden_dim", "attention_dim")
        self.check_dropout("dropout")
        if min(self.widths) < 1:
            raise SettingsError(
                f"Expected hidden_dims to be widths of at least 1, but got {self.hidden_dims}."
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each layer of the embedding."""
        return tuple(self.hidden_dims) or (self.hidden_dim,)


ABMIL_TRAINING = {
    **ONE_BAG_A_STEP,
    "epochs": 20,
    "optimiser": "adam",
    "learning_rate": 5e-4,
    "weight_decay": 1e-4,
    "schedule": "constant",
}
"""Training of Ilse, Tomczak, Welling, ICML 2018 (bags of MNIST digits; the paper has no slides)."""


@register(
    "abmil",
    presets={
        "released": {"standardise": False},
        # The embedding of SGPMIL, so that the two differ in the attention alone.
        "deep": {"hidden_dims": (768, 384, 256)},
    },
    training=ABMIL_TRAINING,
)
class ABMIL(MILModel):
    """The model of this module; its arguments are those of `MILModel`."""

    recordable = Recordable.STEPS
    settings: ABMILSettings

    def __init__(self, in_dim: int, num_outputs: int, settings: ABMILSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        hidden_dim = settings.widths[-1]
        self.mlp = relu_layers((self.feature_dim, *settings.widths))
        self.value = nn.Linear(hidden_dim, settings.attention_dim)
        self.gate = nn.Linear(hidden_dim, settings.attention_dim) if settings.gated else None
        self.attention = nn.Linear(settings.attention_dim, 1)
        self.dropout = nn.Dropout(settings.dropout)
        self.classifier = nn.Linear(hidden_dim, num_outputs)

    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch."""
        embeddings, attention_logits = by_chunks(self._attend, batch.features)
        attention = bag_softmax(attention_logits.T, batch.segments)
        bag_embeddings = pool(attention, embeddings, batch.segments)
        return ModelOutput(
            logits=self.classifier(self.dropout(bag_embeddings)),
            attention=attention,
            weights=attention,
            instance_logits=embeddings @ self.classifier.weight.T,
            instance_bias=self.classifier.bias,
        )

    def _attend(
        self, features: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, "T H"], Float[Tensor, "T 1"]]:
        """Return embeddings, and the attention before the softmax."""
        embeddings = self.mlp(self.prepare(features))
        hidden = self.value(embeddings).tanh()
        if self.gate is not None:
            hidden = hidden * self.gate(embeddings).sigmoid()
        return embeddings, self.attention(hidden)
