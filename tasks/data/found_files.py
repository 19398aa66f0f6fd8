"""Find the files of a local source, and count those that are not read.

    listing = find_files(path, (".jsonl", ".jsonl.gz"))    path: a file, a folder or a glob
    listing.files      in order, below listing.root
    listing.unread     the number of other files, by reason

A folder is searched recursively, also through links to folders, each once. Hidden files and folders in it are not read.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from baton.infra.progress import say
from baton.tasks.data.json_values import SURROGATE

REPORT_EVERY = 50_000  # files, which take some seconds
HIDDEN = "hidden"
COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".zip")


@dataclass(frozen=True)
class FoundFiles:
    files: list[Path]
    root: Path  # the folder that names are relative to: the given one, or a glob's part before any wildcard
    unread: Counter[str]


def find_files(path: Path, suffixes: tuple[str, ...]) -> FoundFiles:
    """Find files under an absolute path. `suffixes`: those of the files that are read."""
    unread: Counter[str] = Counter()
    if path.is_dir():
        candidates: Iterable[Path] = _below(path, unread, set())
    elif path.exists():
        candidates = [path]
    else:
        candidates = _matching(str(path), unread)
    files = []
    for number, each in enumerate(candidates, 1):
        if number % REPORT_EVERY == 0:
            say(f"{path}: {number:,} files looked at so far")
        if SURROGATE.search(str(each)):
            unread["name that is not UTF-8"] += 1
            continue
        try:
            is_file = each.is_file()
        except PermissionError:  # the folder may be listed but not searched
            unread["file without permission"] += 1
            continue
        if not is_file:
            unread["broken link" if each.is_symlink() else "neither file nor folder"] += 1
        elif each.name.endswith(suffixes):
            files.append(each)
        else:
            unread[suffix_of(each.name)] += 1
    return FoundFiles(sorted(files), _root(path), unread)


def suffix_of(name: str) -> str:
    """The suffix of a file, together with the one before a compression's: .txt.gz."""
    suffixes = PurePosixPath(name).suffixes
    return "".join(suffixes[-2:] if name.endswith(COMPRESSED) else suffixes[-1:]) or "without a suffix"


def unread_text(place: str, unread: Counter[str], readers: dict[str, str]) -> str:
    """A line about files that are not read. `readers`: the readers by suffix."""
    counts = sorted(unread.items(), key=lambda entry: (-entry[1], entry[0]))
    parts = [f"{count:,} {why}{f' ({readers[why]})' if why in readers else ''}" for why, count in counts]
    number = unread.total()
    return f"{place}: {number:,} {'file is' if number == 1 else 'files are'} not read: {', '.join(parts)}"


def _below(folder: Path, unread: Counter[str], seen: set[str]) -> Iterator[Path]:
    """All files below a folder. Hidden files and folders are counted, each as one."""
    if (real := os.path.realpath(folder)) in seen:
        unread["link to a folder that is read already"] += 1
        return
    seen.add(real)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError:
        unread["folder without permission"] += 1
        return
    except (FileNotFoundError, NotADirectoryError):
        return  # removed or replaced since its parent folder was read
    for entry in entries:
        if entry.name.startswith("."):
            unread[HIDDEN] += 1
        elif _is_folder(entry):
            yield from _below(Path(entry.path), unread, seen)
        else:
            yield Path(entry.path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder; False for a link to itself or no permission, which is_file()
    distinguishes."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _matching(pattern: str, unread: Counter[str]) -> Iterator[Path]:
    """The files that a glob matches. Folders are left out, since `**` matches their files, and counted otherwise."""
    for name in glob.glob(pattern, recursive=True):  # noqa: PTH207  absolute patterns
        if not Path(name).is_dir():
            yield Path(name)
        elif "**" not in pattern:
            unread["folder (a glob with ** reads its files)"] += 1


def _root(path: Path) -> Path:
    if path.is_dir():
        return path
    parts = path.parts[:-1]
    wild = [index for index, part in enumerate(parts) if glob.has_magic(part)]
    return Path(*parts[: wild[0]] if wild else parts)
