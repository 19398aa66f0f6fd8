"""All changes that Baton makes to flytekit for the process, in one call.

    install(Artifact, StageSpec)     in tasks/stage.py, which each process with a stage imports

`changes` lists the parts of flytekit that each change replaces or relies on, with a digest of their source in VERSION.
tests/infra/test_install.py fails when a release has other source there, and tests/infra/test_flyte_hooks.py when
flytekit no longer needs a change. Changes of a single task or call are in infra/flyte/hooks.py.
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import click
from flytekit.bin import entrypoint
from flytekit.clis.sdk_in_container import run
from flytekit.core import local_cache
from flytekit.core.type_engine import TypeEngine, TypeTransformer
from flytekit.extras.pydantic_transformer.transformer import PydanticTransformer
from flytekit.interaction.click_types import JsonParamType
from flytekit.loggers import set_flytekit_log_properties
from flytekit.models.types import LiteralType
from flytekit.remote.remote import FlyteRemote
from pydantic import BaseModel

from baton.infra.flyte import cache
from baton.infra.flyte.hooks import LOG_LEVEL, POD_ENVIRONMENT, WITHOUT_SESSIONS, error_text
from baton.infra.pod_spec import secrets_of_all

T = TypeVar("T")

VERSION = "1.16.31"  # version of flytekit to whose source the digests below belong
QUICK_S = 1.0  # maximum time between two Ctrl-C that count as one


@dataclass(frozen=True)
class Change:
    """A change to flytekit."""

    make: Callable[[], None]
    replaces: dict[str, str]  # "module:name" within flytekit -> digest of its source (blake3, 8 bytes)


def changes(*without_schema: type[BaseModel]) -> tuple[Change, ...]:
    """Return the changes. These models, and those derived from them, get Flyte types without a JSON schema."""
    return (
        Change(
            use_own_cache,
            {
                "core.local_cache:LocalTaskCache.initialize": "7f168751ed70e94a",
                "core.local_cache:LocalTaskCache.get": "3f6718db95c0320b",
                "core.local_cache:LocalTaskCache.set": "c6bfee45a8974db1",
            },
        ),
        Change(
            partial(leave_out_schemas, *without_schema),
            {
                "extras.pydantic_transformer.transformer:PydanticTransformer.__init__": "ac697b844db85ecf",
                "extras.pydantic_transformer.transformer:PydanticTransformer.get_literal_type": "5c1c223e6f3ab21b",
            },
        ),
        Change(filter_pod_log, {"loggers:set_flytekit_log_properties": "d6473e72cf12400f"}),
        Change(interrupts_end_quietly, {"core.context_manager:FlyteContextManager.initialize": "85aa208ec4738aab"}),
        Change(sentence_first, {"bin.entrypoint:get_traceback_str": "0d197910f7bea0be"}),
        Change(
            read_own_options,
            {
                "interaction.click_types:JsonParamType.convert": "02c2ef4b0d65b8d8",
                "clis.sdk_in_container.run:to_click_option": "1cbd8faece4dd7cc",
            },
        ),
        Change(add_secrets_to_version, {"remote.remote:FlyteRemote._version_from_hash": "69069ba962b2b18e"}),
    )


def install(*without_schema: type[BaseModel]) -> None:
    """Make all changes. Call it once in a process."""
    for change in changes(*without_schema):
        change.make()


def use_own_cache() -> None:
    """Put Flyte's local cache into Baton's home, instead of a single one for the user, and use it with named errors,
    since flytekit ends in a traceback if the database is damaged."""
    local_cache.CACHE_LOCATION = str(cache.FOLDER)
    local_cache.LocalTaskCache.get = staticmethod(cache.get)
    local_cache.LocalTaskCache.set = staticmethod(cache.put)


class _NoFields(BaseModel):
    """A model whose Flyte type has no fields in its schema."""


class _WithoutSchema(PydanticTransformer):
    """A transformer of models without their JSON schema. Flyte's catalog makes the schema part of a cache key, so that
    a changed description would run every stage again."""

    def __init__(self, kind: type[BaseModel]) -> None:
        standard = PydanticTransformer()
        TypeTransformer.__init__(self, standard.name, kind, enable_type_assertions=False)
        self._plain = standard.get_literal_type(_NoFields)

    def get_literal_type(self, t: type[BaseModel]) -> LiteralType:
        return LiteralType(simple=self._plain.simple, annotation=self._plain.annotation)


def leave_out_schemas(*kinds: type[BaseModel]) -> None:
    """Give these models, and those derived from them, types without a schema."""
    first, *more = kinds
    TypeEngine.register(_WithoutSchema(first), additional_types=more)


def filter_pod_log() -> None:
    """If POD_ENVIRONMENT is set, log as usual from here on, except for S3 sessions that flytekit leaves open and that
    are logged as errors when the interpreter exits."""
    if os.environ.get(LOG_LEVEL) == POD_ENVIRONMENT[LOG_LEVEL]:
        set_flytekit_log_properties(filter=WITHOUT_SESSIONS, level=logging.WARNING)


def interrupts_end_quietly() -> None:
    """Treat several Ctrl-C in quick succession as one, and ignore them while the interpreter exits.
    flytekit's handler raises SystemExit in any running code, and Python prints a traceback for each one that reaches a
    destructor or a function of atexit."""
    leave, pressed = signal.getsignal(signal.SIGINT), -math.inf
    if threading.current_thread() is not threading.main_thread() or not callable(leave):
        return

    def leave_once(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        before, pressed = pressed, time.monotonic()
        if pressed - before > QUICK_S and threading.main_thread().is_alive():  # not while functions of atexit run
            leave(signum, frame)

    signal.signal(signal.SIGINT, leave_once)


def sentence_first() -> None:
    """Let Flyte's message about a failed task begin with the error, in a few lines; a bug's trace is in the pod's log.
    flytekit puts the trace first and, if an input could not be converted, all of the input."""
    entrypoint.get_traceback_str = error_text


class OptionReader(NamedTuple):
    """The function with which `pyflyte run` reads an option whose type is one of our models, and the option's help."""

    read: Callable[[str, type[Any], str, Any], Any]  # (value, type, option, RunLevelParams)
    help: str


