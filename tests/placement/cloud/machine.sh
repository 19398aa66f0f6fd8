# A machine in namespaces of its own; machine.py sets the variables. What a real one has and this
# one has not: a kernel, systemd, cloud-init beyond the key, the instance's metadata at 169.254.169.254.
set -euo pipefail
if [[ ${1:-} != inside ]]; then # in the world: the words are groups of processes that limit the machine
  for group in "$@"; do echo $$ >"$group"; done
  exec setpriv --pdeathsig KILL unshare --net --mount --uts --ipc --pid --fork --kill-child bash "$0" inside
fi
machine=$BATON_WORLD/machine  # seen by this machine alone
mkdir -p "$machine"
mount -t tmpfs -o "size=$DISK" tmpfs "$machine"
mkdir "$machine"/{upper,work,root,tmp,cache,cache-work}
chmod 1777 "$machine/tmp"
new=$machine/root
hostname "ip-${PRIVATE//./-}"

mount -t overlay overlay -o "lowerdir=/,upperdir=$machine/upper,workdir=$machine/work" "$new"
mount -t proc proc "$new/proc"
mount -o bind,ro /sys "$new/sys"  # lscpu, for vLLM
mount --rbind /dev "$new/dev"
mount -t tmpfs -o size=1g tmpfs "$new/dev/shm"
mount -t tmpfs tmpfs "$new/run"
mount --bind "$machine/tmp" "$new/tmp"
for folder in $PROGRAMS; do
  mkdir -p "$new$folder"
  mount -o bind,ro "$folder" "$new$folder"
done
cache=$BATON_WORLD/uv-cache
mkdir -p "$new$cache" "$new/run/sshd"
mount -t overlay overlay -o "lowerdir=$cache,upperdir=$machine/cache,workdir=$machine/cache-work" "$new$cache"
chmod 777 "$machine/cache" "$new$cache"

until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip link set lo up
ip link set eth0 up
ip addr add "$PRIVATE/32" dev eth0
ip addr add "$PUBLIC/32" dev eth0
ip route add default dev eth0 src "$PRIVATE"  # all there is, is on the bridge

rm -f "$new"/etc/{hosts,nsswitch.conf,passwd}
printf '%s\n' '127.0.0.1 localhost' "$PRIVATE ip-${PRIVATE//./-}" >"$new/etc/hosts"
cp /etc/nsswitch.conf "$new/etc/"
sed "s#^root:.*#root:x:0:0:root:/root:/bin/bash#" /etc/passwd >"$new/etc/passwd"
if ((CHIPS)); then # no GPU: what names the instance's
  printf '#!/bin/sh\nfor each in $(seq %s); do echo "GPU $each: NVIDIA %s"; done\n' "$CHIPS" "$CHIP" >"$new/usr/local/bin/nvidia-smi"
  chmod 755 "$new/usr/local/bin/nvidia-smi"
fi
cat >"$new/tmp/first-boot" <<'END'
set -e
chmod 755 /root
useradd -m -s /bin/bash -p '*' ubuntu
mkdir -p /home/ubuntu/.ssh /home/ubuntu/.local/bin
printf '%s\n' "$KEYS" >/home/ubuntu/.ssh/authorized_keys
mv /run/uv /home/ubuntu/.local/bin/uv
chown -R ubuntu: /home/ubuntu
chmod 700 /home/ubuntu/.ssh
echo 'ubuntu ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/ubuntu
rm -f /etc/ssh/ssh_host_*
ssh-keygen -q -A
rm /tmp/first-boot
END
install -m 755 "$BATON_WORLD/uv" "$new/run/uv"
env -i PATH="$PATH" KEYS="$KEYS" chroot "$new" bash /tmp/first-boot
# The address of AWS is all that is added to what a login finds.
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$new" \
  /usr/sbin/sshd -D -e -o UsePAM=no -o MaxSessions=100 -o MaxStartups=100 -o "SetEnv=AWS_ENDPOINT_URL=$AWS_ENDPOINT_URL"
