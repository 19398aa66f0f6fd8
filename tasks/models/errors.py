"""The error of a model or checkpoint that cannot be converted."""

from baton.tasks.core.job import StageError


class ConversionError(StageError):
    """Raised if a checkpoint, model or config cannot be converted without loss, or the target cannot be written. The
    message has the file, tensor or field, its value and the expected one."""
