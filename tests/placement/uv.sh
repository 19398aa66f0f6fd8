#!/bin/bash
# uv as SkyPilot's machines have it: offline, from the filled cache, and with this Python where it wants 3.10.
export UV_CACHE_DIR=@ROOT@/uv-cache UV_LINK_MODE=symlink UV_OFFLINE=1 UV_PYTHON_DOWNLOADS=never
umask 0  # the cache is that of root on the clusters and of other users on machines
words=()
for word in "$@"; do [[ $word == 3.10 ]] && word=@PYTHON@; words+=("$word"); done
exec @UV@ "${words[@]}"
