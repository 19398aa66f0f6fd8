#!/usr/bin/env bash
# Builds a little world without a way out and runs the tests of a folder in it: network, mounts, processes and the name
# of the host are its own, and all of it ends with this script, however that ends. Needs root, Debian and `make .venv/ready-cpu`.
#
#     tests/placement/run.sh slurm [pytest's words]    two Slurm clusters; SkyPilot's API server from .venv
#     tests/placement/run.sh cloud [pytest's words]    the same and AWS; SkyPilot's API server from an environment of its own
#     tests/placement/run.sh stay                      the latter without tests, until Ctrl-C; says how to enter it
#     tests/placement/run.sh can                       nothing but Debian's packages; fails where a world cannot be had
#
# Exits with 77 where namespaces or overlays cannot be had. Worlds may run side by side.
{ # read to its end before it runs, so that it may be edited meanwhile
set -euo pipefail
cd "$(dirname "$0")/../.."
suite=$1
shift
run=(pytest -m "$suite")
[[ " $* " == *" tests/"* ]] || run+=("tests/placement/$suite")
[[ $suite != stay ]] || { suite=cloud; run=(tests.placement.cloud.world); }
[[ $EUID == 0 ]] || { echo "namespaces need root" >&2; exit 77; }

unshare --net --mount --uts --ipc --pid --fork sh -c 'd=$(mktemp -d) && mount -t tmpfs tmpfs "$d" && mkdir "$d/u" "$d/w" "$d/r" &&
  mount -t overlay overlay -o "lowerdir=/,upperdir=$d/u,workdir=$d/w" "$d/r" && umount "$d/r" "$d" && rmdir "$d"' ||
  { echo "this machine has no namespaces or no overlays for root" >&2; exit 77; }

packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge openssh-server rsync iproute2 sudo)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  (
    policy=/usr/sbin/policy-rc.d # they are installed, and not started
    [[ -e $policy ]] || { trap 'rm "$policy"' EXIT && install -m 755 /dev/stdin "$policy" <<<$'#!/bin/sh\nexit 101'; }
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
  )
fi
[[ $suite != can ]] || exit 0
# The folder of a world that was killed is removed by the next one: its lock is free.
for old in /tmp/baton-world-*/lock; do
  [[ ! -e $old ]] || flock --nonblock "$old" rm -rf "${old%/lock}" || true
done
unset PYTHONDONTWRITEBYTECODE  # else each of many processes compiles the large libraries again
root=$(mktemp -d /tmp/baton-world-XXXXXX)
chmod 755 "$root"
exec 9>"$root/lock"
flock 9
mkdir -p "$root"/{home,log,munge,wheels,uv-cache}

# Groups for the machines' limits: cgroup v1 or v2, whichever can be written to.
groups=()
for each in /sys/fs/cgroup/memory /sys/fs/cgroup/cpu /sys/fs/cgroup; do
  [[ $each != /sys/fs/cgroup ]] || { [[ -e $each/cgroup.controllers ]] && echo '+memory +cpu' >"$each/cgroup.subtree_control"; } 2>/dev/null || continue
  for old in "$each"/baton-world-*; do
    [[ ! -e $old || -e /tmp/${old##*/} ]] || find "$old" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
  mkdir "$each/${root##*/}" 2>/dev/null || continue
  [[ $each != /sys/fs/cgroup ]] || echo '+memory +cpu' >"$each/${root##*/}/cgroup.subtree_control"
  groups+=("$each/${root##*/}")
done
[[ ${groups[*]} || $suite == slurm ]] || echo "no cgroup can be written to: machines have no limits of memory and CPUs" >&2

# All processes of the world have ended when this is called.
clean() {
  rm -rf "$root"
  for each in "${groups[@]}"; do find "$each" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
}
trap clean EXIT

uv=.venv/bin/uv
version=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("skypilot"))')
sky=$PWD/.venv/bin/sky
if [[ $suite == cloud ]]; then # as docs/cloud.md says
  rented=.venv/rented
  (
    flock 8
    [[ -e $rented/ready-$version ]] || {
      $uv venv --quiet --clear --python .venv/bin/python $rented
      $uv pip install --quiet --compile-bytecode --python $rented/bin/python "skypilot[aws,slurm]==$version"
      touch "$rented/ready-$version"
    }
  ) 8>.venv/rented.lock
  sky=$PWD/$rented/bin/sky
fi

# What SkyPilot installs on a machine comes from uv's cache, filled by the same words, and what it builds its own wheel
# with from a folder.
.venv/bin/python -m pip download -qq --no-deps -d "$root/wheels" 'setuptools<80' wheel packaging
fresh() { UV_CACHE_DIR=$root/uv-cache $uv venv --quiet --clear --seed --python .venv/bin/python "$root/filling"; }
fill() { UV_CACHE_DIR=$root/uv-cache $uv pip install --quiet --python "$root/filling/bin/python" "$@"; }
if [[ $suite == cloud ]]; then
  for cloud in lambda aws; do # AWS's libraries need older versions of some packages
    fresh
    fill 'setuptools<70' 'click<8.3.0'
    fill -U 'ray[default]==2.9.3' 'pydantic-core==2.41.1' 'click<8.3.0'
    fill "skypilot[$cloud,remote]==$version"
  done
else
  fresh
fi
fill 'setuptools<70' "skypilot[slurm,remote]==$version"
rm -r "$root/filling"
chmod -R a+rwX "$root/uv-cache" # on a machine it is not root that uses it

# In the world, root's home is a throwaway, and every node of the clusters is this machine under an address of its own.
sed "s#^root:.*#root:x:0:0:root:$root/home:/bin/bash#" /etc/passwd >"$root/passwd"
printf '%s\n' '127.0.0.1 localhost baton' '::1 localhost' '192.0.2.1 baton' '127.0.1.1 a1' '127.0.1.2 a2' '127.0.2.1 b1' >"$root/hosts"
printf '%s: files\n' passwd group shadow hosts services protocols networks ethers rpc netgroup >"$root/nsswitch"  # no DNS

[[ ${run[0]} != pytest ]] || run+=(--basetemp "$root/runs")
export BATON_WORLD=$root BATON_WORLD_GROUPS="${groups[*]}" BATON_SKY=$sky HOME=$root/home
# If this script is killed, so is the world's first process, and with it all others. Tests press Ctrl-C, which a shell lets
# its background processes ignore.
setpriv --pdeathsig KILL env --default-signal=INT unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc bash -euo pipefail -c '
  hostname baton
  mount --bind "$BATON_WORLD/passwd" /etc/passwd
  mount --bind "$BATON_WORLD/hosts" /etc/hosts
  mount --bind "$BATON_WORLD/nsswitch" /etc/nsswitch.conf
  mount -t tmpfs tmpfs /run
  mkdir /run/sshd
  ip link set lo up
  ip link add veth0 type veth peer name veth1  # on lo alone Slurm resolves no name
  ip addr add 192.0.2.1/24 dev veth0
  ip link set veth0 up
  ip link set veth1 up
  "$@"  # and this shell stays: it is the first process here, and takes leave of those that lost their parents
  exit $?
' inside .venv/bin/python -m "${run[@]}" "$@"
exit
}
