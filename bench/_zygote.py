"""A process that has imported what jobs need, and forks one child for each job of the gate.

    python3 _zygote.py MODULE,MODULE...

Imports take longer than most jobs; here they are made once. CUDA does not survive a fork, so nothing here may
initialise it: the children do, and Penstock starts in the child that asks for it. Jobs come in as JSON lines on
stdin, and what becomes of them goes out on stdout:

    {"id": 1, "target": "module:function", "arguments": {...}, "env": {...}, "penstock": true, "folder": "/tmp/..."}
    {"ready": [modules], "seconds": 9.1}      {"id": 1, "pid": 4711}      {"id": 1, "status": 0}

A child calls function(emit, **arguments): what it emits are lines of FOLDER/lines.jsonl, what it prints is FOLDER/log. It
then ends as any Python program does, so that what breaks at exit is seen too.
"""

import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback

CUDA_DEVICE = "nvidia-uvm"  # opened by cuInit, and by nothing that only reads the card (NVML)


def cuda_is_initialised():
    for fd in os.listdir("/proc/self/fd"):
        try:
            if CUDA_DEVICE in os.readlink(f"/proc/self/fd/{fd}"):
                return True
        except OSError:
            pass  # the listing's own
    return False


def say(message):
    os.write(1, (json.dumps(message) + "\n").encode())


def become(job):
    """Turns this forked child into the job's process; returns what there is to call."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    sources = {0: os.open(os.devnull, os.O_RDONLY), 1: os.open(os.path.join(job["folder"], "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)}
    for fd, source in ((0, sources[0]), (1, sources[1]), (2, sources[1])):
        os.dup2(source, fd)
    os.environ.update(job["env"])
    lines = open(os.path.join(job["folder"], "lines.jsonl"), "a", buffering=1)

    def emit(**line):
        lines.write(json.dumps(line) + "\n")

    def work():
        try:
            if job["penstock"]:
                os.environ["PENSTOCK_ACTIVE"] = "1"  # what this process starts is under Penstock as well
                import penstock

                penstock.enable()
            module, _, function = job["target"].partition(":")
            getattr(importlib.import_module(module), function)(emit, **job["arguments"])
        except Exception as e:  # whatever a job raises is its result
            emit(error=type(e).__name__, message=str(e).strip()[:2000])
            traceback.print_exc()
            return 1
        return 0

    return work


def reap(running):
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            say({"id": running.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def serve():
    """Forks a child for each job until stdin ends. Returns the work of the child in a child, and None here."""
    wakeup, wake = os.pipe()
    for fd in (wakeup, wake):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running, rest = {}, b""
    while True:
        readable, _, _ = select.select([0, wakeup], [], [])
        if wakeup in readable:
            os.read(wakeup, 4096)
            reap(running)
        if 0 in readable:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                job = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    return become(job)
                running[pid] = job["id"]
                say({"id": job["id"], "pid": pid})
    for pid in running:  # whoever asked for them is gone
        os.kill(pid, signal.SIGKILL)
    return None


def main():
    began = time.monotonic()
    ready = []
    for name in filter(None, sys.argv[1].split(",")):
        importlib.import_module(name)
        if cuda_is_initialised():
            say({"initialises_cuda": name})
            return 1
        ready.append(name)
    gc.freeze()  # children share these pages for as long as nobody writes to them
    say({"ready": ready, "seconds": round(time.monotonic() - began, 1)})
    work = serve()
    return work() if work else 0


if __name__ == "__main__":
    sys.exit(main())
