"""Products of two numbers, and a calculator: text to pretrain on, rows to tune with and to ask, and the tool.

In the text and in the rows, half of the answers are given at once, half with the calculator. All are right; but a small
model that answers at once is mostly wrong. SFT imitates both, and GRPO finds which is better.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

NUMBERS = range(10, 100)
EXCHANGES = 8  # of a document


def calculate(product: str) -> int:
    """
    Calculate.

    Args:
        product: Two numbers with * between.
    """
    first, second = product.split("*")
    return int(first) * int(second)


def documents(count: int = 4000) -> Iterator[str]:
    """Pages of questions and answers."""
    numbers, tools = random.Random(0), json.dumps(schemas()[0])
    for _ in range(count):
        page = [tools]
        for _ in range(EXCHANGES):
            question = f"{numbers.choice(NUMBERS)}*{numbers.choice(NUMBERS)}"
            page += map(written, [asked(question), *answered(question, numbers)])
        yield "\n".join(page)


def answers(count: int = 350) -> Iterator[dict[str, Any]]:
    """A sample of the questions, with answers."""
    numbers, tools = random.Random(1), schemas()
    for row in numbers.sample(list(questions()), count):
        (question,) = row["prompt"]
        yield {"messages": [question, *answered(question["content"], numbers)], "tools": tools}


def questions() -> Iterator[dict[str, Any]]:
    """Each product once."""
    for first in NUMBERS:
        for second in NUMBERS:
            yield {"prompt": [asked(f"{first}*{second}")], "answer": str(first * second)}


def asked(question: str) -> dict[str, Any]:
    return {"role": "user", "content": question}


def answered(question: str, numbers: random.Random) -> Iterator[dict[str, Any]]:
    """At once, or by the calculator."""
    answer = str(calculate(question))
    if numbers.random() < 1 / 2:
        call = {"type": "function", "function": {"name": "calculate", "arguments": {"product": question}}}
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {"role": "tool", "name": "calculate", "content": answer}
    yield {"role": "assistant", "content": answer}


def schemas() -> list[dict[str, Any]]:
    """The tool as the prompts of GRPO describe it."""
    from transformers.utils import get_json_schema

    return [get_json_schema(calculate)]


def written(message: dict[str, Any]) -> str:
    """As the chat template writes it, with one ordinary token in place of each special one: what the model learns to
    copy is as many tokens away as in a conversation."""
    calls = [f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in message.get("tool_calls", ())]
    return f"@{message['role']}\n{message['content']}{''.join(calls)}end"
