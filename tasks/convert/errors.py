"""What a conversion says when it cannot be done."""

from tasks.job import StageError


class ConversionError(StageError):
    """A checkpoint, model or config that cannot be converted without loss, or a target that cannot be written;
    the message says which file, tensor or field, what it is and what was expected."""
