"""Push a folder to a repository of the Hugging Face hub, with the hub's own client.

All files become one commit, so that the repository never holds a part of them. A repeated or interrupted push sends
only what the hub lacks. The token is the client's: HF_TOKEN, or the login of `hf auth login`.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from baton.infra.errors import UserError
from baton.infra.storage.buckets import StorageError, with_retries
from baton.infra.text import clause, escaped

T = TypeVar("T")

HUB = "hub:"
TAG = "baton"  # in the card of every repository that Baton writes
NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9_])?(?<!\.git)")
EXPECTED_NAME = "a repository's name on the hub, such as my-team/my-model"
ANSWER_S = 10.0  # time limit of the hub's answer about a repository
PATIENCE_S = 120.0  # how long a hub that does not answer is retried
LARGE_BYTES = 10_000_000  # larger files are sent one by one, before the commit
ATTEMPTS = 3  # commits, while others commit to the same repository
CARD = "README.md"
CREATED_WITH = (".gitattributes", CARD)  # files of a new repository


class _Moved(StorageError):
    """Raised if somebody else has committed to the repository during the push."""


@dataclass(frozen=True)
class Repository:
    """A repository of the hub."""

    kind: Literal["model", "dataset"]
    name: str

    @classmethod
    def at(cls, address: str) -> "Repository":
        """Return the repository of hub:org/name or hub:datasets/org/name. Raises UserError."""
        name = address.removeprefix(HUB)
        kind, name = ("dataset", name.removeprefix("datasets/")) if name.startswith("datasets/") else ("model", name)
        if not NAME.fullmatch(name):
            raise UserError(f"{address!r}: must be {HUB} and {EXPECTED_NAME}; for rows hub:datasets/my-team/my-rows")
        return cls("dataset" if kind == "dataset" else "model", name)

    def __str__(self) -> str:
        return f"{HUB}{'datasets/' if self.kind == 'dataset' else ''}{self.name}"


@dataclass(frozen=True)
class Consent:
    """The consent of the user, and the words with which the user would give it."""

    public: bool = False
    overwrite: bool = False
    public_by: str = "publish.private: false"
    overwrite_by: str = "publish.overwrite: true"


@dataclass(frozen=True)
class Pushed:
    commit: str
    url: str
    private: bool
    is_new: bool  # false if the repository had all of the files


@dataclass(frozen=True)
class _State:
    """A repository as the hub has it."""

    head: str
    private: bool
    by_baton: bool
    names: Sequence[str]

    @property
    def is_empty(self) -> bool:
        return set(self.names) <= set(CREATED_WITH)


def check(repository: Repository, consent: Consent) -> str:
    """Return why a push would be refused, as far as it is known before it, or "". Asks the hub, without retries."""
    import httpx

    try:
        _refuse(repository, _once(lambda: _state(repository), repository), consent)
        _check_owner(repository)
    except StorageError as error:
        return error.message
    except (httpx.HTTPError, OSError) as error:
        return _unreachable(repository, error)
    return ""


def push(
    repository: Repository,
    files: Mapping[str, Path],
    consent: Consent,
    message: str,
    replaced: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
) -> Pushed:
    """Make these files, by their names in the repository, its newest commit, and check that the hub has them; the
    repository is created if necessary. Files of earlier versions that match a pattern in `replaced` are removed, and
    with `consent.overwrite` every file of a repository that Baton did not write. `progress(done, total)` is called with
    bytes. Raises StorageError."""
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    if progress:
        disable_progress_bars()
    _ask(lambda: _create(repository, consent), repository)
    for _ in range(ATTEMPTS):
        try:
            return _pushed(repository, files, consent, message, replaced, progress)
        except _Moved:
            continue
    raise StorageError(f"{repository}: others commit to it at the same time. Run the same command again", curable=True)


def _pushed(
    repository: Repository,
    files: Mapping[str, Path],
    consent: Consent,
    message: str,
    replaced: Sequence[str],
    progress: Callable[[int, int], None] | None,
) -> Pushed:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    state = _ask(lambda: _state(repository), repository)
    if state is None:
        raise StorageError(
            f"{repository}: the token does not see this repository, although its name is in use. Use another name, or "
            "a token in HF_TOKEN that may write to it",
            curable=False,
        )
    _refuse(repository, state, consent)
    added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in sorted(files.items())]
    all_replaced = consent.overwrite and not state.by_baton
    removed = [
        CommitOperationDelete(path_in_repo=name)
        for name in state.names
        if name not in files and name != ".gitattributes" and (all_replaced or _matches(name, replaced))
    ]
    total, done = sum(each.upload_info.size for each in added), 0
    for each in (each for each in added if each.upload_info.size > LARGE_BYTES):
        if progress:
            progress(done, total)
        send = partial(api.preupload_lfs_files, repository.name, [each], repo_type=repository.kind, free_memory=False)
        _ask(send, repository)
        done += each.upload_info.size
    if progress:
        progress(done, total)
    committed = _ask(
        lambda: api.create_commit(
            repository.name,
            [*added, *removed],
            commit_message=message,
            repo_type=repository.kind,
            parent_commit=state.head,
        ),
        repository,
    )
    _check_stored(api, repository, committed.oid, added)
    return Pushed(committed.oid, _url(api, repository), state.private, committed.oid != state.head)


def _create(repository: Repository, consent: Consent) -> None:
    """Create the repository if it does not exist. An existing one keeps its visibility."""
    from huggingface_hub import HfApi

    if _state(repository) is None:
        HfApi().create_repo(repository.name, repo_type=repository.kind, private=not consent.public, exist_ok=True)


def _state(repository: Repository) -> _State | None:
    """Return what the hub has, or None if the token's user sees no such repository."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    if not get_token():
        raise StorageError(
            f"{repository}: there is no token for the hub here. Set HF_TOKEN to one that may write, or run "
            "`hf auth login`",
            curable=False,
        )
    try:
        info: Any = HfApi().repo_info(repository.name, repo_type=repository.kind, timeout=ANSWER_S)
    except RepositoryNotFoundError:
        return None
    names = [each.rfilename for each in info.siblings or []]
    return _State(str(info.sha), bool(info.private), TAG in (info.tags or []), names)


