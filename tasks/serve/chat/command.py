"""Talk to a model in a terminal.

baton chat MODEL                  a published model's name, a digest, or a model's folder
baton chat URL                    a server with OpenAI's API; OPENAI_API_KEY is its key
baton chat MODEL --beside OTHER   two models side by side
echo TEXT | baton chat MODEL      print the answer alone
"""

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path

import click

from baton.infra.errors import UserError
from baton.infra.options import Folder, Number
from baton.infra.paths import quiet
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError


@click.command(help=__doc__.replace("\n\n", "\n\n\b\n", 1))
@click.argument("model")
@click.option("--beside", metavar="OTHER", help="A second model or URL that gets the same messages.")
@click.option("--model", "name", metavar="NAME", help="Name of the model, if the server at the URL has several.")
@click.option("--beside-model", metavar="NAME", help="Name of the second model, if the server of --beside has several.")
@click.option("--base", type=Folder(), help="Weights of the adapter MODEL, if they are not where it was trained.")
@click.option("--system", default="", help="System message.")
@click.option("--temperature", type=Number(0, 2), help="Sampling temperature; 0: greedy.  [default: the model's]")
@click.option("--top-p", type=Number(0, 1, min_open=True), help="Nucleus sampling.  [default: the model's]")
@click.option(
    "--max-tokens", type=click.IntRange(1), help="Maximum length of an answer, tokens.  [default: the model's context]"
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed of the sampling.")
@click.option("--completion", is_flag=True, help="Send each message as a prompt to continue, without a chat template.")
def main(
    model: str,
    beside: str | None,
    name: str | None,
    beside_model: str | None,
    base: Path | None,
    system: str,
    temperature: float | None,
    top_p: float | None,
    max_tokens: int | None,
    seed: int | None,
    completion: bool,
) -> None:
    quiet()
    from baton.tasks.serve.chat.conversation import Sampling
    from baton.tasks.serve.chat.open import is_url, opened
    from baton.tasks.serve.chat.terminal import Chat, pipe, talk
    from baton.tasks.serve.spec import SIDE_BY_SIDE, ServeSpec

    if (name and not is_url(model)) or (beside_model and not is_url(beside or "")):
        raise click.UsageError("--model and --beside-model choose a model of a server at a URL; leave them out")
    if base and is_url(model):
        raise click.UsageError("--base applies to a model of this machine; leave it out")
    if completion and system:
        raise click.UsageError("--system applies to a chat, and not to --completion; write it into the prompt")
    spec = ServeSpec(load=None, gpu_memory_share=SIDE_BY_SIDE) if beside else ServeSpec(load=None)
    interactive = sys.stdin.isatty()
    text = "" if interactive else _piped()
    try:
        with asyncio.Runner() as runner, ExitStack() as stack:
            conversations = [stack.enter_context(opened(model, name, base, spec, completion))]
            if beside:
                conversations.append(stack.enter_context(opened(beside, beside_model, None, spec, completion)))
            chat = Chat(conversations, runner, Sampling(temperature, top_p, max_tokens, seed), system)
            try:
                talk(chat) if interactive else pipe(chat, text)
            finally:
                for each in conversations:
                    runner.run(each.client.close())
    except (StageError, ArtifactError) as error:
        raise UserError(str(error)) from error


def _piped() -> str:
    """Read the message from standard input. Raises UserError."""
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not text in UTF-8 ({error.reason} at byte {error.start})") from error
    if not text.strip():
        raise UserError("standard input is empty; it has the message, unless it is a terminal")
    return text.removesuffix("\n")
