r"""Rows of resident bags, gathered and standardised for one step.

Row $i$ of bag $b$ of the batch is
$\operatorname{clamp}((x_{n} - \mu) / \sigma, -\ell, \ell)$ with $n = s_b + i$: the bag's first row
in the source is $s_b$. On a GPU one Triton kernel reads the source once and writes the batch once;
elsewhere, and without Triton, torch does the same.
"""

import torch
from torch import Tensor

from sgpmil.bags.segments import Segments
from sgpmil.errors import BagError
from sgpmil.gpu.triton_package import available
from sgpmil.shapes import Float, Int

__all__ = ["launch_take_rows", "take_rows"]

_TILE = 4096
"""Entries that one program holds in registers."""
_WIDEST = 1024


@torch.no_grad()
def take_rows(
    source: Float[Tensor, "N D"],
    starts: Int[Tensor, " B"],
    segments: Segments,
    mean: Float[Tensor, " D"] | None,
    scale: Float[Tensor, " D"] | None,
    limit: Float[Tensor, ""] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "T D"]:
    """Gather the rows of some bags, standardised in single precision; no gradient flows.

    Args:
        source: Rows of all bags.
        starts: First row of each bag of the batch in the source.
        segments: Where the bags lie in the batch. The last may reach beyond the source, as
            filler does: it repeats the source's last row there.
        mean: Mean of each feature; None (with `scale` and `limit`) copies the rows as they are.
        scale: Scale of each feature.
        limit: Largest absolute value that is kept; may be infinite.
        dtype: Number format of the result.

    Raises:
        BagError: There is a mean without a scale or a limit, or a scale without a mean.

    Example:
        >>> source = torch.tensor([[0.0], [1.0], [2.0]])
        >>> segments = Segments.of(torch.tensor([0, 1, 3]))
        >>> take_rows(source, torch.tensor([2, 0]), segments, None, None, None, torch.float32).T
        tensor([[2., 0., 1.]])
    """
    if (mean is None) != (scale is None) or (mean is not None and limit is None):
        raise BagError(
            "Expected the mean, the scale and the limit of the features together, "
            "but one of them is missing."
        )
    if source.device.type == "cuda" and available():
        return launch_take_rows(source, starts, segments, mean, scale, limit, dtype)
    index = segments.index
    within = torch.arange(len(index), device=index.device) - segments.bounds[index]
    rows = source[(starts[index] + within).clamp(max=len(source) - 1)]
    if mean is None or scale is None or limit is None:
        return rows.to(dtype)
    return ((rows.float() - mean.float()) / scale.float()).clamp(-limit, limit).to(dtype)


def launch_take_rows(
    source: Float[Tensor, "N D"],
    starts: Int[Tensor, " B"],
    segments: Segments,
    mean: Float[Tensor, " D"] | None,
    scale: Float[Tensor, " D"] | None,
    limit: Float[Tensor, ""] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "T D"]:
    """Do as `take_rows` in one Triton kernel, which must be available."""
    from sgpmil.gpu.row_programs import rows_program

    num_rows, width, num_bags = segments.num_rows, source.shape[1], len(segments)
    out = source.new_empty((num_rows, width), dtype=dtype)
    columns = min(1 << (width - 1).bit_length(), _WIDEST)
    rows = _TILE // columns
    with torch.cuda.device_of(source):
        rows_program[(-(-num_rows // rows), -(-width // columns))](
            source,
            starts.contiguous(),
            segments.bounds,
            None if mean is None else mean.contiguous(),
            None if scale is None else scale.contiguous(),
            limit,
            out,
            len(source),
            num_rows,
            num_bags,
            width,
            *source.stride(),
            STEPS=num_bags.bit_length(),
            STANDARDISED=mean is not None,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=8,
        )
    return out
