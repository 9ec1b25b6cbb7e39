"""What the benchmark scripts share: safety rules, running a child, sampling the card, results. Standard library only.

The safety rules hold for every process started from here:
  * PENSTOCK_MANAGED_LIMIT=8GiB, so managed memory never comes near the card's capacity.
    A --budget is a software cap: the card itself is never full.
  * At least MIN_FREE_BYTES are free on the card before each process, or nine tenths of a smaller card.
  * Every process has its own timeout and is ended with its whole process group.
  * The card is only read (NVML getters, or nvidia-smi queries), never set.
"""

import ctypes
import glob
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
PENSTOCK = ROOT / "bin" / "penstock"
HOOK = ROOT / "lib" / "libpenstock_hook.so"
ENGINE = ROOT / "lib" / "libpenstock.so"
WORKLOADS = BENCH / "workloads.py"

GIB = 1 << 30
MANAGED_LIMIT = "8GiB"
MANAGED_LIMIT_BYTES = 8 * GIB
MIN_FREE_BYTES = 40 * GIB
ENGINES = ("managed", "explicit")
CAP_NOTE = "software cap, managed memory <= 8 GiB"
EXPLICIT_NOTE = "explicit engine: plain device memory up to the budget, pinned host memory; no managed memory"


class Refused(Exception):
    """A safety rule does not hold; nothing was started."""


# ---- the card ----


