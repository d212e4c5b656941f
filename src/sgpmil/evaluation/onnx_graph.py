"""The prediction of one slide as an ONNX graph, for programs without PyTorch.

Input ``features`` (N, D); outputs ``probabilities`` (C), ``attention`` (N) and, where models are
probabilistic or several, their standard deviations ``probabilities_std`` and ``attention_std``.

The graph draws nothing: the noise of the posterior's samples lies in it as constants. It takes the
samples that `sgpmil.predict` takes first, and does not add more where they disagree. Noise of
single instances is that of `sgpmil.predict` for the first `PERIOD` instances of a slide, and
repeats itself after them.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sgpmil.bags.bag import NO_LABEL, BagBatch
from sgpmil.bags.segments import OneSegment, Segments
from sgpmil.errors import CheckpointError, MissingPartError
from sgpmil.gp.noise import Noise, RepeatableNoise
from sgpmil.installation import install_command
from sgpmil.models.contract import MILModel, ModelOutput
from sgpmil.models.likelihood import probabilities
from sgpmil.shapes import Float

PERIOD = 2**13
"""Instances with noise of their own."""

TOLERANCE = 1e-4
"""Largest difference of a graph's outputs from PyTorch's that is accepted."""

_EXAMPLE_ROWS = 300
_COMPARED_ROWS = (1, 1000)
"""Numbers of instances for which a new graph is compared with PyTorch."""


@dataclass(frozen=True, slots=True)
class _OneBag(BagBatch):
    """A batch of one bag, whose number of instances is left open."""

    @staticmethod
    def of(features: Tensor) -> "_OneBag":
        bounds = torch.arange(2) * features.shape[0]
        return _OneBag(features, bounds, torch.full((1,), NO_LABEL), ("",), bounds=bounds)

    @property
    def segments(self) -> Segments:
        """The rows of the bag."""
        return OneSegment.of_rows(self.features)


class _StoredNoise:
    """Draws of a source that are kept as buffers of a module when they are first asked for.

    Args:
        source: The source.
        store: The module.
        key: Beginning of the buffers' names.
    """

    def __init__(self, source: Noise, store: nn.Module, key: str = "noise") -> None:
        self.source, self.store, self.key = source, store, key

    def per_instance(
        self, num_samples: int, segments: Segments, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S T"]:
        """See `Noise`; after `PERIOD` instances the draws begin again."""
        whole = Segments.of(torch.tensor([0, PERIOD]))
        table = self._kept(
            f"instance_{num_samples}",
            lambda: self.source.per_instance(num_samples, whole, like).T.contiguous(),
        )
        rows = torch.arange(segments.num_rows) % PERIOD
        return table.index_select(0, rows).T

    def per_bag(
        self, num_samples: int, num_bags: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S B"]:
        """See `Noise`."""
        name = f"bag_{num_samples}_{num_bags}"
        return self._kept(name, lambda: self.source.per_bag(num_samples, num_bags, like))

    def per_function(
        self, num_samples: int, num_inducing: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S M"]:
        """See `Noise`."""
        name = f"function_{num_samples}_{num_inducing}"
        return self._kept(name, lambda: self.source.per_function(num_samples, num_inducing, like))

    def stream(self, number: int) -> Noise:
        """See `Noise`."""
        return _StoredNoise(self.source.stream(number), self.store, f"{self.key}_{number}")

    def _kept(self, name: str, draw: Any) -> Tensor:
        name = f"{self.key}_{name}"
        if name not in dict(self.store.named_buffers(recurse=False)):
            self.store.register_buffer(name, draw().clone(), persistent=False)
        return self.store.get_buffer(name)


class PredictionGraph(nn.Module):
    """The prediction of one bag by one model, or by several together.

    Args:
        models: The models, on the CPU.

    Raises:
        CheckpointError: A model cannot be written as a graph.
    """

    def __init__(self, models: Sequence[MILModel]) -> None:
        super().__init__()
        for model in models:
            reason = model.not_exportable
            if reason:
                raise CheckpointError(
                    f"Expected a model that ONNX can hold, but {model.name} {reason} Export it "
                    "without `onnx`."
                )
        self.models = nn.ModuleList(deepcopy(model) for model in models)
        self.has_std = len(models) > 1 or models[0].is_probabilistic
        self.store = nn.Module()
        self.eval()
        with torch.no_grad():
            for model in self._models:
                model.is_exact = False
                model.freeze()
            self(torch.zeros(2, models[0].in_dim))  # which stores the noise

    @property
    def _models(self) -> list[MILModel]:
        return [model for model in self.models if isinstance(model, MILModel)]

    @property
    def output_names(self) -> tuple[str, ...]:
        """Name of each output."""
        names = ("probabilities", "attention")
        return (*names, *(f"{name}_std" for name in names)) if self.has_std else names

    def forward(self, features: Float[Tensor, "N D"]) -> tuple[Tensor, ...]:
        """Predict the bag; see the module."""
        each = [self._of_model(model, features) for model in self._models]
        if not self.has_std:
            return each[0][:2]
        if len(each) == 1:
            return each[0]
        probs, attention, probs_std, attention_std = (
            torch.stack(part) for part in zip(*each, strict=True)
        )
        return (
            probs.mean(0),
            attention.mean(0),
            (probs_std.square().mean(0) + probs.var(0, correction=1)).sqrt(),
            (attention_std.square().mean(0) + attention.var(0, correction=1)).sqrt(),
        )

    def _of_model(self, model: MILModel, features: Tensor) -> tuple[Tensor, ...]:
        batch = _OneBag.of(features)
        output: ModelOutput
        if model.takes_noise:
            seed = int(getattr(model.settings, "noise_seed", 0))
            output = model(batch, _StoredNoise(RepeatableNoise(seed), self.store, f"noise_{seed}"))
        else:
            output = model(batch)
        # Samples of a probability are close to each other: their spread needs double precision.
        probs = probabilities(model.target, model.corrected(output.logits)).squeeze(0).double()
        std = probs.std(0, correction=1) if len(probs) > 1 else torch.zeros_like(probs[0])
        found = probs.mean(0), output.score, std, output.score_std
        return tuple(value.float() for value in found)


def write_graph(path: Path, models: Sequence[MILModel]) -> tuple[str, ...]:
    """Write the prediction of models as an ONNX file, and compare it with PyTorch's.

    Args:
        path: File to write.
        models: The models.

    Returns:
        Name of each output.

    Raises:
        MissingPartError: A package is not installed.
        CheckpointError: A model cannot be written as a graph, or the graph's outputs differ.
    """
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise MissingPartError(
            f"Expected the packages onnx, onnxscript and onnxruntime to write a graph, but "
            f"{', '.join(missing)} is not installed. Install it with: {install_command('export')}."
        )
    graph = PredictionGraph(models)
    example = torch.randn(
        _EXAMPLE_ROWS, models[0].in_dim, generator=torch.Generator().manual_seed(0)
    )
    rows = torch.export.Dim("instances", min=1, max=2**24)
    try:
        with _quiet(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                graph,
                (example,),
                dynamo=True,
                verbose=False,
                input_names=["features"],
                output_names=list(graph.output_names),
                dynamic_shapes={"features": {0: rows}},
            )
    except Exception as error:
        cause = error.__cause__ or error
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        raise CheckpointError(
            f"Expected a model that ONNX can hold, but torch could not write {models[0].name} as a "
            f"graph ({type(cause).__name__}: {' '.join(lines[:1])}). Export it without `onnx`."
        ) from error
    assert program is not None  # noqa: S101
    program.save(path)
    _compare(path, graph, models[0].in_dim)
    return graph.output_names


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporter says of its own steps."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _compare(path: Path, graph: PredictionGraph, in_dim: int) -> None:
    """Refuse a graph whose outputs differ from PyTorch's.

    Raises:
        CheckpointError: They do.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for num_rows in _COMPARED_ROWS:
        rows = torch.randn(num_rows, in_dim, generator=torch.Generator().manual_seed(num_rows))
        found = session.run(None, {"features": rows.numpy()})
        with torch.no_grad():
            expected = graph(rows)
        for name, one, other in zip(graph.output_names, found, expected, strict=True):
            difference = float((torch.from_numpy(one) - other).abs().max())
            if not difference <= TOLERANCE:
                raise CheckpointError(
                    f"Expected a graph that gives what PyTorch gives to {TOLERANCE:g}, but of "
                    f"{num_rows} instances its {name} differ by {difference:.2g}. Export the model "
                    "without `onnx`."
                )
