#!/usr/bin/env bash
# Builds a little world without a way out and runs the tests of this folder in it: network, mounts, processes and
# the name of the host are its own, and all of it is gone when this ends. Needs root, Debian and `make .venv/ready-cpu`.
#
#     tests/placement/slurm/run.sh [pytest's words]
#
# The world has two Slurm clusters (alpha with two nodes, beta with one) and SkyPilot's API server, unmodified.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=$PWD/tests/placement/slurm
[[ $EUID == 0 ]] || { echo "Slurm's daemons and namespaces need root" >&2; exit 2; }

packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge openssh-server rsync iproute2)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  (
    policy=/usr/sbin/policy-rc.d # they are installed, and not started
    [[ -e $policy ]] || { trap 'rm "$policy"' EXIT && install -m 755 /dev/stdin "$policy" <<<$'#!/bin/sh\nexit 101'; }
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
  )
fi

root=$(mktemp -d /tmp/baton-slurm-XXXXXX)
chmod 755 "$root"
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{home,log,munge,wheels,uv-cache}

# What SkyPilot installs on a node comes from uv's cache, and what it builds its own wheel with from a folder.
version=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("skypilot"))')
.venv/bin/python -m pip download -qq --no-deps -d "$root/wheels" 'setuptools<80' wheel packaging
UV_CACHE_DIR=$root/uv-cache .venv/bin/uv venv --quiet --seed --python .venv/bin/python "$root/filling"
UV_CACHE_DIR=$root/uv-cache .venv/bin/uv pip install --quiet --python "$root/filling/bin/python" 'setuptools<70' \
  "skypilot[slurm,remote]==$version"
rm -r "$root/filling"

# In the world, root's home is a throwaway, and every node of the clusters is this machine under an address of its own.
sed "s#^root:.*#root:x:0:0:root:$root/home:/bin/bash#" /etc/passwd >"$root/passwd"
printf '%s\n' '127.0.0.1 localhost baton' '::1 localhost' '192.0.2.1 baton' '127.0.1.1 a1' '127.0.1.2 a2' '127.0.2.1 b1' >"$root/hosts"
printf '%s: files\n' passwd group shadow hosts services protocols networks ethers rpc netgroup >"$root/nsswitch"  # no DNS
mkdir -p /run/sshd

export BATON_WORLD=$root HOME=$root/home
unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc bash -euo pipefail -c '
  hostname baton
  mount --bind "$BATON_WORLD/passwd" /etc/passwd
  mount --bind "$BATON_WORLD/hosts" /etc/hosts
  mount --bind "$BATON_WORLD/nsswitch" /etc/nsswitch.conf
  ip link set lo up
  ip link add veth0 type veth peer name veth1  # on lo alone Slurm resolves no name
  ip addr add 192.0.2.1/24 dev veth0
  ip link set veth0 up
  ip link set veth1 up
  "$@"  # and this shell stays: it is the first process here, and takes leave of those that lost their parents
  exit $?
' inside .venv/bin/python -m pytest -m slurm --basetemp "$root/runs" "$here" "$@"
