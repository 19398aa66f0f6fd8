"""A game: the model guesses a number from 1 to 7 and is told which are left. In three guesses, halving always finds it.

SFT teaches to call the tool, with games of players who heed the answer two times of three, and then guess anywhere in
what is left: they find 56 % of the numbers. GRPO plays the game itself, and is paid for finding the number.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

HIGHEST, GUESSES = 7, 3
HEEDED = 2 / 3  # share of a player's guesses that are among the numbers left
QUESTION = f"I think of a number from 1 to {HIGHEST}. Find it in {GUESSES} guesses."


class Game:
    """TRL's shape of an environment: `reset` gets the row's columns, and the other methods are tools."""

    def reset(self, number: int, **columns: Any) -> None:
        self.number, self.guesses = number, list[int]()
        self.low, self.high = 1, HIGHEST  # of the numbers left

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: Your guess.
        """
        if len(self.guesses) == GUESSES:
            raise ValueError("no guesses are left")
        self.guesses.append(number)
        if number == self.number:
            return "right"
        if number < self.number:
            self.low = max(self.low, number + 1)
        else:
            self.high = min(self.high, number - 1)
        return f"{self.low} to {self.high} are left"

    def get_reward(self) -> float:
        return float(self.number in self.guesses)


def games(count: int = 40 * HIGHEST) -> Iterator[dict[str, Any]]:
    """Rows to play with: each number equally often."""
    for game in range(count):
        prompt = [{"role": "user", "content": QUESTION}]
        yield {"prompt": prompt, "number": 1 + game % HIGHEST, "game": game}


def played(count: int = 3000) -> Iterator[dict[str, Any]]:
    """Games of players, to learn from."""
    chance, tools = random.Random(0), _tools()
    for _ in range(count):
        yield {"messages": [{"role": "user", "content": QUESTION}, *_game(chance)], "tools": tools}


def documents(count: int = 4000) -> Iterator[str]:
    """The same games as text, to pretrain on."""
    chance, tools = random.Random(1), json.dumps(_tools()[0])
    for number in range(count):
        begin = f"{tools}\n{QUESTION}\n" if number % 10 == 0 else ""
        yield begin + "\n".join(_written(message) for message in _game(chance))


def _tools() -> list[dict[str, Any]]:
    """The schema that GRPO's prompts have."""
    from transformers.utils import get_json_schema

    return [get_json_schema(Game().guess)]


def _game(chance: random.Random) -> Iterator[dict[str, Any]]:
    game = Game()
    game.reset(chance.randint(1, HIGHEST))
    answer = ""
    while answer != "right" and len(game.guesses) < GUESSES:
        heeds = chance.random() < HEEDED
        number = chance.randint(game.low, game.high) if heeds else chance.randint(1, HIGHEST)
        call = {"type": "function", "function": {"name": "guess", "arguments": {"number": number}}}
        answer = game.guess(number)
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {"role": "tool", "name": "guess", "content": answer}
    yield {"role": "assistant", "content": "found" if answer == "right" else "lost"}


def _written(message: dict[str, Any]) -> str:
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls", ())]
    return f"{message['role']}\n{message['content']}" + "".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
