"""The error of a model or checkpoint that cannot be converted."""

from tasks.core.job import StageError


class ConversionError(StageError):
    """A checkpoint, model or config cannot be converted without loss, or the target cannot be written. The message
    names the file, tensor or field, its value and what was expected."""