def _refuse(repository: Repository, state: _State | None, consent: Consent) -> None:
    """Raise StorageError for a repository that the user did not consent to write to."""
    if state is None:
        return
    if not state.private and not consent.public:
        raise StorageError(
            f"{repository}: the repository is public. Make it private in its settings, use another name, or publish "
            f"to everybody with {consent.public_by}",
            curable=False,
        )
    if not (state.by_baton or state.is_empty or consent.overwrite):
        shown = escaped(", ".join(name for name in state.names if name not in CREATED_WITH)[:200])
        raise StorageError(
            f"{repository}: the repository has files that Baton did not write ({shown}). Use another name, or replace "
            f"all of them with {consent.overwrite_by}",
            curable=False,
        )


def _check_owner(repository: Repository) -> None:
    """Raise StorageError if the token is known to allow no write to the repository's owner."""
    from huggingface_hub import HfApi

    user: dict[str, Any] = _once(HfApi().whoami, repository)
    owner = repository.name.partition("/")[0]
    owners = [user.get("name"), *(each.get("name") for each in user.get("orgs", []))]
    if owner not in owners:
        raise StorageError(
            f"{repository}: the token is of {owners[0]}, who is no member of {owner}. Use a repository of "
            f"{' or '.join(map(str, owners))}, or another token in HF_TOKEN",
            curable=False,
        )
    if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise StorageError(f"{repository}: the token may only read. Set HF_TOKEN to one that may write", curable=False)


def _check_stored(api: Any, repository: Repository, commit: str, added: Sequence[Any]) -> None:
    """Raise StorageError if the hub's files are not those that were sent, by their digests."""

    def differing() -> list[str]:
        listed = api.list_repo_tree(repository.name, repo_type=repository.kind, revision=commit, recursive=True)
        there = {each.path: each for each in listed if hasattr(each, "blob_id")}
        return [each.path_in_repo for each in added if not _is_stored(each, there.get(each.path_in_repo))]

    if names := _ask(differing, repository):
        raise StorageError(f"{repository}: after the upload, the hub has other content in {', '.join(names[:3])}", True)


def _is_stored(addition: Any, there: Any) -> bool:
    if there is None:
        return False
    if there.lfs:
        return bool(there.lfs.sha256 == addition.upload_info.sha256.hex())
    content = Path(addition.path_or_fileobj).read_bytes()  # small: a file of git and not of LFS
    return bool(there.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest())


def _url(api: Any, repository: Repository) -> str:
    return f"{api.endpoint}/{'datasets/' if repository.kind == 'dataset' else ''}{repository.name}"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _ask(work: Callable[[], T], repository: Repository) -> T:
    """Call `work` until the hub answers or the patience is exhausted. Raises StorageError."""
    return with_retries(lambda: _once(work, repository), str(repository), patience_s=PATIENCE_S)


def _once(work: Callable[[], T], repository: Repository) -> T:
    """Call `work`, and raise the hub's refusals as StorageError."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        return work()
    except OfflineModeIsEnabled as error:
        raise StorageError(f"{repository}: HF_HUB_OFFLINE disables the hub: unset it", curable=False) from error
    except HfHubHTTPError as error:
        if error.response.status_code == 412:
            raise _Moved(f"{repository}: somebody else has committed", curable=True) from error
        if error.response.status_code in (401, 403):
            raise StorageError(_refused_token(repository, error), curable=False) from error
        raise
    except ValueError as error:  # the hub refuses the card's front matter, or another server answers
        raise StorageError(f"{repository}: {clause(_brief(error))}", curable=False) from error


def _refused_token(repository: Repository, error: Exception) -> str:
    return (
        f"{repository}: the hub refuses the token: {clause(_brief(error))}. HF_TOKEN, or the login of `hf auth login`, "
        f"must be one that may write to {repository.name.partition('/')[0]}"
    )


def _unreachable(repository: Repository, error: Exception) -> str:
    from huggingface_hub import constants

    return (
        f"{repository}: the hub at {constants.ENDPOINT} does not answer: {clause(_brief(error))}. Check the network "
        "and HF_ENDPOINT"
    )


def _brief(error: Exception) -> str:
    """Return the hub's own message in one line, without the address and the id of the request."""
    message = getattr(error, "server_message", None) or str(error)
    return escaped(" ".join(str(message).split())[:300])
