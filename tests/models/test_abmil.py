import itertools

import pytest
import torch
import torchmil.models
from torch import nn

from sgpmil.bags.bag import BagBatch
from sgpmil.errors import SettingsError
from sgpmil.models import build_model

from .small import IN_DIM, random_bags, small_model


def torchmil_twin(model, output):
    """Build torchmil's ABMIL with our weights and the one output that it has."""
    widths = [IN_DIM, *(model.settings.hidden_dims or (8,))]
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(widths)]
    embed = nn.Sequential(*itertools.chain.from_iterable(layers))
    twin = torchmil.models.ABMIL((IN_DIM,), att_dim=4, gated=model.gate is not None, feat_ext=embed)
    embed.load_state_dict(model.mlp.state_dict())
    twin.pool.fc1.module.load_state_dict(model.value.state_dict())
    if model.gate is not None:
        twin.pool.fc_gated.module.load_state_dict(model.gate.state_dict())
    with torch.no_grad():
        twin.pool.fc2.weight.copy_(model.attention.weight)  # it has no bias: the softmax drops it
        twin.classifier.module.weight.copy_(model.classifier.weight[output : output + 1])
        twin.classifier.module.bias.copy_(model.classifier.bias[output : output + 1])
    return twin.eval()


@pytest.mark.parametrize(("gated", "widths"), [(True, ()), (False, ()), (True, (7, 5))])
def test_same_weights_in_torchmil_give_the_same(gated, widths):
    model = small_model("abmil", gated=gated, preset="released", hidden_dims=widths)
    bags = random_bags()
    ours = model(BagBatch.pack(bags))
    attention = ours.attention.split([b.num_instances for b in bags], dim=1)
    for output in range(2):
        twin = torchmil_twin(model, output)
        for b, bag in enumerate(bags):
            logit, raw = twin(bag.features[None], return_att=True)
            assert torch.allclose(ours.logits[b, 0, output], logit[0], atol=1e-5)
            assert torch.allclose(attention[b], raw.softmax(1), atol=1e-6)


@pytest.mark.parametrize(("gated", "count"), [(True, 657_283), (False, 591_619)])
def test_parameter_count_is_the_published(gated, count):
    model = build_model("abmil", in_dim=1024, num_classes=2, gated=gated)
    assert model.num_parameters() == count


def test_gate_changes_the_attention():
    batch = BagBatch.pack(random_bags())
    model = small_model("abmil")
    before = model(batch).attention
    with torch.no_grad():
        model.gate.weight.mul_(3)
    assert not torch.allclose(before, model(batch).attention, atol=1e-4)


def test_dropout_is_of_the_bag_embedding_and_in_training_only():
    batch = BagBatch.pack(random_bags())
    model = small_model("abmil", dropout=0.5)
    quiet = model(batch)
    model.train()
    torch.manual_seed(0)
    loud = [model(batch) for _ in range(300)]
    assert torch.equal(loud[0].attention, quiet.attention)
    assert not torch.equal(loud[0].logits, loud[1].logits)
    logits = torch.stack([output.logits for output in loud])
    error = logits.std(0) / 300**0.5
    assert ((logits.mean(0) - quiet.logits).abs() < 5 * error + 1e-6).all()


def test_published_settings():
    settings = build_model("abmil", in_dim=3, num_classes=2, preset="released").settings
    assert (settings.hidden_dim, settings.attention_dim, settings.dropout) == (512, 128, 0.15)
    assert settings.gated
    assert not settings.standardise


def test_deep_preset_has_the_embedding_of_sgpmil():
    deep = build_model("abmil", in_dim=9, num_classes=2, preset="deep")
    process = build_model("sgpmil", in_dim=9, num_classes=2, preset="points")
    shapes = [[p.shape for p in model.mlp.parameters()] for model in (deep, process)]
    assert shapes[0] == shapes[1]
    with pytest.raises(SettingsError, match="widths of at least 1, but got \\(8, 0\\)"):
        build_model("abmil", in_dim=9, num_classes=2, hidden_dims=[8, 0])
