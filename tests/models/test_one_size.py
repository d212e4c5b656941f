"""Bags of one size, which some models compute together, give what they give among others."""

import pytest
import torch

import sgpmil.gp.sampling as sampling
from sgpmil.bags.bag import BagBatch
from sgpmil.gp.noise import RepeatableNoise

from .small import random_bags, small_model


@pytest.mark.parametrize("name", ["transmil", "dgrmil"])
def test_together_and_one_by_one(name):
    model = small_model(name, num_classes=2).double().eval()
    bags = random_bags((7, 7, 7, 30))
    mixed = model(BagBatch.pack(bags).to(dtype=torch.float64))
    alike = model(BagBatch.pack(bags[:3]).to(dtype=torch.float64))
    assert torch.allclose(alike.logits, mixed.logits[:3], atol=1e-12)
    assert torch.allclose(alike.attention, mixed.attention[:, :21], atol=1e-12)


def test_joint_draws_together_have_the_values_and_gradients_of_those_one_by_one(monkeypatch):
    model = small_model("agp", num_classes=2).double().train()
    batch = BagBatch.pack(random_bags((9, 9, 9, 4))).to(dtype=torch.float64)
    found = []
    for rows in (sampling._ROWS_TOGETHER, 0):
        monkeypatch.setattr(sampling, "_ROWS_TOGETHER", rows)
        model.zero_grad()
        output = model(batch, RepeatableNoise(0))
        model.loss(output, batch.labels, num_bags=4).total.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append(torch.cat([output.logits.detach().flatten(), *gradients]))
    assert torch.allclose(*found, atol=1e-10)
    assert found[0].abs().max() > 1e-3
