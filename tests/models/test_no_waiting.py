"""A training step asks nothing of the device that it runs on.

Tensors on torch's ``meta`` device stand for those on a GPU: they have a shape and no values, so
that whoever asks for one fails. What torch would answer there, or copy without a word, `NoWaiting`
refuses. Offsets lie in the main memory, and may be read.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sgpmil.bags.bag import BagBatch
from sgpmil.models import list_models
from sgpmil.models.contract import Recordable
from sgpmil.models.registry import find_model

from .small import random_bags, small_model

DEVICE = "meta"
GPYTORCH = "the kernel that GPyTorch evaluates compares its inputs with torch.equal"


class WaitError(RuntimeError):
    """The device was asked for something."""


class NoWaiting(TorchDispatchMode):
    """Refuse what makes the host wait for a GPU and is possible without values."""

    CHECKS = (torch.ops.aten._linalg_check_errors.default,)
    BY_MASK = (
        torch.ops.aten.index.Tensor,
        torch.ops.aten.index_put.default,
        torch.ops.aten.index_put_.default,
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(t.device.type == DEVICE for t in tensors) and func in self.CHECKS:
            raise WaitError(f"{func} reads whether it failed")
        if func in self.BY_MASK:
            indices = [index for index in args[1] if index is not None]
            if any(t.dtype == torch.bool and t.device.type == DEVICE for t in indices):
                raise WaitError(f"{func} counts the entries of a mask")
        result = func(*args, **kwargs)
        self.check_copies(func, tensors, result, kwargs)
        return result

    @staticmethod
    def check_copies(func, tensors, result, kwargs):
        # A number from the main memory (without dimensions) is an argument of the kernel.
        from_host = any(t.device.type == "cpu" and t.dim() > 0 for t in tensors)
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        on_device = any(t.device.type == DEVICE for t in [*tensors, *results])
        if from_host and on_device and not kwargs.get("non_blocking"):
            raise WaitError(f"{func} copies from the main memory")


class NoSending(NoWaiting):
    """Refuse as well what does not wait, but would be sent from where it once was if replayed."""

    @staticmethod
    def check_copies(func, tensors, result, kwargs):
        NoWaiting.check_copies(func, tensors, result, {})


class NoNumbers(TorchFunctionMode):
    """Refuse tensors that are made of Python numbers on the device: they are copied there."""

    MADE = (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in self.MADE and result.device.type == DEVICE:
            raise WaitError(f"{func} copies numbers to the device")
        return result


@pytest.fixture(autouse=True)
def _autocast_knows_the_device(monkeypatch):
    autocast = torch.autocast
    monkeypatch.setattr(
        torch,
        "autocast",
        lambda device, **kwargs: autocast("cpu" if device == DEVICE else device, **kwargs),
    )


WAITS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).any()),
    "list": lambda x: x.tolist(),
    "to the host": lambda x: x.cpu(),
    "mask": lambda x: x[x > 0],
    "mask in place": lambda x: x.index_put_((x > 0,), x[0]),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().abs().bincount(),
    "one_hot of unknown width": lambda x: F.one_hot(x.long().abs()),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long().abs()),
    "equal": lambda x: torch.equal(x, x + 1),
    "cholesky": lambda x: torch.linalg.cholesky(torch.eye(3, device=x.device)),
    "numbers": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "new numbers": lambda x: x.new_tensor([1.0, 2.0]),
    "from the host": lambda x: torch.arange(3).to(x.device),
    "copy from the host": lambda x: torch.zeros_like(x).copy_(torch.zeros(4)),
    "index from the host": lambda x: x[torch.tensor([0, 1])],
}


@pytest.mark.parametrize("waits", [*WAITS.values()], ids=[*WAITS])
def test_what_waits_is_refused(waits):
    x = torch.tensor([1.0, -1.0, 2.0, 1.0])
    waits(x.clone())  # where there is nothing to wait for
    x = x.to(DEVICE)
    with NoWaiting(), NoNumbers(), pytest.raises((WaitError, RuntimeError)) as caught:
        waits(x)
    if caught.type is not WaitError:
        assert any(word in str(caught.value) for word in ("meta", "Meta", "data-dependent"))


def test_what_does_not_wait_is_not_refused():
    x = torch.zeros(4, device=DEVICE)
    offsets = torch.tensor([0, 2, 4])
    with NoWaiting(), NoNumbers():
        assert offsets.tolist() == [0, 2, 4]
        bounds = offsets.to(DEVICE, non_blocking=True)
        found = x[bounds[:-1]] + x[: int(offsets[1])].where(x[:2] > 0, 2.0)
        assert found.clamp(min=torch.tensor(1.0)).shape == (2,)


def variants():
    extra = {
        "clam-sb": [{"subtyping": True}, {"instance_weight": 0.0}],
        "clam-mb": [{"subtyping": True}],
        "dsmil": [{"value_network": True, "dropout": 0.5}],
        "mixmil": [{"covariance": "mean_field"}, {"likelihood": "categorical"}],
        "kernel-attention": [{"kernel": "laplace"}, {"kernel": "dot"}],
    }
    for name in list_models():
        presets = [{"preset": preset} for preset in find_model(name).presets]
        for settings in ({}, *presets, *extra.get(name, [])):
            case = "-".join([name, *map(str, settings.values())])
            marks = [pytest.mark.xfail(reason=GPYTORCH)] if name == "agp" else []
            yield pytest.param(name, settings, id=case, marks=marks)


@pytest.mark.parametrize("sizes", [(5, 1, 19, 8), (1,), (3, 1, *range(2, 18))], ids=len)
@pytest.mark.parametrize(("name", "settings"), [*variants()])
def test_a_training_step_asks_nothing_of_the_device(name, settings, sizes):
    model = small_model(name, num_classes=2, **settings).train().to(DEVICE)
    model.epoch = 50  # after every warm-up
    batch = BagBatch.pack(random_bags(sizes)).to(DEVICE)
    with NoWaiting(), NoNumbers():
        output = model(batch)
        loss = model.loss(output, batch.labels, num_bags=4)
        loss.total.backward()
    assert output.logits.device.type == DEVICE
    assert any(p.grad is not None for p in model.parameters())


REPLAYABLE = [p for p in variants() if small_model(p.values[0]).recordable is Recordable.BAGS]


@pytest.mark.parametrize("epoch", [0, 50])
@pytest.mark.parametrize("sizes", [(19,), (9, 9, 9)], ids=len)
@pytest.mark.parametrize(("name", "settings"), REPLAYABLE)
def test_a_pass_that_is_replayed_sends_nothing_to_the_device(name, settings, sizes, epoch):
    model = small_model(name, num_classes=2, **settings).train().to(DEVICE)
    model.epoch = epoch
    batch = BagBatch.pack(random_bags(sizes)).to(DEVICE)
    batch = replace(batch, bounds=batch.segments.bounds)
    with NoSending(), NoNumbers():
        loss = model.loss(model(batch), batch.labels, num_bags=4)
        loss.total.backward()
    assert any(p.grad is not None for p in model.parameters())


def test_what_is_sent_is_refused():
    with NoSending(), pytest.raises(WaitError):
        torch.arange(3).to(DEVICE, non_blocking=True)


def test_the_backward_pass_is_watched_as_well():
    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * torch.arange(4).to(gradient.device)

    x = torch.zeros(4, device=DEVICE, requires_grad=True)
    with NoWaiting(), NoNumbers():
        loss = Careless.apply(x).sum()
        with pytest.raises(WaitError):
            loss.backward()
