import torch

from sgpmil.models.registry import build_model
from sgpmil.training.half_weights import HalfWeights


def sgpmil():
    torch.manual_seed(0)
    return build_model(
        "sgpmil", in_dim=6, num_classes=2, hidden_dims=(5, 4), gp_dim=3, num_inducing=2
    )


def test_layers_compute_with_copies_and_the_model_keeps_its_parameters():
    model = sgpmil()
    names = dict(model.named_parameters())
    halves = HalfWeights(model)
    x = torch.randn(7, 6).bfloat16()
    with halves.in_use():
        found = model.projection(model.mlp(x))
        found.float().sum().backward()
    assert found.dtype == torch.bfloat16
    assert {n: id(p) for n, p in model.named_parameters()} == {n: id(p) for n, p in names.items()}
    with torch.autocast("cpu", torch.bfloat16):
        expected = model.projection(model.mlp(x.float()))
        expected.float().sum().backward()
    assert torch.equal(found, expected)
    for parameter, half in halves.by_parameter.items():
        assert half.grad.dtype == torch.bfloat16
        assert torch.equal(half.grad.float(), parameter.grad)


def test_the_embedding_and_the_projection_have_copies_and_nothing_else_has():
    model = sgpmil()
    copied = {n for n, p in model.named_parameters() if p in HalfWeights(model).by_parameter}
    assert copied == {n for n, _ in model.named_parameters() if n.startswith(("mlp", "projection"))}
    assert not HalfWeights(None).by_parameter


def test_copies_follow_the_parameters():
    model = sgpmil()
    halves = HalfWeights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    halves.refresh()
    for parameter, half in halves.by_parameter.items():
        assert torch.equal(half, parameter.bfloat16())


def test_an_error_leaves_the_model_as_it_was():
    model = sgpmil()
    before = [id(p) for p in model.parameters()]
    try:
        with HalfWeights(model).in_use():
            raise RuntimeError
    except RuntimeError:
        pass
    assert [id(p) for p in model.parameters()] == before
