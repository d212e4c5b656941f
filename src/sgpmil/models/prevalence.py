r"""Class shares: those that training drew, and those that a model's probabilities are for.

Training that draws all classes equally often learns logits for equally frequent classes. With the
shares $\rho_c$ that training drew and the shares $\pi_c$ of the slides that are predicted, Bayes'
rule gives

$$ p(c \mid x) \propto p_{\mathrm{trained}}(c \mid x)\, \frac{\pi_c}{\rho_c}, \qquad
   \ell_c \leftarrow \ell_c + \log \pi_c - \log \rho_c . $$

The order of slides by the probability of one of two classes stays as it is. The shift is no part
of the training loss, and none of an instance's evidence: it belongs to the bias.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from sgpmil.bags.target import Label, Target
from sgpmil.errors import SettingsError

Prevalence: TypeAlias = str | float | Mapping[str, float]
"""Class shares as a user gives them.

``training``: those of the training slides; ``balanced``: all equal; a number: the share of the
second of two classes, which is the positive one; shares by class, as a mapping or as the text
``tumour=0.1,normal=0.9``.
"""

_NAMED = ("training", "balanced")
_FORMS = "'training', 'balanced', a share such as 0.1, or shares such as tumour=0.1,normal=0.9"
_TOLERANCE = 1e-3
"""Amount by which the sum of rounded shares may differ from 1."""


@dataclass(frozen=True, slots=True)
class ClassShares:
    """Shares of the classes, in the order of a model's outputs.

    Args:
        training: Share of each class among the training slides.
        drawn: Share of each class among the bags that training drew.
        expected: Share of each class among the slides that are predicted.
    """

    training: tuple[float, ...]
    drawn: tuple[float, ...]
    expected: tuple[float, ...]

    @staticmethod
    def of_training(
        labels: Sequence[Label | None], target: Target, prevalence: Prevalence, *, balanced: bool
    ) -> "ClassShares":
        """Count the classes of the training slides.

        Args:
            labels: Label of each training slide.
            target: The classes.
            prevalence: Shares of the slides that will be predicted.
            balanced: Whether training draws all classes equally often.

        Raises:
            SettingsError: The prevalence does not fit the classes.

        Example:
            >>> from sgpmil.bags.target import ClassTarget
            >>> target = ClassTarget(("normal", "tumour"))
            >>> ClassShares.of_training([0, 0, 0, 1], target, 0.1, balanced=True)
            ClassShares(training=(0.75, 0.25), drawn=(0.5, 0.5), expected=(0.9, 0.1))
        """
        counts = np.bincount([y for y in labels if y is not None], minlength=target.num_outputs)
        found = counts > 0
        training = tuple((counts / counts.sum()).tolist())
        drawn = tuple((found / found.sum()).tolist()) if balanced else training
        return ClassShares(training, drawn, training).answering(prevalence, target)

    def answering(self, prevalence: Prevalence, target: Target) -> "ClassShares":
        """Return the shares for slides of another prevalence.

        Raises:
            SettingsError: The prevalence does not fit the classes.
        """
        given = expected_shares(prevalence, target)
        return replace(self, expected=self.training if given is None else given)

    @property
    def shift(self) -> tuple[float, ...] | None:
        """Amount to add to each logit; None where it changes no probability."""
        # Of a class that training did not draw, nothing is known: its logit stays.
        shift = tuple(
            math.log(to) - math.log(start) if start > 0 and to > 0 else 0.0
            for start, to in zip(self.drawn, self.expected, strict=True)
        )
        return shift if max(shift) - min(shift) > 1e-12 else None

    def to_json(self) -> dict[str, list[float]]:
        """Return the shares as a checkpoint stores them."""
        names = ("training", "drawn", "expected")
        return {name: list(getattr(self, name)) for name in names}

    @staticmethod
    def from_json(content: Mapping[str, Any] | None) -> "ClassShares | None":
        """Read what `to_json` gave; None where a checkpoint does not have it.

        Raises:
            ValueError: They are not shares of the same classes; likewise TypeError and
                AttributeError.
        """
        if content is None:
            return None
        parts = {name: tuple(map(float, part)) for name, part in content.items()}
        if len({len(part) for part in parts.values()}) > 1:
            raise ValueError("its class shares are of different numbers of classes")
        if not all(0 <= share <= 1 for part in parts.values() for share in part):
            raise ValueError("a class share is not from 0 to 1")
        return ClassShares(**parts)


def prior_shift(
    shares: ClassShares | None, target: Target, prevalence: Prevalence | None = None
) -> tuple[float, ...] | None:
    """Return the amount to add to each logit of a model, or None for nothing.

    Args:
        shares: Shares of the model; None where it does not know them.
        target: Its classes.
        prevalence: Shares of the slides that are predicted, other than those of the model. For a
            model without shares, classes are taken to have been drawn equally often.

    Raises:
        SettingsError: The prevalence does not fit the classes, or it is that of training slides
            which the model does not know.
    """
    if prevalence is None:
        return None if shares is None else shares.shift
    if shares is None:
        if expected_shares(prevalence, target) is None:
            raise SettingsError(
                "Expected a model that knows the class shares of its training slides, but this one "
                "was made without them. Give the shares, such as tumour=0.1,normal=0.9."
            )
        equal = (1 / target.num_outputs,) * target.num_outputs
        shares = ClassShares(equal, equal, equal)
    return shares.answering(prevalence, target).shift


def expected_shares(prevalence: Prevalence, target: Target) -> tuple[float, ...] | None:
    """Return the share of each class; None where it is that of the training slides.

    Raises:
        SettingsError: The prevalence does not fit the classes.

    Example:
        >>> from sgpmil.bags.target import ClassTarget
        >>> expected_shares("tumour=0.1,normal=0.9", ClassTarget(("normal", "tumour")))
        (0.9, 0.1)
    """
    text = prevalence_text(prevalence)
    num = target.num_outputs
    if text in _NAMED:
        return None if text == "training" else (1 / num,) * num
    if "=" not in text:
        if num != 2:
            raise SettingsError(
                f"Expected a share for each of {target}, but got {text}. Write "
                f"{','.join(f'{name}=…' for name in target.names)}."
            )
        return 1 - float(text), float(text)
    given = _by_name(text)
    if set(given) != set(target.names):
        raise SettingsError(
            f"Expected a share for each of {target}, but got shares for {', '.join(given)}."
        )
    total = sum(given.values())
    return tuple(given[name] / total for name in target.names)


def prevalence_text(prevalence: Prevalence) -> str:
    """Return a prevalence as text, after a check of all but its classes.

    Raises:
        SettingsError: It is none.

    Example:
        >>> prevalence_text({"normal": 0.9, "tumour": 0.1})
        'normal=0.9,tumour=0.1'
    """
    if isinstance(prevalence, Mapping):
        if any("," in str(name) for name in prevalence):
            raise SettingsError("Expected a prevalence of classes whose names have no comma.")
        text = ",".join(f"{name}={share}" for name, share in prevalence.items())
    else:
        text = str(prevalence).strip()
    if text in _NAMED:
        return text
    shares = _by_name(text) if "=" in text else {"": _share(text, text)}
    if any(not 0 < share < 1 for share in shares.values()):
        raise SettingsError(f"Expected a prevalence between 0 and 1, but got {text}.")
    if "=" in text and abs(sum(shares.values()) - 1) > _TOLERANCE:
        raise SettingsError(f"Expected class shares that add up to 1, but got {text}.")
    return text


def shares_text(shares: Sequence[float], target: Target) -> str:
    """Write class shares for a reader.

    Example:
        >>> from sgpmil.bags.target import ClassTarget
        >>> shares_text((0.9, 0.1), ClassTarget(("normal", "tumour")))
        'normal 90 %, tumour 10 %'
    """
    pairs = zip(target.names, shares, strict=True)
    return ", ".join(f"{name} {float(f'{100 * share:.3g}'):g} %" for name, share in pairs)


def prevalence_note(shares: Sequence[float] | None, target: Target) -> tuple[str, ...]:
    """Return the sentence that says what probabilities are for; none where it is unknown."""
    if shares is None:
        return ()
    return (f"Probabilities are for a prevalence of {shares_text(shares, target)}.",)


def _by_name(text: str) -> dict[str, float]:
    parts = [part.rpartition("=") for part in text.split(",")]
    return {name.strip(): _share(share, text) for name, _, share in parts}


def _share(share: str, text: str) -> float:
    try:
        return float(share)
    except ValueError:
        raise SettingsError(f"Expected a prevalence ({_FORMS}), but got '{text}'.") from None
