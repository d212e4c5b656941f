"""Errors that a user can cause.

Each message is one sentence: what was expected, what was found, where, and what to do. The
command line prints it without a traceback and exits with code 2.
"""


class SgpmilError(Exception):
    """Base of every error that a user can cause."""


class BagError(SgpmilError):
    """A bag, or the file it should come from, is not usable."""


class EmptyBagError(BagError):
    """A bag without instances: a slide on which no tissue was found."""


class LabelError(SgpmilError):
    """A label table is unreadable, or does not fit the bags."""


class SplitError(SgpmilError):
    """A split is unreadable, leaks patients, or does not fit the bags."""


class SettingsError(SgpmilError):
    """An unknown or impossible setting."""


class CheckpointError(SgpmilError):
    """A checkpoint is unreadable, damaged or of another model."""


class TrainingError(SgpmilError):
    """Training cannot continue."""


class PredictionError(SgpmilError):
    """A table of predictions cannot be evaluated."""


class SlideError(SgpmilError):
    """A slide file is unreadable, or lacks information that is needed."""


class EncoderError(SgpmilError):
    """A patch encoder is unknown, or its weights are missing or do not fit."""


class ExtractionError(SgpmilError):
    """Embeddings cannot be extracted into this folder."""


class AnnotationError(SgpmilError):
    """Annotations are unreadable, or do not fit the slides."""


class ExplanationError(SgpmilError):
    """A slide, class or score to explain is missing, or not of this model."""


class RunFolderError(SgpmilError):
    """A run folder exists already, is incomplete or cannot be written."""


class ClusterError(SgpmilError):
    """A cluster does not answer, or has no machine for a job."""


class MissingPartError(SgpmilError):
    """An optional part of the package is not installed."""
