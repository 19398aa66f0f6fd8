"""An environment and tools like a user's, with every way to fail."""

import os
import random
import stat
import subprocess
import sys
import time
from typing import Any


class Shop:
    """A shop with one customer."""

    def __init__(self) -> None:
        self.money, self._secret = 0, "not shown"
        self.bought: list[str] = []
        self.opened = random.random()

    def reset(self, money: int, **columns: Any) -> str | None:
        if money < 0:
            raise ValueError("no debts")
        self.money = money
        return f" You have {money} coins." if money else None

    def buy(self, item: str, price: int = 1) -> str:
        """
        Buy something.

        Args:
            item: What to buy.
            price: What it costs.
        """
        if price > self.money:
            raise ValueError(f"{item} costs {price}, you have {self.money}")
        self.money -= price
        self.bought.append(item)
        print("garbage on standard output")
        return f"bought {item}"

    async def wait(self, seconds: float) -> str:
        """
        Wait.

        Args:
            seconds: How long.
        """
        time.sleep(seconds)
        return "waited"

    def leave(self, how: str) -> str:
        """
        Leave the shop.

        Args:
            how: `exit`, `kill` or `sys`.
        """
        if how == "sys":
            sys.exit(3)
        if how == "exit":
            os._exit(3)
        os.abort()

    def hoard(self, gigabytes: float) -> int:
        """
        Allocate memory.

        Args:
            gigabytes: How much.
        """
        return len(b"x" * int(gigabytes * 1e9))

    def get_reward(self) -> float:
        return len(self.bought)


class Silent:
    """A class whose method has no docstring."""

    def reset(self, **columns: Any) -> None:
        pass

    def act(self, x):  # type: ignore[no-untyped-def]
        return x


class Broken(Shop):
    """An environment whose own reward raises."""

    def get_reward(self) -> Any:
        return {"reward": 1}


def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: A number.
        b: Another.
    """
    return a + b


class Free:
    """An environment without a reward."""

    def reset(self, **columns: Any) -> None:
        pass

    def take(self) -> str:
        """Take something."""
        return "taken"


class Hostile:
    """An environment whose process may have run any code."""

    def reset(self, **columns: Any) -> None:
        pass

    def forge(self, text: str) -> str:
        """
        Write to every socket.

        Args:
            text: What to write.
        """
        for number in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    os.write(number, text.encode())
            except OSError:
                pass
        return "forged"

    def stay(self) -> int:
        """Start a process in a new session."""
        return subprocess.Popen(["setsid", "sleep", "611"], start_new_session=True).pid
