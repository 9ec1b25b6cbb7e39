"""The essentials from Python: ctypes, threads and os.fork. Values are compared at the end."""

import ctypes as C
import json
import os
import signal
import sys
import threading

from penstock_engine import Driver

MIB = 1 << 20
TENSORS, ITERATIONS, SIZE = 24, 4, 8 * MIB

driver = Driver()  # resolves through dlsym
penstock = C.CDLL("libpenstock.so")
penstock.penstock_malloc.restype = C.c_void_p
penstock.penstock_malloc.argtypes = [C.c_ssize_t, C.c_int, C.c_void_p]
penstock.penstock_free.argtypes = [C.c_void_p, C.c_ssize_t, C.c_int, C.c_void_p]
for name in ("stats", "last_error"):
    function = getattr(penstock, "penstock_" + name)
    function.restype, function.argtypes = C.c_long, [C.c_char_p, C.c_size_t]


def text(name):
    buffer = C.create_string_buffer(8192)
    n = getattr(penstock, "penstock_" + name)(buffer, len(buffer))
    assert 0 <= n < len(buffer), n
    return buffer.value.decode()


def malloc(size):
    p = penstock.penstock_malloc(size, 0, None)
    assert p, text("last_error")
    return p


def free(p):
    penstock.penstock_free(p, 0, 0, None)


def child():
    buffer = C.create_string_buffer(100)
    harmless = (not penstock.penstock_malloc(SIZE, 0, None) and not penstock.penstock_malloc(10, 0, None)
                and penstock.penstock_stats(buffer, 100) < 0 and penstock.penstock_init(0) < 0)
    penstock.penstock_free(tensors[0], 0, 0, None)
    penstock.penstock_close()
    return harmless


def fork():
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a hang is a failure, not a wait
        os._exit(0 if child() else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status


def fill(p, value, size):
    driver.check("cuMemsetD32Async", C.c_uint64(p), C.c_uint(value), C.c_size_t(size // 4), None)


assert penstock.penstock_init(0) == 0, text("last_error")
tensors = [malloc(SIZE) for _ in range(TENSORS)]
small = [malloc(1000 + i) for i in range(20)]
values = list(range(TENSORS))
for i, p in enumerate(tensors):
    fill(p, values[i], SIZE)
for p in small:
    fill(p, 1, 1000)
driver.launch("empty")  # known to the threads
driver.launch("touch_add", C.c_uint64(small[0]), C.c_uint64(250), C.c_uint32(0))


def work(which):
    driver.check("cuCtxSetCurrent", context)
    for it in range(ITERATIONS):
        if it == ITERATIONS // 2 and which == 0:
            fork()
        for i in range(which, TENSORS, 2):
            scratch = malloc(3 * MIB)
            fill(scratch, 0xBAD, 3 * MIB)
            assert driver.touch_add(tensors[i], SIZE // 4, it + 1) == 0
            values[i] += it + 1
            free(scratch)
        driver.sync()


context = C.c_void_p()
driver.check("cuCtxGetCurrent", C.byref(context))
threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
for t in threads:
    t.start()
for t in threads:
    t.join()

driver.sync()
back = (C.c_uint32 * (SIZE // 4))()
for i, p in enumerate(tensors):
    driver.check("cuMemcpyDtoH_v2", back, C.c_uint64(p), C.c_size_t(SIZE))
    want = values[i].to_bytes(4, sys.byteorder) * (SIZE // 4)
    assert bytes(back) == want, f"tensor {i}"
for p in small:
    driver.check("cuMemcpyDtoH_v2", back, C.c_uint64(p), C.c_size_t(1000))
    assert set(back[:250]) == {1}
print("STATS", text("stats"))
stats = json.loads(text("stats"))
assert stats["allocated_bytes"] == TENSORS * SIZE + sum(1000 + i for i in range(20)), stats
assert stats["allocations_live"] == TENSORS + 20, stats
assert not penstock.penstock_malloc(0, 0, None)
assert not penstock.penstock_malloc(1 << 30, 0, None)
print("OOM", text("last_error"))
for p in tensors + small:
    free(p)
assert json.loads(text("stats"))["allocated_bytes"] == 0
penstock.penstock_close()
sys.stdout.flush()
