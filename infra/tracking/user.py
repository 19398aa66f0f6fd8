"""Who starts an execution, for the pages of a team. It is in no cache key.

BATON_USER names the user, and empty records nobody, such as in a store that is open to others. By default it is the
name in git's configuration, with the login name.
"""

import getpass
import os
from functools import cache

from baton.infra.pod import this_pod
from baton.infra.tracking.annotations import NOTE, TAGS
from baton.infra.tracking.code import git
from baton.infra.tracking.remote_run import remote_place

USER = "BATON_USER"
LONGEST = 100  # characters


@cache
def user() -> str:
    """Return who started an execution, such as "Ada Lovelace (ada)", or "" if it is unknown or not to be recorded."""
    given = os.environ.get(USER)
    if given is not None or this_pod() or remote_place():  # there the login name is no person's
        return (given or "").strip()[:LONGEST]
    try:
        login = getpass.getuser()
    except (OSError, KeyError):  # the user has no entry in the password database
        login = ""
    name = (git("config", "user.name") or b"").decode(errors="replace").strip()
    return (f"{name} ({login})" if name and login and name != login else name or login)[:LONGEST]


def for_pods() -> dict[str, str]:
    """Return the environment variables that pass the user, the note and the tags to a run's pods."""
    passed = {name: os.environ[name] for name in (NOTE, TAGS) if os.environ.get(name)}
    return passed | ({USER: user()} if user() else {})
