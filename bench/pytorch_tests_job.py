"""Runs tests of one file of PyTorch's in this process and tells each as it ends: the job of pytorch_tests.py. Standard library only.

    python3 pytorch_tests_job.py JOB.json

    {"tests": folder, "file": "test_cuda.py", "lines": where to write, "names": [...] or null to tell which there are, "timeout_s": 120}

Lines are {"names": [...]}, {"begun": name}, {"test": name, "state", "reason", "seconds", "trace"}, {"fixture": ...} where a class could not be set up, {"error": ...} where
the file could not be imported, and {"ended": true, ...} at the end. A process that dies or hangs has a test that begun and has no line of its own.
"""

import faulthandler
import importlib
import json
import os
import sys
import time
import unittest
import warnings
from pathlib import Path

REASON, TRACE = 300, 3000  # characters


def load(tests, file):
    """The tests of a file in the order in which unittest runs them; imported as it would be by `python FILE` in the folder."""
    path = Path(tests, file)
    os.chdir(tests)
    sys.argv = [str(path)]  # PyTorch refuses test classes that are not defined there
    sys.path[0] = str(path.parent)  # instead of this script's folder
    module = importlib.import_module(path.stem)
    begin = getattr(sys.modules.get("torch.testing._internal.common_utils"), "parse_cmd_line_args", None)
    if begin:
        begin()  # what PyTorch's run_tests, which `python FILE` comes to, does first
    return list(each(unittest.defaultTestLoader.loadTestsFromModule(module)))


def each(suite):
    for x in suite:
        if isinstance(x, unittest.TestSuite):
            yield from each(x)
        else:
            yield x


def reason(kind, value):
    """An error in one line."""
    return f"{kind.__name__}: {' '.join(str(value).split())}"[:REASON]


class Told(unittest.TestResult):
    """Writes a line for each test at its end."""

    def __init__(self, emit, timeout_s):
        super().__init__()
        self.emit, self.timeout_s = emit, timeout_s

    def startTest(self, test):
        super().startTest(test)
        self.outcome, self.began = None, time.monotonic()
        self.emit(begun=test.id())
        faulthandler.dump_traceback_later(self.timeout_s)  # tells where it hangs; who started this process ends it

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)
        self.emit(test=test.id(), seconds=round(time.monotonic() - self.began, 2), **(self.outcome or {"state": "failed", "reason": "it ended without an outcome"}))

    def note(self, test, state, why="", trace=""):
        outcome = {"state": state, "reason": why[:REASON], "trace": trace[-TRACE:]}
        if not isinstance(test, unittest.TestCase):  # a class's or the module's own preparation
            self.emit(fixture=test.id(), **outcome)
        elif self.outcome is None or self.outcome["state"] != "failed":  # the first failure is what counts
            self.outcome = outcome

    def failed(self, test, err):
        self.note(test, "failed", reason(*err[:2]), self._exc_info_to_string(err, test))

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "passed")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.failed(test, err)

    def addError(self, test, err):
        super().addError(test, err)
        self.failed(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.failed(test, err)

    def addSkip(self, test, why):
        super().addSkip(test, why)
        self.note(test, "skipped", why)

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.note(test, "passed")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "failed", "passed, where a failure is expected")


def run(tests, names, emit, timeout_s):
    known = {t.id(): t for t in tests}
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as unittest's own runner has it
        unittest.TestSuite(known[n] for n in names).run(Told(emit, timeout_s))


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    lines = open(job["lines"], "a", buffering=1)

    def emit(**line):
        lines.write(json.dumps(line) + "\n")

    try:
        tests = load(job["tests"], job["file"])
    except unittest.SkipTest as e:
        emit(names=[], skipped=str(e))
        return
    except Exception as e:  # whatever an import raises
        emit(error=reason(type(e), e), missing=getattr(e, "name", None) if isinstance(e, ModuleNotFoundError) else None)
        return
    if job["names"] is None:
        emit(names=[t.id() for t in tests])
        return
    run(tests, job["names"], emit, job["timeout_s"])
    torch = sys.modules.get("torch")
    emit(ended=True, penstock="penstock" in sys.modules, cuda=bool(torch and torch.cuda.is_initialized()))


if __name__ == "__main__":
    main()