class _MemoryInfo(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Card:
    """Reads the first visible card through NVML, else through nvidia-smi."""

    def __init__(self):
        self.index = _first_visible()
        self._nvml = self._handle = None
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            handle = ctypes.c_void_p()
            if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(self.index), ctypes.byref(handle)) == 0:
                self._nvml, self._handle = nvml, handle
        except (OSError, AttributeError):
            pass
        self.source = "nvml" if self._nvml else "nvidia-smi"
        self.total_bytes = self.memory()[2]

    def memory(self):
        """(free, used, total) bytes of the card, as the driver counts them."""
        if self._nvml:
            m = _MemoryInfo()
            r = self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(m))
            if r:
                raise Refused(f"nvmlDeviceGetMemoryInfo failed with NVML error {r}")
            return m.free, m.used, m.total
        free, used, total = (int(x) << 20 for x in self._query("memory.free,memory.used,memory.total"))
        return free, used, total

    def facts(self):
        name, driver = self._text("nvmlDeviceGetName", self._handle), self._text("nvmlSystemGetDriverVersion")
        if not name or not driver:
            name, driver = self._query("name,driver_version")
        return {"gpu": name, "driver": driver, "gpu_total_bytes": self.total_bytes, "memory_source": self.source}

    def _text(self, function, *arguments):
        if not self._nvml:
            return None
        buffer = ctypes.create_string_buffer(96)
        r = getattr(self._nvml, function)(*arguments, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode(errors="replace") if r == 0 else None

    def _query(self, fields):
        cmd = ["nvidia-smi", f"--id={self.index}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            out = subprocess.run(cmd, capture_output=True, text=True, timeout=20, check=True).stdout
        except (OSError, subprocess.SubprocessError) as e:
            raise Refused(f"no NVIDIA card can be read here ({e}): run this on the GPU machine") from None
        return [x.strip() for x in out.strip().splitlines()[0].split(",")]

    def require_free(self, wait_s=15.0):
        """Refuses to go on with less than that free; waits for a process that has just ended."""
        deadline, asked = time.monotonic() + wait_s, min(MIN_FREE_BYTES, self.total_bytes * 9 // 10)
        while True:
            free, used, _ = self.memory()
            if free >= asked:
                return used
            if time.monotonic() > deadline:
                raise Refused(f"only {free / GIB:.1f} GiB of the card are free; {asked / GIB:.0f} GiB are asked for before every run")
            time.sleep(0.5)


def _first_visible():
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return int(first) if first.isdigit() else 0


class Sampler(threading.Thread):
    """Used memory of the card every interval_s seconds: samples are [seconds, bytes]."""

    def __init__(self, card, interval_s=0.05):
        super().__init__(daemon=True)
        self.card, self.interval_s, self.samples, self._stop_event = card, interval_s, [], threading.Event()

    def run(self):
        start = time.monotonic()
        while not self._stop_event.is_set():
            try:
                self.samples.append([round(time.monotonic() - start, 3), self.card.memory()[1]])
            except Refused:
                pass  # one missed sample
            self._stop_event.wait(self.interval_s)

    def stop(self):
        self._stop_event.set()
        self.join(30)
        return self.samples


# ---- processes ----


def environment(extra=None):
    """The environment of every child. Leftovers of a surrounding Penstock run must not reach it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    env["LD_PRELOAD"] = ":".join(p for p in env.get("LD_PRELOAD", "").split(":") if p and "libpenstock" not in p)
    if not env["LD_PRELOAD"]:
        del env["LD_PRELOAD"]
    env.update(PENSTOCK_MANAGED_LIMIT=MANAGED_LIMIT, PENSTOCK_ENGINE="managed", PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    env.update(extra or {})
    return env


def start(argv, env, **kw):
    """Popen in its own process group, with the managed limit asserted."""
    if env.get("PENSTOCK_MANAGED_LIMIT") != MANAGED_LIMIT:
        raise Refused(f"PENSTOCK_MANAGED_LIMIT is {env.get('PENSTOCK_MANAGED_LIMIT')!r}, not {MANAGED_LIMIT}: nothing is started without it")
    return subprocess.Popen([str(a) for a in argv], env=env, cwd=ROOT, start_new_session=True, **kw)


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def run(argv, env, timeout_s):
    """Runs to the end or the timeout. Returns rc (None after a timeout), stdout, stderr, wall_s, timed_out."""
    began = time.monotonic()
    # Files, not pipes: a descendant that outlives the child would keep a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        p = start(argv, env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        timed_out = False
        try:
            p.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            end_group(p)  # also what a finished child left behind
        try:
            p.wait(20)
        except subprocess.TimeoutExpired:
            pass  # stuck in the driver; the next run's free-memory check decides
        texts = []
        for f in (out, err):
            f.seek(0)
            texts.append(f.read())
    rc = None if timed_out else p.returncode
    return {"rc": rc, "stdout": texts[0], "stderr": texts[1], "wall_s": round(time.monotonic() - began, 2), "timed_out": timed_out}


def penstock_argv(command, budget=None, policy=None, report=None, host_budget=None, trace=None, engine=None):
    argv = [PENSTOCK, "run"]
    for flag, value in (("--budget", budget), ("--policy", policy), ("--report", report), ("--host-budget", host_budget), ("--trace", trace), ("--engine", engine)):
        if value:
            argv += [flag, value]
    return [*argv, "--", *command]


def require_build():
    missing = [str(p.relative_to(ROOT)) for p in (PENSTOCK, HOOK, ENGINE, ROOT / "lib" / "libpenstock_torch.so") if not p.exists()]
    if missing:
        raise Refused(f"{', '.join(missing)} missing: run `make build` (on a machine with Go) and bring bin/ and lib/ along")


def find_nvcc():
    for path in (shutil.which("nvcc"), os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc", *sorted(glob.glob("/usr/local/cuda-*/bin/nvcc"))):
        if path and os.access(path, os.X_OK):
            return path
    raise Refused("nvcc was not found on PATH, in CUDA_HOME or in /usr/local/cuda")


def compile_cuda(source, out, *flags):
    """Compiles a file of this folder, for an H100 or H200 and as PTX for what came before."""
    cmd = [find_nvcc(), "-O2", "-std=c++17", "-gencode=arch=compute_75,code=compute_75", "-gencode=arch=compute_90,code=sm_90", "-o", out, BENCH / source, *flags]
    r = subprocess.run([str(x) for x in cmd], capture_output=True, text=True, timeout=180)
    if r.returncode:
        raise Refused(f"{source} was not compiled: {tail(r.stdout + r.stderr)}")
    return out


def json_lines(text):
    """The JSON objects that stand alone on a line."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass
    return found


def chosen(parser, text, known, what):
    """The names in a list with commas, all of them known."""
    names = text.split(",")
    for name in names:
        if name not in known:
            parser.error(f"unknown {what} {name!r}: choose from {', '.join(known)}")
    return names


def settings(word):
    """The variables of one NAME=VALUE[,...]."""
    pairs = [x.partition("=") for x in word.split(",")]
    if not all(name.startswith("PENSTOCK_") and equals for name, equals, _ in pairs):
        raise Refused(f"{word!r}: it takes PENSTOCK_NAME=VALUE, or several with commas between")
    return {name: value for name, _, value in pairs}


def tail(text, lines=12, characters=2000):
    return "\n".join(text.strip().splitlines()[-lines:])[-characters:]


def train(card, model, iters, timeout_s, penstock=False, budget=None, policy=None, deterministic=False, sample=False, trace=None, engine=None, host_budget=None, extra=None, flags=(), workloads=WORKLOADS):
    """One run of workloads.py, or of a script that takes the same, with its flags. Returns the raw record, with "error" set when it is of no use.

    A run that ran into its timeout keeps the iterations that it finished."""
    idle_used = card.require_free()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as d:
        progress, report = Path(d) / "progress.jsonl", Path(d) / "report.json"
        command = [sys.executable, workloads, model, str(iters), "--progress", progress]
        if deterministic:
            command.append("--deterministic")
        command += flags
        argv = penstock_argv(command, budget, policy, report, host_budget, trace, engine) if penstock else command
        sampler = Sampler(card) if sample else None
        if sampler:
            sampler.start()
        r = run(argv, environment({"PENSTOCK_BENCH_STATS": "1", **(extra or {})}), timeout_s)
        samples = sampler.stop() if sampler else None
        lines = [x for x in json_lines(r["stdout"]) if x.get("model") == model]
        record = {
            "model": model, "penstock": penstock, "budget": budget, "policy": policy, "iterations_asked": iters, "timeout_s": timeout_s,
            "command": _shown(argv, d), "rc": r["rc"], "timed_out": r["timed_out"], "wall_s": r["wall_s"],
            "idle_used_bytes": idle_used, "stderr_tail": tail(r["stderr"], 40, 6000),
            "report": _load(report), "nvml": samples,
        }  # fmt: skip
        if lines:
            record["result"] = lines[-1]
        elif progress.exists():
            done = json_lines(progress.read_text())
            record["result"] = {
                "model": model, "partial": True, "iter_s": [x["iter_s"] for x in done], "loss": [x["loss"] for x in done],
                "stats": [x["stats"] for x in done if x.get("stats")], "stats_before": done[0].get("stats_before") if done else None,
            }  # fmt: skip
    record["error"] = _fault_of(record)
    return record


def _fault_of(r):
    """What makes a run useless, or None."""
    result, report = r.get("result"), r["report"]
    if not result or not result["iter_s"]:
        why = f"no iteration within {r['timeout_s']} s" if r["timed_out"] else f"exit status {r['rc']}"
        return f"{why}: {tail(r['stderr_tail'], 3, 400) or 'nothing on stderr'}"
    if not r["timed_out"] and r["rc"] != 0:
        return f"exit status {r['rc']} after {len(result['iter_s'])} iterations: {tail(r['stderr_tail'], 3, 400)}"
    if r["penstock"]:
        if report is None:
            # A process that was ended writes no report; its own statistics stand in.
            report = result["stats"][-1] if result.get("stats") else None
            if report is None:
                return "no report was written: Penstock was not in the process"
        if not report.get("hooked"):
            return "the launch hook was not attached (report: hooked is false)"
        if report.get("failure"):
            return f"the engine failed: {report['failure']}"
        if report.get("engine") == "managed" and report.get("allocated_peak_bytes", 0) > MANAGED_LIMIT_BYTES + 2 * GIB:
            return f"SAFETY: {report['allocated_peak_bytes']} bytes allocated in the managed engine, above the limit of {MANAGED_LIMIT}"
    elif result.get("penstock_loaded"):
        return "Penstock was loaded in a stock run"
    return None


def report_of(record):
    """The exit report, or the last statistics of a run that was ended."""
    stats = (record.get("result") or {}).get("stats")
    return record["report"] or (stats[-1] if stats else {}) or {}


def _load(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _shown(argv, temporary):
    root = str(ROOT) + "/"
    words = (str(a).replace(str(temporary), "TMP") for a in argv)
    return " ".join("python3" if w == sys.executable else w.removeprefix(root) for w in words)


# ---- numbers and results ----


def median(values):
    return statistics.median(values) if values else None


def steady(values):
    """The last half: what is left after learning and warming up."""
    return values[len(values) // 2 :]


def fmt(value, spec=".3f", unit=""):
    return "n/a" if value is None else f"{value:{spec}}{unit}"


def table(head, rows):
    cells = [[str(c) for c in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def commit():
    named = os.environ.get("PENSTOCK_BENCH_COMMIT")
    if named:
        return named
    try:
        r = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, timeout=10)
        return r.stdout.strip() or "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def header(card, note=CAP_NOTE):
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": " ".join(["python3", *_relative_argv()]),
        "commit": commit(), "python": sys.version.split()[0], "managed_limit_bytes": MANAGED_LIMIT_BYTES, "note": note, **card.facts(),
    }  # fmt: skip


def _relative_argv():
    script = os.path.relpath(sys.argv[0], ROOT)
    return [script, *sys.argv[1:]]


def save(name, document):
    """Writes bench/results/NAME.json, and $PENSTOCK_BENCH_OUT/NAME.json where that is set."""
    folders = [BENCH / "results"]
    if os.environ.get("PENSTOCK_BENCH_OUT"):
        folders.append(Path(os.environ["PENSTOCK_BENCH_OUT"]))
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{name}.json.part"
        temporary.write_text(json.dumps(document, separators=(",", ":")) + "\n")
        temporary.replace(folder / f"{name}.json")


def main(body):
    """Runs a script's body; a broken rule is one line and exit status 2. Who ends it ends its child, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(body())
    except Refused as e:
        print(f"{Path(sys.argv[0]).name}: {e}", file=sys.stderr)
        sys.exit(2)
