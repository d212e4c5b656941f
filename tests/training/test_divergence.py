from dataclasses import replace

import pytest
import torch

from sgpmil.bags.bag import BagBatch
from sgpmil.models.contract import Loss
from sgpmil.models.registry import build_model
from sgpmil.training.divergence import first_weights_not_finite, likely_cause

from .conftest import TINY, toy_bags


@pytest.fixture
def parts():
    torch.manual_seed(0)
    model = build_model("sgpmil", in_dim=4, num_classes=2, **TINY["sgpmil"])
    batch = BagBatch.pack(list(toy_bags(3)))
    with torch.no_grad():
        output = model(batch)
        loss = model.loss(output, batch.labels, 3)
    return model, batch, output, loss


def spoilt(tensor, value=torch.nan):
    tensor = tensor.clone()
    tensor.view(-1)[0] = value
    return tensor


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_features(parts, value):
    model, batch, output, loss = parts
    batch = replace(batch, features=spoilt(batch.features, value))
    # The first in the chain is named, whatever follows from it.
    output = replace(output, logits=spoilt(output.logits))
    assert "features hold NaN or infinity" in likely_cause(model, batch, output, loss)


def test_weights(parts):
    model, batch, output, loss = parts
    assert first_weights_not_finite(model) is None
    with torch.no_grad():
        model.classifier.bias[1] = torch.inf
    assert first_weights_not_finite(model) == "classifier.bias"
    output = replace(output, attention=spoilt(output.attention))
    cause = likely_cause(model, batch, output, loss)
    assert "'classifier.bias' are not finite" in cause
    assert "lower the learning rate" in cause


def test_attention(parts):
    model, batch, output, loss = parts
    output = replace(output, attention=spoilt(output.attention), logits=spoilt(output.logits))
    cause = likely_cause(model, batch, output, loss)
    assert "the attention is not finite" in cause
    assert "jitter" in cause


def test_logits(parts):
    model, batch, output, loss = parts
    output = replace(output, logits=spoilt(output.logits, torch.inf))
    cause = likely_cause(model, batch, output, loss)
    assert "the logits overflow" in cause
    assert "precision" in cause


def test_loss_term(parts):
    model, batch, output, loss = parts
    loss = Loss.of(nll=loss.terms["nll"], kl=torch.tensor(torch.inf))
    cause = likely_cause(model, batch, output, loss)
    assert "the loss term 'kl' overflows" in cause
