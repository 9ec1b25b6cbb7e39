"""What the bus gives beside a training job: copies of pinned memory while a workload of bench/workloads.py trains.

    python3 bench/probe/bus_beside.py [--model resnet152] [--seconds 2]

For each combination of directions (in, out), of a job beside or none, and of what another thread
does every 300 us (nothing, map and unmap a handle of 64 MiB, also create and release it), prints a
JSON line with GB/s of copies of 64 MiB, two in flight, and with the job's seconds per iteration.
Plain device memory only, under 2 GiB beside the job's.
"""

import argparse
import ctypes
import json
import mmap
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
MIB = 1 << 20
CHUNK = 64 * MIB


class Copies(threading.Thread):
    """Copies in one direction again and again, two in flight, each timed by events."""

    def __init__(self, torch, direction, host, device):
        super().__init__(daemon=True)
        self.torch, self.direction, self.host, self.device = torch, direction, host, device
        self.times, self.end = [], False

    def run(self):
        t = self.torch
        stream, flying = t.cuda.Stream(), []
        with t.cuda.stream(stream):
            last = t.cuda.Event(enable_timing=True)
            last.record()
            i = 0
            while not self.end:
                h = self.host[i % len(self.host)]
                self.device.copy_(h, non_blocking=True) if self.direction == "in" else h.copy_(self.device, non_blocking=True)
                e = t.cuda.Event(enable_timing=True)
                e.record()
                flying.append((last, e))
                last = e
                i += 1
                if len(flying) > 2:
                    a, b = flying.pop(0)
                    while not b.query():
                        time.sleep(5e-5)
                    self.times.append(a.elapsed_time(b) / 1e3)
            stream.synchronize()


class Maps(threading.Thread):
    """Maps a handle of device memory and unmaps it, with a pause; anew: one that is created for it and released."""

    class Prop(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("where", ctypes.c_int), ("id", ctypes.c_int), ("rest", ctypes.c_ubyte * 16)]

    class Access(ctypes.Structure):
        _fields_ = [("where", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]

    def __init__(self, anew):
        super().__init__(daemon=True)
        self.anew = anew
        self.cuda, self.end, self.times = ctypes.CDLL("libcuda.so.1"), False, []

    def call(self, name, *a):
        rc = getattr(self.cuda, name)(*a)
        if rc:
            raise RuntimeError(f"{name}: {rc}")

    def run(self):
        context, u64, size = ctypes.c_void_p(), ctypes.c_uint64, ctypes.c_size_t
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        prop = self.Prop(type=1, where=1, id=0)
        access = self.Access(where=1, id=0, flags=3)
        at, handle = u64(), u64()
        self.call("cuMemAddressReserve", ctypes.byref(at), size(CHUNK), size(0), u64(0), u64(0))
        create = lambda: self.call("cuMemCreate", ctypes.byref(handle), size(CHUNK), ctypes.byref(prop), u64(0))  # noqa: E731
        create()
        while not self.end:
            began = time.perf_counter()
            self.call("cuMemMap", at, size(CHUNK), size(0), handle, u64(0))
            self.call("cuMemSetAccess", at, size(CHUNK), ctypes.byref(access), size(1))
            self.times.append(time.perf_counter() - began)
            self.call("cuMemUnmap", at, size(CHUNK))
            if self.anew:
                self.call("cuMemRelease", handle)
                create()
            time.sleep(3e-4)
        self.call("cuMemRelease", handle)
        self.call("cuMemAddressFree", at, size(CHUNK))
        self.call("cuDevicePrimaryCtxRelease_v2", 0)


def pinned(torch, chunks):
    """Huge pages, touched and registered, as the product's pool has them."""
    m = mmap.mmap(-1, (chunks + 1) * CHUNK)
    m.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(m, dtype=torch.uint8)
    start = -whole.data_ptr() % CHUNK
    whole = whole[start : start + chunks * CHUNK]
    whole.zero_()
    rc = torch.cuda.cudart().cudaHostRegister(whole.data_ptr(), whole.numel(), 0)
    if int(rc):
        raise RuntimeError(f"cudaHostRegister: {rc}")
    return list(whole.split(CHUNK))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default="resnet152")
    p.add_argument("--seconds", type=float, default=2)
    a = p.parse_args()
    import torch
    import workloads

    workloads.Settings.on_device = True
    host = {"in": pinned(torch, 8), "out": pinned(torch, 8)}
    device = {d: torch.empty(CHUNK, dtype=torch.uint8, device="cuda") for d in host}
    _, step = workloads.MODELS[a.model]()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    for directions in ((), ("in",), ("out",), ("in", "out")):
        for job in (False, True):
            for maps in ("", "mapped", "created"):
                if not directions and not job:
                    continue
                threads = [Copies(torch, d, host[d], device[d]) for d in directions] + ([Maps(maps == "created")] if maps else [])
                for t in threads:
                    t.start()
                began, steps = time.perf_counter(), []
                while time.perf_counter() - began < a.seconds:
                    if job:
                        at = time.perf_counter()
                        step()
                        torch.cuda.current_stream().synchronize()
                        steps.append(time.perf_counter() - at)
                    else:
                        time.sleep(0.05)
                row = {"model": a.model, "job": job, "handles": maps or "left alone", "step_s": statistics.median(steps) if steps else None}
                for t in threads:
                    t.end = True
                    t.join()
                    if isinstance(t, Copies):
                        row[t.direction + "_gb_per_s"] = round(CHUNK / statistics.median(t.times) / 1e9, 1)
                        row[t.direction + "_mean_gb_per_s"] = round(CHUNK / statistics.mean(t.times) / 1e9, 1)
                    else:
                        row["map_us"] = round(statistics.median(t.times) * 1e6, 1)
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
