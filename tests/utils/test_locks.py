"""A folder's write lock: held by one process, and free again as soon as it is released, whatever was forked meanwhile.

multiprocessing and subprocess start a process by fork and exec. In between, which normally takes less than a millisecond, the
new process has copies of all open files, and Python's hooks for forked processes are not called. The tests fork like that,
and widen the time.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arithscope.errors import UserError
from arithscope.utils.files import locked

START = """
import ctypes, sys, time
from pathlib import Path
from arithscope.utils.files import locked

LIBC = ctypes.PyDLL(None)
folder, seconds = Path(sys.argv[1]), float(sys.argv[2])

def start_slowly():
    if LIBC.fork() == 0:
        LIBC.usleep(int(seconds * 1e6))
        LIBC._exit(0)
"""
# As a run does: it locks the folder for its stages, again for the figures, and again for the report, while workers start.
AGAIN = """
for _ in range(100):
    started = time.monotonic()
    with locked(folder):
        start_slowly()
    with locked(folder):
        start_slowly()
    assert time.monotonic() - started < seconds / 2, "it was not free at once"
"""
KILLED = """
with locked(folder):
    start_slowly()
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_process_that_is_still_starting_does_not_hold_the_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START + AGAIN, str(tmp_path), "2"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("seconds", "free"), [(0.4, True), (4.0, False)])
def test_the_lock_of_a_killed_process_is_waited_for_shortly(tmp_path: Path, seconds: float, free: bool) -> None:
    command = [sys.executable, "-c", START + KILLED, str(tmp_path), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        if free:
            with locked(tmp_path):
                pass
        else:
            with pytest.raises(UserError, match="Another process is writing to"), locked(tmp_path):
                pass
