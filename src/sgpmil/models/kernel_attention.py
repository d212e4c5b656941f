r"""SA-AbMILP: attention pooling after kernel self-attention (Rymarczyk et al., 2021).

$h_i = \mathrm{ReLU}(W_1 x_i + b_1)$. Each instance compares its query with the keys of its bag,
$\beta_{i\cdot} = \mathrm{softmax}_j(k(q_i, k_j))$, and adds the weighted values,
$o_i = h_i + \gamma \sum_j \beta_{ij} v_j$. Then $a = \mathrm{softmax}(u^\top \tanh(V o_i))$ over
the bag and $z = \sum_i a_i o_i$, from which the class logits are linear.

``gaussian``           $\exp(-s \lVert q_i - k_j \rVert^2)$
``inverse-quadratic``  $1 / (s \lVert q_i - k_j \rVert^2 + 1)$
``dot``                $q_i^\top k_j$
``laplace``            $-\lVert q_i - k_j \rVert_1$
``module``             $\lVert q_i - k_j \rVert_1 - \lVert q_i \rVert_1 - \lVert k_j \rVert_1$

The first two kernels lie between 0 and 1. After the softmax, one instance can therefore weigh at
most $e$ times another.

The published scale is $s = \mathrm{ReLU}(\gamma_{\text{att}})$, started at 1: once it is not
positive it never receives a gradient again. Here the parameter is $\log s$. On queries of 64
features, of standardised embeddings, squared distances are above 50, and both the kernel and its
gradient vanish at $s = 1$. So $s$ starts at $1 / Q$ unless set otherwise.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.models.contract import MILModel, ModelOutput, ModelSettings, Recordable
from sgpmil.models.embedding import relu_layers
from sgpmil.models.pooling import bag_softmax, pool
from sgpmil.models.registry import ONE_BAG_A_STEP, register
from sgpmil.shapes import Float

AttentionKernel = Literal["gaussian", "dot", "inverse-quadratic", "laplace", "module"]
_SCALED = ("gaussian", "inverse-quadratic")
_ABSOLUTE = ("laplace", "module")
_BLOCK_ENTRIES = 2**24
_EXPORTED_BLOCKS = 32
"""Blocks of an exported graph: of 50,000 instances, a block has 80 million entries."""
_BLOCK_ENTRIES_L1 = 2**20  # the derivative of such a distance holds Q numbers an entry


@dataclass(frozen=True)
class KernelAttentionSettings(ModelSettings):
    r"""Settings of kernel self-attention.

    Args:
        hidden_dim: Width of the embedding.
        query_dim: Width of queries and keys.
        attention_dim: Width of the pooling attention's hidden layer.
        dropout: Dropout of the embedding.
        kernel: Kernel that compares a query with a key.
        scale_start: Initial scale of the ``gaussian`` and ``inverse-quadratic`` kernel: one over
            the width of the queries, or ``one`` as published.
        residual_start: Initial weight $\gamma$ of the self-attention's result.
    """

    hidden_dim: int = 512
    query_dim: int = 64
    attention_dim: int = 128
    dropout: float = 0.2
    kernel: AttentionKernel = "gaussian"
    scale_start: Literal["width", "one"] = "width"
    residual_start: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "hidden_dim", "query_dim", "attention_dim")
        self.check_dropout("dropout")
        self.check_choice("kernel", get_args(AttentionKernel))
        self.check_choice("scale_start", ("width", "one"))


class KernelSelfAttention(nn.Module):
    """Self-attention among the instances of a bag, with a kernel.

    Only one block of rows of the matrix of all pairs exists at a time. Where a bag has several
    blocks, the backward pass computes them again instead of keeping them.

    Args:
        dim: Width of the embeddings.
        query_dim: Width of queries and keys.
        kernel: Kernel that compares a query with a key.
        scale: Initial scale of the kernel, where it has one.
        residual: Initial weight of the result.
    """

    def __init__(
        self, dim: int, query_dim: int, kernel: str, *, scale: float, residual: float
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.block_entries = _BLOCK_ENTRIES_L1 if kernel in _ABSOLUTE else _BLOCK_ENTRIES
        self.query = nn.Linear(dim, query_dim)
        self.key = nn.Linear(dim, query_dim)
        self.value = nn.Linear(dim, dim)
        self.residual = nn.Parameter(torch.tensor(residual))
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale))) if kernel in _SCALED else None

    def forward(self, embeddings: Float[Tensor, "T H"], segments: Segments) -> Float[Tensor, "T H"]:
        """Attend within each bag, and add the result to the embeddings."""
        # Split at once: the gradient of a slice is as large as what it was taken from.
        sizes = segments.lengths
        parts = (f(embeddings).split(sizes) for f in (self.query, self.key, self.value))
        found = [block for bag in zip(*parts, strict=True) for block in self._rows(*bag)]
        return embeddings + self.residual * torch.cat(found)

    def _rows(
        self,
        queries: Float[Tensor, "N Q"],
        keys: Float[Tensor, "N Q"],
        values: Float[Tensor, "N H"],
    ) -> list[Float[Tensor, "_ H"]]:
        if torch.compiler.is_exporting():
            return self._few_blocks(queries, keys, values)
        blocks = queries.split(max(1, self.block_entries // len(keys)))
        if len(blocks) == 1 or not torch.is_grad_enabled():
            return [self._attend(block, keys, values) for block in blocks]
        return [
            checkpoint(
                self._attend, block, keys, values, use_reentrant=False, preserve_rng_state=False
            )
            for block in blocks
        ]

    def _few_blocks(
        self,
        queries: Float[Tensor, "N Q"],
        keys: Float[Tensor, "N Q"],
        values: Float[Tensor, "N H"],
    ) -> list[Float[Tensor, "_ H"]]:
        """Attend in a fixed number of blocks, for a graph that has no loop over its rows."""
        num_rows = queries.shape[0]
        of_block = (num_rows + _EXPORTED_BLOCKS - 1) // _EXPORTED_BLOCKS
        # Blocks beyond the last row repeat it.
        rows = torch.arange(_EXPORTED_BLOCKS * of_block).clamp(max=num_rows - 1)
        blocks = queries.index_select(0, rows).view(_EXPORTED_BLOCKS, of_block, -1)
        found = torch.cat([self._attend(block, keys, values) for block in blocks.unbind(0)])
        return [found.index_select(0, torch.arange(num_rows))]

    def _attend(
        self,
        queries: Float[Tensor, "R Q"],
        keys: Float[Tensor, "N Q"],
        values: Float[Tensor, "N H"],
    ) -> Float[Tensor, "R H"]:
        return self.energy(queries, keys).softmax(1).to(values.dtype) @ values

    def energy(
        self, queries: Float[Tensor, "R Q"], keys: Float[Tensor, "N Q"]
    ) -> Float[Tensor, "R N"]:
        """Compare queries with keys, up to terms that a softmax over the keys cancels."""
        # Not in half precision: a distance is a small difference of large numbers.
        with torch.autocast(queries.device.type, enabled=False):
            if queries.dtype in (torch.float16, torch.bfloat16):
                queries, keys = queries.float(), keys.float()
            if self.log_scale is not None:
                inner = queries @ keys.T
                norms = queries.square().sum(1, keepdim=True) + keys.square().sum(1)
                scaled = self.log_scale.exp() * (norms - 2 * inner).clamp(min=0)
                return (-scaled).exp() if self.kernel == "gaussian" else 1 / (scaled + 1)
            if self.kernel == "dot":
                return queries @ keys.T
            distance = torch.cdist(queries, keys, p=1)
            # The norm of a query is the same for all keys.
            return -distance if self.kernel == "laplace" else distance - keys.abs().sum(1)


@register(
    "kernel-attention",
    presets={"released": {"scale_start": "one", "standardise": False}},
    # Rymarczyk et al., WACV 2021, who do not publish how training stops before its 200 epochs.
    training={
        **ONE_BAG_A_STEP,
        "epochs": 200,
        "optimiser": "adam",
        "learning_rate": 1e-4,
        "weight_decay": 5e-3,
        "schedule": "step",
        "decay": 0.1,
        "decay_epochs": 60,
        "select": "best",
        "patience": 20,
        "validation": "optional",
    },
)
class KernelAttention(MILModel):
    """The model of this module; its arguments are those of `MILModel`.

    The evidence is that of $o_i$: of an instance with what the self-attention added to it.
    """

    settings: KernelAttentionSettings

    def __init__(self, in_dim: int, num_outputs: int, settings: KernelAttentionSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        self.mlp = relu_layers((self.feature_dim, settings.hidden_dim))
        self.dropout = nn.Dropout(settings.dropout)
        self.self_attention = KernelSelfAttention(
            settings.hidden_dim,
            settings.query_dim,
            settings.kernel,
            scale=1.0 if settings.scale_start == "one" else 1 / settings.query_dim,
            residual=settings.residual_start,
        )
        self.value = nn.Linear(settings.hidden_dim, settings.attention_dim)
        self.attention = nn.Linear(settings.attention_dim, 1)
        self.classifier = nn.Linear(settings.hidden_dim, num_outputs)
        own = (self.mlp, self.self_attention, self.value, self.attention, self.classifier)
        for part in own:  # an encoder keeps its own start
            part.apply(_start_xavier)

    @property
    def recordable(self) -> Recordable:
        """Passes of a bag, unless the kernel needs thousands of small blocks."""
        return Recordable.NOTHING if self.settings.kernel in _ABSOLUTE else Recordable.BAGS

    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch."""
        embeddings = self.dropout(self.through(self.mlp, batch.features))
        embeddings = self.self_attention(embeddings, batch.segments)
        attention_logits = self.attention(self.value(embeddings).tanh()).T
        attention = bag_softmax(attention_logits, batch.segments)
        return ModelOutput(
            logits=self.classifier(pool(attention, embeddings, batch.segments)),
            attention=attention,
            weights=attention,
            instance_logits=embeddings @ self.classifier.weight.T,
        )

    def single_logits(self, batch: BagBatch, output: ModelOutput) -> Float[Tensor, "1 T C"]:
        """Return the logits of bags of one instance, which attends to its own value alone."""
        layer = self.self_attention
        with torch.no_grad():
            embeddings = self.through(self.mlp, batch.features)
            embeddings = embeddings + layer.residual * layer.value(embeddings)
            return self.classifier(embeddings).unsqueeze(0)


def _start_xavier(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
