"""A pool of forked workers, as a DataLoader has, beside a parent that uses the device."""

import multiprocessing
import os
import sys

from penstock_engine import LAUNCH, OBSERVE, Driver, attach, own, take, word

MIB = 1 << 20
shared = attach()
driver = Driver()
p = driver.managed(2 * MIB)
own(shared, 1, p, 2 * MIB)
shared.mode = OBSERVE


def work(n):
    """Runs in a child: the hook refuses an engine, the driver's refusal comes through, Python works."""
    refused = attach() is None
    return n * n, refused, driver.touch_add(p, 1, 1), os.getpid()


if __name__ == "__main__":
    assert driver.touch_add(p, 1, 1) == 0
    with multiprocessing.get_context("fork").Pool(4) as pool:
        results = pool.map(work, range(64))
        assert driver.touch_add(p, 1, 1) == 0  # while the children live
    driver.sync()
    assert [r[0] for r in results] == [n * n for n in range(64)]
    assert all(r[1] for r in results), "a child attached"
    assert {r[2] for r in results} == {3}, results  # CUDA_ERROR_NOT_INITIALIZED
    assert os.getpid() not in {r[3] for r in results}
    assert word(p) == 2
    assert take(shared) == (LAUNCH, "touch_add", [1])
    assert take(shared) == (LAUNCH, "touch_add", [1])
    assert take(shared) is None
    # A child by os.fork that runs to the interpreter's normal exit.
    pid = os.fork()
    if pid == 0:
        assert attach() is None
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
