"""Talk to one model, or to two side by side, in a terminal or through pipes."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from baton.infra.errors import UserError
from baton.infra.progress import say
from baton.infra.text import encodable, escaped
from baton.tasks.core.job import StageError
from baton.tasks.serve.chat.conversation import Conversation, Sampling

HELP = """\
/system TEXT   set the system message; without TEXT remove it
/temp NUMBER   set the temperature; without NUMBER use the model's
/reset         forget the conversation
/help          list the commands
/quit          end, as Ctrl-D does
A line that ends in \\ continues on the next one. Ctrl-C stops an answer."""


@dataclass
class Chat:
    """Conversations that get the same messages."""

    conversations: Sequence[Conversation]
    runner: asyncio.Runner
    sampling: Sampling
    system: str = ""

    def answer(self, text: str) -> list[StageError]:
        """Ask for the answers, show them, and return the failures."""
        if len(self.conversations) > 1:
            return self._answers(text)
        conversation = self.conversations[0]
        failures = self._ask(text, [lambda part: print(escaped(part), end="", flush=True)])
        if conversation.answer and not conversation.answer.endswith("\n"):
            print(flush=True)
        return failures

    def _answers(self, text: str) -> list[StageError]:
        """Show the answers in columns of a terminal, or one after the other."""
        console, shows = Console(), [_ignore] * len(self.conversations)
        if not console.is_terminal:
            failures = self._ask(text, shows)
            for each in self.conversations:
                print(f"== {heading(each)}\n{escaped(each.answer)}", flush=True)
            return failures
        with Live(console=console, transient=True, get_renderable=lambda: self._columns(console, most=console.height)):
            try:
                return self._ask(text, shows)
            finally:
                console.print(self._columns(console))

    def _columns(self, console: Console, most: int | None = None) -> Table:
        """The answers side by side; of long ones, the last lines that fit into `most`."""
        table = Table.grid(padding=(0, 2), expand=True)
        width = max(1, console.width // len(self.conversations) - 2)
        for _ in self.conversations:
            table.add_column(ratio=1)
        table.add_row(*(Text(heading(each), style="bold") for each in self.conversations))
        lines = [Text(escaped(each.answer)).wrap(console, width) for each in self.conversations]
        table.add_row(*(Text("\n").join(each[-(most - 4) :] if most else each) for each in lines))
        return table

    def _ask(self, text: str, shows: Sequence[Callable[[str], None]]) -> list[StageError]:
        async def ask() -> list[StageError | None]:
            return await asyncio.gather(*map(one, self.conversations, shows))

        async def one(conversation: Conversation, show: Callable[[str], None]) -> StageError | None:
            try:
                await conversation.ask(text, self.system, self.sampling, show)
                return None
            except StageError as error:
                return error

        return [failure for failure in self.runner.run(ask()) if failure]

    def notices(self) -> None:
        """Report the answers that are cut off."""
        most = self.sampling.max_tokens
        for each in self.conversations:
            if each.is_cut:
                say(f"({each.title}: cut off {f'at {most} tokens (--max-tokens)' if most else 'by its context'})")


def _ignore(part: str) -> None:
    """Show nothing of a part, since the whole answer is shown."""


def heading(conversation: Conversation) -> str:
    """The name of the model that answers, and its digest."""
    digest = escaped(conversation.digest)
    return f"{conversation.title} · model {digest}" if digest else conversation.title


def pipe(chat: Chat, text: str) -> None:
    """Print the answer to a text, alone. Raises UserError."""
    failures = chat.answer(encodable(text))
    chat.notices()
    if failures:
        raise UserError("\n".join(escaped(str(failure)) for failure in failures))


def talk(chat: Chat) -> None:
    """Answer a person until /quit or the end of the input."""
    with suppress(ImportError):  # not every Python has it; lines can then not be edited
        import readline  # noqa: F401
    for each in chat.conversations:
        print(heading(each))
    kind = "Each message is a prompt that the model continues. " if chat.conversations[0].completes else ""
    print(f"{kind}/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.")
    answering = [each.digest for each in chat.conversations]
    while (text := _message()) is not None:
        if text.startswith("/"):
            if not _command(chat, text):
                return
            continue
        try:
            for failure in chat.answer(encodable(text)):
                say(f"✗ {escaped(str(failure))}")
        except KeyboardInterrupt:
            print("\n(stopped)")
            continue
        chat.notices()
        for each, before in zip(chat.conversations, answering, strict=True):
            if before and each.digest != before:  # a new champion
                print(f"(now {heading(each)})")
        answering = [each.digest for each in chat.conversations]


def _message() -> str | None:
    """Read a message; None at the end of the input."""
    lines: list[str] = []
    while not lines or lines[-1].endswith("\\"):
        try:
            lines.append(input("… " if lines else "> "))
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /quit ends)")
            lines = []
            continue
        if not lines[0].strip():
            lines = []
    return "\n".join(line.removesuffix("\\") for line in lines)


def _command(chat: Chat, line: str) -> bool:
    """Obey a command; False: the chat ends."""
    command, _, argument = line.strip().partition(" ")
    argument = argument.strip()
    if command in ("/quit", "/exit"):
        return False
    if command == "/reset":
        for each in chat.conversations:
            each.turns.clear()
        print("(the conversation is forgotten)")
    elif command == "/system":
        chat.system = encodable(argument)
        print("(the system message is set)" if argument else "(no system message)")
    elif command == "/temp":
        _set_temperature(chat, argument)
    else:
        print(HELP if command == "/help" else f"no command {command}\n{HELP}")
    return True


def _set_temperature(chat: Chat, argument: str) -> None:
    try:
        temperature = float(argument) if argument else None
    except ValueError:
        temperature = -1.0
    if temperature is not None and not 0 <= temperature <= 2:
        print(f"/temp {argument}: must be a number from 0 to 2")
        return
    chat.sampling = replace(chat.sampling, temperature=temperature)
    print(f"(temperature {'of the model' if temperature is None else f'{temperature:g}'})")
