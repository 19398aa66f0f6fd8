"""The measure. Replace it by your own: it has one value for each completion."""

import re
from typing import Any


def has_answer(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """1 if the last number of the completion is the row's `answer`, else 0."""
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    numbers = [re.findall(r"\d+", text) for text in texts]
    return [float(found[-1:] == [expected]) for found, expected in zip(numbers, answer, strict=True)]
