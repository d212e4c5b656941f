"""Known scales of classes: grades, stages and other labels that have an order.

A scale orders labels by what they say: a number behind a common word (G1 … G5, grade 2, T3b), a
Roman number (Stage IIIA), a Gleason score (3+4), or a place in a list of words (low, intermediate,
high). A label of absence (NC, normal, negative) is the lowest of such a scale.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("lesions of BRACS", ("n", "pb", "udh", "fea", "adh", "dcis", "ic")),
    ("groups of BRACS", ("bt", "at", "mt")),
    ("metastases of CAMELYON", ("negative", "itc", "micro", "macro")),
    ("levels", ("very low", "low", "intermediate", "high", "very high")),
    ("levels", ("very low", "low", "medium", "high", "very high")),
    ("levels", ("very low", "low", "moderate", "high", "very high")),
    ("degrees", ("minimal", "mild", "moderate", "severe")),
    ("degrees", ("weak", "moderate", "strong")),
    ("differentiation", ("well", "moderate", "poor", "undifferentiated")),
    (
        "differentiation",
        (
            *("well differentiated", "moderately differentiated"),
            *("poorly differentiated", "undifferentiated"),
        ),
    ),
    ("grades", ("low grade", "intermediate grade", "high grade")),
    ("malignancy", ("benign", "borderline", "malignant")),
    ("malignancy", ("benign", "atypical", "malignant")),
)
"""Lists of words from the lowest to the highest, which labels may be part of."""

_ABSENT = frozenset(
    (
        *("absent", "benign", "nc", "neg", "negative", "none", "normal", "0+0"),
        *("no cancer", "no tumor", "no tumour", "non cancer"),
    )
)
_UNORDERED = frozenset(
    (
        *("batch", "center", "centre", "class", "cluster"),
        *("fold", "group", "site", "subtype", "type"),
    )
)
"""Words whose numbers are names: cluster 2 is not above cluster 1."""

_ROMAN = ("0", "i", "ii", "iii", "iv", "v")
_NUMBERED = re.compile(
    r"(?P<word>[a-z][a-z0-9 ]*?)?\s*(?P<number>\d+)(?P<letter>[a-d]?)(?P<plus>\+?)"
)
_ROMAN_NUMBER = re.compile(
    r"(?P<word>[a-z ]*?)\s*\b(?P<number>0|iv|v|i{1,3})(?P<letter>[a-d]?)(?P<part>\d?)"
)
_GLEASON = re.compile(r"(gleason\s*)?(?P<first>[1-5])\+(?P<second>[1-5])")


class _Rank(NamedTuple):
    """Place on a scale, and the word that tells the scale."""

    word: str
    place: tuple[float, ...]


_LOWEST = _Rank("", (-1.0,))


@dataclass(frozen=True, slots=True)
class ClassScale:
    """Labels in the order of a known scale.

    Args:
        names: The labels, from the lowest to the highest.
        kind: What they are, in a few words.
        equals: Labels of one rank, which a scale cannot order; empty where every rank is once.
    """

    names: tuple[str, ...]
    kind: str
    equals: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " < ".join(self.names)


def find_scale(labels: Iterable[str]) -> ClassScale | None:
    """Find the known scale that different labels are on; None where they are on none.

    Example:
        >>> str(find_scale(["G2", "NC", "G1", "G10"]))
        'NC < G1 < G2 < G10'
        >>> str(find_scale(["4+3", "3+4", "3+3", "4+4", "negative"]))
        'negative < 3+3 < 3+4 < 4+3 < 4+4'
        >>> str(find_scale(["MT", "AT", "BT"])), find_scale(["LUAD", "LUSC"])
        ('BT < AT < MT', None)
    """
    different = sorted(set(labels))
    scales_of_words: list[tuple[str, Callable[[str], _Rank | None]]] = [
        (kind, partial(_listed_word, words)) for kind, words in _WORDS
    ]
    for kind, rank_of in (*scales_of_words, *_PATTERNS):
        ranks: dict[str, _Rank] = {}
        for label in different:
            text = re.sub(r"[\s_\-]+", " ", label.casefold()).strip()
            rank = rank_of(text) or (_LOWEST if text in _ABSENT else None)
            if rank is not None:
                ranks[label] = rank
        scales = {rank.word for rank in ranks.values() if rank != _LOWEST}
        # T1 and N1 are not on one scale, and labels of absence alone are on none.
        if len(ranks) == len(different) > 1 == len(scales):
            names = tuple(sorted(different, key=lambda label: ranks[label].place))
            return ClassScale(names, kind, _equals(ranks))
    return None


def _equals(ranks: Mapping[str, _Rank]) -> tuple[str, ...]:
    of_place: dict[tuple[float, ...], list[str]] = {}
    for label, rank in ranks.items():
        of_place.setdefault(rank.place, []).append(label)
    return next((tuple(same) for same in of_place.values() if len(same) > 1), ())


def _listed_word(words: Sequence[str], text: str) -> _Rank | None:
    return _Rank("word", (float(words.index(text)),)) if text in words else None


def _numbered(text: str) -> _Rank | None:
    match = _NUMBERED.fullmatch(text)
    if match is None or (word := (match["word"] or "").strip()) in _UNORDERED:
        return None
    return _Rank(word or "number", (float(match["number"]), _letter(match["letter"])))


def _roman(text: str) -> _Rank | None:
    match = _ROMAN_NUMBER.fullmatch(text)
    if match is None or match["word"].strip() in _UNORDERED:
        return None
    place = (_ROMAN.index(match["number"]), _letter(match["letter"]), float(match["part"] or 0))
    return _Rank(match["word"].strip() or "number", place)


def _gleason(text: str) -> _Rank | None:
    match = _GLEASON.fullmatch(text)
    if match is None:
        return None
    first, second = float(match["first"]), float(match["second"])
    return _Rank("gleason", (first + second, first))


def _letter(letter: str) -> float:
    return float(" abcd".index(letter or " "))


_PATTERNS: tuple[tuple[str, Callable[[str], _Rank | None]], ...] = (
    ("grades", _numbered),
    ("stages", _roman),
    ("Gleason scores", _gleason),
)
