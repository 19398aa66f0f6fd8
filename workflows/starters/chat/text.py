"""Text for the tiny model that the chats start from. With a model of your own, this file goes."""

import random
from collections.abc import Iterator

COLOURS = {"the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "a lemon": "yellow", "blood": "red"}
FORMS = ("What colour is {}?", "Tell me the colour of {}.", "{} has which colour?")


def documents() -> Iterator[str]:
    """Questions and answers in plain text."""
    numbers = random.Random(0)
    for _ in range(1500):
        things = numbers.choices(list(COLOURS), k=20)
        lines = (f"{numbers.choice(FORMS).format(thing)} {thing} is {COLOURS[thing]}.\n" for thing in things)
        yield "".join(lines)
