"""A notebook's kernel under Penstock: installed by the command, started by Jupyter's own client, on the stub driver."""

from __future__ import annotations

import json
import os
import queue
import sys
import time

import pytest

from conftest import REPO

jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")


@pytest.fixture
def installed(command, tmp_path, monkeypatch):
    """The command and a kernel that it has installed."""
    data = tmp_path / "jupyter"
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(data))
    command.environment["JUPYTER_DATA_DIR"] = str(data)
    done = command.run("jupyter", "install", "--python", sys.executable, "--budget", "64MiB", "--host-budget", "256MiB", "--engine", "explicit")
    assert done.returncode == 0, done.stderr
    assert f"in {data}/kernels/penstock" in done.stdout
    return command


class Notebook:
    def __init__(self, environment, name="penstock"):
        self.manager = jupyter_client.KernelManager(kernel_name=name)
        self.manager.start_kernel(env={**environment, "PYTHONPATH": os.pathsep.join([str(REPO / "cabi" / "hooktest" / "testdata"), environment["PYTHONPATH"]])})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code, timeout=60.0):
        """What a cell prints; an error in it is one here."""
        request, out, end = self.client.execute(code), "", time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                out += content["text"]
            elif kind == "error":
                raise AssertionError("\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                return out
        raise AssertionError(f"no end of {code!r}: {out}")

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(installed):
    n = Notebook(installed.environment)
    yield n
    n.close()


START = """
import ctypes, json, os, sys
print(json.dumps(dict(pid=os.getpid(), hook=hasattr(ctypes.CDLL(None), "penstock_hook_attach"), active=os.environ.get("PENSTOCK_ACTIVE"),
    budget=os.environ.get("PENSTOCK_BUDGET"), engine=os.environ.get("PENSTOCK_ENGINE"), finder=any("penstock" in type(f).__module__ for f in sys.meta_path))))
"""

WORK = """
from penstock_engine import Driver
driver = Driver()
penstock = ctypes.CDLL(os.path.join(os.environ["PENSTOCK_LIB"], "libpenstock.so"))
penstock.penstock_malloc.restype = ctypes.c_void_p
penstock.penstock_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
SIZE = 8 << 20
tensors = [penstock.penstock_malloc(SIZE, 0, None) for _ in range(16)]  # twice the budget
assert all(tensors)
for p in tensors:
    driver.check("cuMemsetD32Async", ctypes.c_uint64(p), ctypes.c_uint(0), ctypes.c_size_t(SIZE // 4), None)
for _ in range(3):
    for p in tensors:
        assert driver.touch_add(p, SIZE // 4, 1) == 0
driver.sync()
back = (ctypes.c_uint32 * (SIZE // 4))()
driver.check("cuMemcpyDtoH_v2", back, ctypes.c_uint64(tensors[0]), ctypes.c_size_t(SIZE))
print(set(back))
"""


def test_the_hook_is_there_from_the_start(installed, notebook):
    first = json.loads(notebook.run(START))
    assert first == {"pid": first["pid"], "hook": True, "active": "1", "budget": str(64 << 20), "engine": "explicit", "finder": True}
    assert notebook.run("print('not yet') if False else None") == ""
    assert notebook.run(WORK).strip() == "{3}"  # more than fits, and every word right
    # It is seen from outside.
    seen = installed.run("top", "--json", "-n", "1", "--pid", first["pid"])
    assert seen.returncode == 0, seen.stderr
    look = json.loads(seen.stdout)
    assert look["stats"]["d2h_bytes"] > 0
    assert "ipykernel_launcher" in look["command"]
    # A cell is interrupted as ever, and a kernel that is restarted has the hook again.
    request = notebook.client.execute("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    while True:
        message = notebook.client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") == request and message["msg_type"] == "stream":
            break
    notebook.manager.interrupt_kernel()
    while True:
        message = notebook.client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") == request and message["msg_type"] == "error":
            assert message["content"]["ename"] == "KeyboardInterrupt"
            break
    notebook.manager.restart_kernel(now=True)
    notebook.client.wait_for_ready(timeout=60)
    again = json.loads(notebook.run(START))
    assert again["hook"]
    assert again["finder"]


def test_list_and_remove(installed, tmp_path):
    assert "penstock" in jupyter_client.kernelspec.KernelSpecManager().find_kernel_specs()
    spec = jupyter_client.kernelspec.get_kernel_spec("penstock")
    assert spec.argv[1:8] == ["run", "--budget", "64MiB", "--host-budget", "256MiB", "--engine", "explicit"]
    assert spec.display_name == "Python with Penstock (64MiB)"
    assert list(json.loads(installed.run("jupyter", "list", "--json").stdout)) == ["penstock"]
    # One again, elsewhere, under another name.
    prefix = tmp_path / "environment"
    prefix.mkdir()
    done = installed.run("jupyter", "install", "--python", sys.executable, "--name", "more", "--display-name", "More", "--prefix", prefix)
    assert done.returncode == 0, done.stderr
    assert json.loads((prefix / "share/jupyter/kernels/more/kernel.json").read_text())["display_name"] == "More"
    # What others have installed stays.
    other = tmp_path / "jupyter/kernels/python3"
    other.mkdir()
    (other / "kernel.json").write_text('{"argv": ["python3"], "display_name": "Python 3", "language": "python"}')
    for arguments in (["remove", "python3"], ["install", "--python", sys.executable, "--name", "python3"], ["remove", "../jupyter"]):
        done = installed.run("jupyter", *arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert other.exists()
    assert installed.run("jupyter", "remove", "penstock").returncode == 0
    assert not (tmp_path / "jupyter/kernels/penstock").exists()
