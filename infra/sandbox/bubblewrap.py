"""A sandbox of namespaces: the command line that starts a program under bubblewrap.

The program sees /usr, its interpreter, the named folders (all read-only), three devices, and one writable tmpfs with a
bound on bytes and files. It has no /proc, no network, no capability, and cannot create namespaces.

bubblewrap never runs as uid 0, which resource limits do not bind: root becomes the user nobody first. What the caller
may read and that user may not (a Python below /root) is mounted into a private mount namespace before that.
"""

import os
import shutil
import stat
from collections.abc import Sequence
from itertools import filterfalse
from pathlib import Path

from baton.infra.sandbox.program import MIB, Limits

NOBODY = 65534
_NOBODY_IDS = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
AS_NOBODY = ["setpriv", *_NOBODY_IDS, "--"]
TOOLS = {"bwrap": "bubblewrap", "unshare": "util-linux", "setpriv": "util-linux", "mount": "mount"}  # Debian's packages
# fixed, so that a program gives the same result everywhere
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip
_CAP_SYS_ADMIN = 21
_STAGE = "/mnt"  # a folder that every system has; covered only in the private mount namespace
# $1: bytes, $2: files. bubblewrap's own tmpfs has no bound on files, which take kernel memory. Each folder after them
# is mounted where the user nobody can reach it
_MOUNT = f"""
set -e
size=$1 files=$2 writable={_STAGE} number=0
shift 2
if [ "$1" != -- ]; then
  writable={_STAGE}/tmp
  mount -t tmpfs -o size=1m,mode=755 none {_STAGE}
fi
while [ "$1" != -- ]; do
  mount --rbind -o X-mount.mkdir "$1" {_STAGE}/$number
  number=$((number + 1))
  shift
done
shift
mount -t tmpfs -o "X-mount.mkdir,nosuid,nodev,mode=1777,size=$size,nr_inodes=$files" none $writable
exec "$@"
"""


def missing() -> str:
    """Return the tools that are not on PATH, with their Debian packages."""
    return ", ".join(
        f"there is no {tool} (package {package})" for tool, package in TOOLS.items() if not shutil.which(tool)
    )


def command(argv: Sequence[str], limits: Limits, folders: Sequence[Path], seccomp_fd: int, info_fd: int) -> list[str]:
    """Return the command that runs `argv`; the descriptors are for bubblewrap's --seccomp and --info-fd."""
    named = [folder for folder in folders if not folder.is_relative_to("/usr")]
    root = os.getuid() == 0
    admin = root and _is_admin()
    staged = {folder: f"{_STAGE}/{number}" for number, folder in enumerate(filterfalse(open_to_all, named)) if admin}
    # killed with the thread that started it, or, if that is too late, ended by the end of its standard input
    private = ["setpriv", "--pdeathsig=KILL", *(_NOBODY_IDS if root and not admin else []), "--"]
    # a PID namespace for bubblewrap itself: killed while its child still waits for it, it would leave the child behind
    private += ["unshare", *([] if admin else ["--user", "--map-root-user"]), "--pid", "--fork", "--kill-child"]
    private += ["--mount", "--", "sh", "-c", _MOUNT, "sh"]
    private += [str(limits.disk_mb * MIB), str(limits.files + 2), *map(str, staged), "--"]
    private += AS_NOBODY if admin else []
    confined = ["bwrap", "--unshare-user", "--unshare-all", "--disable-userns", "--die-with-parent"]
    # bubblewrap's own init would outlive bubblewrap, as an orphan that not every container's first process reaps
    confined += ["--as-pid-1", "--new-session"]
    confined += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        confined += ["--setenv", name, value]
    confined += ["--ro-bind", "/usr", "/usr"]
    for top in map(Path, ("/bin", "/lib", "/lib32", "/lib64", "/sbin")):
        if top.is_symlink():
            confined += ["--symlink", str(top.readlink()), str(top)]
        elif top.is_dir():
            confined += ["--ro-bind", str(top), str(top)]
    confined += ["--bind", f"{_STAGE}/tmp" if staged else _STAGE, "/tmp", "--symlink", "/tmp", "/dev/shm"]
    for folder in named:
        confined += ["--ro-bind", staged.get(folder, str(folder)), str(folder)]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        confined += ["--dev-bind", device, device]
    confined += ["--remount-ro", "/", "--chdir", "/tmp"]
    confined += ["--seccomp", str(seccomp_fd), "--info-fd", str(info_fd), "--"]
    return [*private, *confined, *argv]


def _is_admin() -> bool:
    """Return whether this process may mount. Root in a container often may not, and then needs a user namespace too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (effective,) = (int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return bool(effective >> _CAP_SYS_ADMIN & 1)


def open_to_all(folder: Path) -> bool:
    """Return whether the user nobody can reach the folder."""
    return all(place.stat().st_mode & stat.S_IXOTH for place in (folder, *folder.parents))
