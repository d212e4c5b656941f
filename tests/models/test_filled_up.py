"""A bag at the end of a batch, of which the loss is not told, has no part in a step."""

from dataclasses import replace

import pytest
import torch

from sgpmil.bags.bag import BagBatch

from .small import IN_DIM, random_bags, small_model

MODELS = [
    ("abmil", {"dropout": 0.0}),
    ("clam-sb", {"dropout": 0.0}),
    ("clam-sb", {"dropout": 0.0, "subtyping": True}),
    ("clam-mb", {"dropout": 0.0, "subtyping": True}),
    ("dsmil", {}),
    ("dsmil", {"preset": "released"}),
    ("mean-pool", {}),
    ("max-pool", {}),
    ("bag-size", {}),
]


def filled_up(batch, num_rows):
    """Add a bag of rows that are unlike the others; of none, an empty one."""
    generator = torch.Generator().manual_seed(1)
    rows = 30 * torch.randn(num_rows, IN_DIM, generator=generator, dtype=torch.float64)
    return replace(
        batch,
        features=torch.cat([batch.features, rows]),
        offsets=torch.cat([batch.offsets, batch.offsets[-1:] + num_rows]),
        slide_ids=(*batch.slide_ids, ""),
        coords=None,
        patch_sizes=None,
    )


def gradients(model, batch):
    model.zero_grad()
    output = model(batch)
    output = replace(output, logits=output.logits[: len(batch.labels)])
    loss = model.loss(output, batch.labels, num_bags=9).total
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("num_rows", [0, 1, 37])
@pytest.mark.parametrize(("name", "settings"), MODELS)
def test_loss_and_gradients_are_those_without_it(name, settings, num_rows):
    model = small_model(name, dtype=torch.float64, **settings).train()
    batch = BagBatch.pack(random_bags((5, 1, 19, 8), dtype=torch.float64))
    expected = gradients(model, batch)
    found = gradients(model, filled_up(batch, num_rows))
    assert max(gradient.abs().max() for gradient in expected[1:]) > 1e-3
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)
