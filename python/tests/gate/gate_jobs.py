"""Jobs of test_gate.py: they stand for programs that run, fail, die and hang."""

import os
import signal
import subprocess
import sys
import time


def well(emit, value):
    emit(result={"losses": [value], "digests": [1]}, peak_bytes=8)


def raises(emit):
    raise MemoryError("there is\nno more")


def dies(emit):
    os.kill(os.getpid(), signal.SIGSEGV)


def dies_at_exit(emit):
    import atexit

    emit(result={"losses": [], "digests": []}, peak_bytes=8)
    atexit.register(os._exit, 5)


def hangs(emit):
    """So does a process that it started, whose id is told."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    emit(child=child.pid)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def ends_its_parent(emit):
    os.kill(os.getppid(), signal.SIGKILL)


def tells(emit):
    emit(result=dict(environment=os.environ.get("SAID"), modules=[m for m in ("gate_jobs", "opens_card") if m in sys.modules], parent=os.getppid()))