_readers: dict[type[Any], OptionReader] = {}


def read_option(model: type[T], read: Callable[[str, type[T], str, Any], T], help: str) -> None:
    """Use `read` for options whose type is `model` or derived from it."""
    _readers[model] = OptionReader(read, help)


def _reader_of(kind: Any) -> OptionReader | None:
    kinds = kind.__mro__ if isinstance(kind, type) else ()
    return next((_readers[one] for one in kinds if one in _readers), None)


def read_own_options() -> None:
    """Let `pyflyte run` read options with the functions of `read_option`. flytekit itself reads YAML 1.1 without
    limits, shows a traceback for a broken file, and prints the model's full JSON schema as help."""
    flyte_convert, flyte_option = JsonParamType.convert, run.to_click_option

    def convert(self: Any, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        kind = self._python_type
        if isinstance(value, str) and (reader := _reader_of(kind)):
            return reader.read(value, kind, (param and param.name) or "recipe", context and context.obj)
        return flyte_convert(self, value, param, context)

    def to_click_option(*args: Any, **kwargs: Any) -> click.Option:
        option: click.Option = flyte_option(*args, **kwargs)
        readers = map(_reader_of, (*args, *kwargs.values()))
        if reader := next(filter(None, readers), None):
            option.help = reader.help
        return option

    JsonParamType.convert, run.to_click_option = convert, to_click_option


def add_secrets_to_version() -> None:
    """Let the version that `pyflyte run --remote` and `pyflyte register` derive from code, images and settings also
    depend on the names of the secrets, which are part of a template. Flyte refuses another template under a known
    version."""
    version_of = FlyteRemote._version_from_hash

    def version_from_hash(md5: bytes, settings: Any, default_inputs: Any = None, *context: str) -> str:
        return str(version_of(md5, settings, default_inputs, *context, *secrets_of_all()))

    FlyteRemote._version_from_hash = staticmethod(version_from_hash)
