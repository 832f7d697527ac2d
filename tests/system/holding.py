"""Holds one thread of a process still, as ptrace can: in a system call on a file, as a disk or a file
server that does not answer does, or wherever it is. The other threads continue."""

import contextlib
import ctypes
import os
import platform
import signal
import time

import harness

SEIZE, INTERRUPT, SYSCALL, DETACH = 0x4206, 0x4207, 24, 17
TRACESYSGOOD, WALL, EVENT_STOP = 1, 0x40000000, 128
# The numbers of calls whose first argument is a descriptor.
CALLS = {"x86_64": {"read": 0, "write": 1, "pread": 17, "pwrite": 18},
         "aarch64": {"read": 63, "write": 64, "pread": 67, "pwrite": 68}}.get(platform.machine())
# futex(), and the call that continues one with a time limit after a stop.
WAITS = {"x86_64": (202, 219), "aarch64": (98, 128)}.get(platform.machine())
FUTEX_OPERATION, FUTEX_WAIT_BITSET = 0x7f, 9  # glibc's wait for a condition; for a mutex: FUTEX_WAIT, 0

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def trace(request, thread, data=0):
    if libc.ptrace(request, thread, None, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace {request:#x} of {thread}: {os.strerror(error)}")


def wait_stop(thread):
    """The status of a thread that stops soon."""
    until = time.monotonic() + harness.PATIENCE
    while time.monotonic() < until:
        found, status = os.waitpid(thread, WALL | os.WNOHANG)
        if found:
            if not os.WIFSTOPPED(status):
                raise AssertionError(f"thread {thread} ended: {status}")
            return status
        time.sleep(0.001)
    raise AssertionError(f"thread {thread} does not stop")


def find(pid, name):
    """The first thread of this name."""
    threads = sorted(int(entry) for entry in os.listdir(f"/proc/{pid}/task"))
    for thread in threads:
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/comm") as file:
            if file.read().strip() == name:
                return thread
    raise AssertionError(f"process {pid} has no thread {name}")


def call_of(pid, thread):
    """The number of the system call in which the thread is stopped, and its arguments."""
    with open(f"/proc/{pid}/task/{thread}/syscall") as file:
        return file.read().split()


def awaits_condition(pid, thread):
    """Whether the thread, which is stopped, waits for a condition; it then holds no mutex that
    others need meanwhile."""
    fields = call_of(pid, thread)
    futex, restart = WAITS
    if fields[0] == str(restart):
        return True
    return fields[0] == str(futex) and int(fields[2], 16) & FUTEX_OPERATION == FUTEX_WAIT_BITSET


def is_in(pid, thread, call, words):
    """Whether the thread, which is stopped, is in this call on a file whose path has these words."""
    fields = call_of(pid, thread)
    if len(fields) < 2 or int(fields[0]) != CALLS[call]:
        return False
    try:
        return words in os.readlink(f"/proc/{pid}/fd/{int(fields[1], 16)}")
    except FileNotFoundError:
        return False


def hold(pid, name, call=None, words=""):
    """Stops the thread, the main one without a name, in this call if one is given. Returns it, for
    let_go, which the same thread of this program must call before the process ends."""
    thread = find(pid, name) if name else pid
    trace(SEIZE, thread, TRACESYSGOOD)
    trace(INTERRUPT, thread)
    status = wait_stop(thread)
    try:
        while call is not None and not is_in(pid, thread, call, words):
            number = os.WSTOPSIG(status)
            own = number == signal.SIGTRAP | 0x80 or status >> 16 == EVENT_STOP
            trace(SYSCALL, thread, 0 if own else number)
            status = wait_stop(thread)
    except BaseException:
        let_go(thread)
        raise
    return thread


def let_go(thread):
    with contextlib.suppress(OSError):  # it has ended
        trace(DETACH, thread)


def is_permitted():
    """Whether a process may hold its descendants here."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        trace(SEIZE, child)
        return CALLS is not None
    except OSError:
        return False
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
