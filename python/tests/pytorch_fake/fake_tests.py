"""Stands for a file of PyTorch's tests: what becomes of a test is in its name. FAKE_PENSTOCK is set where a fake of penstock runs it."""

import os
import subprocess
import sys
import time
import types
import unittest
from pathlib import Path

HERE = bool(os.environ.get("FAKE_PENSTOCK"))
DONE = []  # in this process

if HERE and "FAKE_ABSENT" not in os.environ:
    sys.modules["penstock"] = types.ModuleType("penstock")


class TestEnds(unittest.TestCase):
    def test_a_passes(self):
        DONE.append("a")

    def test_b_fails(self):
        self.fail("of itself\nin two lines")

    def test_c_skips(self):
        self.skipTest("not on this machine")

    def test_d_aborts(self):
        print("the last words", flush=True)
        os.abort()

    def test_e_hangs(self):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        if "FAKE_CHILD" in os.environ:
            Path(os.environ["FAKE_CHILD"]).write_text(str(child.pid))
        time.sleep(600)

    def test_f_passes(self):
        self.assertEqual(DONE, [])

    @unittest.expectedFailure
    def test_g_fails_as_expected(self):
        self.fail()

    def test_h_fails_in_part(self):
        for i in range(2):
            with self.subTest(i):
                self.assertEqual(i, 0)


class TestHere(unittest.TestCase):
    def test_a_passes(self):
        pass

    def test_b_raises_here(self):
        if HERE:
            raise RuntimeError("CUDA error: invalid argument")

    def test_c_dies_here(self):
        if HERE:
            os.abort()

    def test_d_passes(self):
        DONE.append("d")

    def test_e_passes_alone_here(self):
        self.assertFalse(HERE and DONE)


class TestNotSetUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise RuntimeError("there is no such card")

    def test_a(self):
        pass

    def test_b(self):
        pass
