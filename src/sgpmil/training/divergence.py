"""What to say when a loss is not finite."""

import torch

from sgpmil.bags.bag import BagBatch
from sgpmil.models.contract import Loss, MILModel, ModelOutput

__all__ = ["first_weights_not_finite", "likely_cause"]


def first_weights_not_finite(model: MILModel) -> str | None:
    """Name the first weights that hold NaN or infinity."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    # One question to the device in place of one a parameter.
    sums = torch.stack(torch._foreach_norm(parameters, 1))
    if torch.isfinite(sums).all():
        return None
    # Of weights that are finite, the sum may not be.
    bad = (name for name, p in zip(names, parameters, strict=True) if not torch.isfinite(p).all())
    return next(bad, None)


def likely_cause(model: MILModel, batch: BagBatch, output: ModelOutput, loss: Loss) -> str:
    """Name the first thing that is not finite, from the input to the loss."""
    if not torch.isfinite(batch.features).all():
        return "the bag's features hold NaN or infinity"
    name = first_weights_not_finite(model)
    if name is not None:
        return f"the weights '{name}' are not finite since an earlier step: lower the learning rate"
    if not torch.isfinite(output.attention).all():
        cause = "features of an extreme scale (keep the standardisation on)"
        if hasattr(model.settings, "jitter"):
            cause += " or too small a jitter"
        return f"the attention is not finite: {cause}"
    if not torch.isfinite(output.logits).all():
        return (
            "the logits overflow: use precision 32 or bf16, or a pooling that does not grow "
            "with the bag"
        )
    bad = [name for name, term in loss.terms.items() if not torch.isfinite(term)]
    return f"the loss term '{', '.join(bad)}' overflows: lower the learning rate"
