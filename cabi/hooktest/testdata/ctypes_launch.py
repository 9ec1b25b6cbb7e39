"""Allocates, launches and copies through ctypes; every call is in the ring."""

import ctypes as C
import threading

from penstock_engine import COPY, LAUNCH, OBSERVE, Driver, attach, own, take, word

MIB = 1 << 20
shared = attach()
assert shared.size == C.sizeof(type(shared)), (shared.size, C.sizeof(type(shared)))
driver = Driver()
a, b = driver.managed(4 * MIB), driver.managed(2 * MIB)
own(shared, 1, a, 4 * MIB)
own(shared, 2, b, 2 * MIB)
shared.mode = OBSERVE

assert driver.touch_add(a + 3 * MIB, 100, 7) == 0
driver.sync()
assert word(a + 3 * MIB) == 7 and word(a) == 0
assert take(shared) == (LAUNCH, "touch_add", [1])
driver.check("cuMemcpyDtoD_v2", C.c_uint64(b), C.c_uint64(a + 3 * MIB), C.c_size_t(16))
driver.sync()  # a copy on the device does not wait
assert word(b) == 7
assert take(shared) == (COPY, 3, [2, 1])
assert take(shared) is None
assert shared.route_dlsym >= 2 and shared.unhooked == 0

# Threads, each with its own 2 MiB.
count, size = 4, 2 * MIB
base = driver.managed(count * size)
for i in range(count):
    own(shared, 10 + i, base + i * size, size)


def work(i):
    driver.enter()
    for _ in range(50):
        assert driver.touch_add(base + i * size, 4, 1) == 0


threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
for t in threads:
    t.start()
for t in threads:
    t.join()
driver.sync()
seen = {}
while (record := take(shared)) is not None:
    assert record[:2] == (LAUNCH, "touch_add")
    seen[record[2][0]] = seen.get(record[2][0], 0) + 1
assert seen == {10 + i: 50 for i in range(count)}, seen
assert all(word(base + i * size) == 50 for i in range(count))
