"""The gate of real programs before a release: zoo.py, opinfo.py and programs.py, one after the other.

    python3 bench/gate.py [--minutes M] [any option of theirs]

What is given is given to each; --minutes is for all of them together, and what is left of it for the next. Each writes its own results. Exit status 1 when one
of them found something, 2 when one refused to start.
"""

import subprocess
import sys
import time

import _common as c

SCRIPTS = ("programs.py", "opinfo.py", "zoo.py")


def body():
    options, minutes = sys.argv[1:], None
    if "--minutes" in options:
        at = options.index("--minutes")
        minutes = float(options[at + 1])
        del options[at : at + 2]
    began, worst = time.monotonic(), 0
    for i, script in enumerate(SCRIPTS):
        print(f"\n== {script}", flush=True)
        share = []
        if minutes:  # as much for each of those that are left; a tenth of a minute at least, so that they say what they did not run
            share = ["--minutes", str(max((minutes - (time.monotonic() - began) / 60) / (len(SCRIPTS) - i), 0.1))]
        worst = max(worst, subprocess.run([sys.executable, str(c.BENCH / script), *options, *share]).returncode)
    return worst


if __name__ == "__main__":
    c.main(body)
