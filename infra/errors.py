"""The base of the errors that a person can act on."""

import click


class Stopped(click.ClickException):
    """The run cannot go on, and the message says why and what to do. Under `pyflyte run` the message
    is all that is shown; every other exception is a bug and shows its traceback."""

    def __str__(self) -> str:
        return self.message
