"""Fault analysis on a real GPU: recordings of GPT-2 medium at 3 GiB, and a plain CUDA program page by page.

    python3 bench/faults.py [--deadline 340] [--only probe,gpt2m]

probe     bench/faults_probe.c (64 MiB, knows nothing of Penstock) recorded by `faults record -- cmd`
          and by `faults record --pid`: every page must have moved as the program made it move.
gpt2m     recorded under naive paging and under penstock at --budget 3GiB: attribution, sums against
          the driver's own counters, lost events, `explain` and `diff`.

What recording costs is measured by faults_cost.py. Managed memory stays at most 8 GiB and the budget is a
software cap (see _common.py). Exit status 1 when a check fails, 2 when nothing could be run. Results:
bench/results/faults.json, and the texts beside it.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import _common as c

PAGE = 4096
PROBE_BYTES = 64 << 20


def penstock(*args, timeout=120, env=None, **kw):
    return subprocess.run([str(c.PENSTOCK), *map(str, args)], capture_output=True, text=True, timeout=timeout, env=env or c.environment(), cwd=c.ROOT, **kw)


def report(path, timeout=180):
    began = time.monotonic()
    r = penstock("faults", "report", path, "--format", "json", timeout=timeout)
    if r.returncode:
        raise RuntimeError(f"faults report: {r.stderr.strip()}")
    d = json.loads(r.stdout)
    d["report_seconds"] = time.monotonic() - began
    return d


# ---- the plain program ----


def build_probe(folder):
    out = Path(folder) / "faults_probe"
    cc = next((x for x in ("cc", "gcc", "clang") if subprocess.run(["which", x], capture_output=True).returncode == 0), None)
    if not cc:
        raise c.Refused("no C compiler: the plain CUDA program cannot be built")
    subprocess.run([cc, "-O1", "-o", str(out), str(c.BENCH / "faults_probe.c"), "-ldl"], check=True)
    return out


def check_pages(base, trace):
    """What the recording says happened to each page, against what the program did."""
    r = penstock("faults", "export", trace, "--format", "jsonl")
    if r.returncode:
        return {"error": r.stderr.strip()}
    moves, faulted, kinds, lost = {"HtoD": Counter(), "DtoH": Counter()}, Counter(), Counter(), 0
    causes = {"HtoD": Counter(), "DtoH": Counter()}
    for line in r.stdout.splitlines():
        e = json.loads(line)
        kinds[e["kind"]] += 1
        if e["kind"] == "lost":
            lost += e["bytes"]
        if e["kind"] not in ("migration", "fault"):
            continue
        at = int(e["virtual_address"], 16) - base
        if e["kind"] == "fault":
            faulted[at // PAGE] += 1
            continue
        causes[e["direction"]][e.get("cause", "none")] += e["bytes"]
        for p in range(at // PAGE, (at + e["bytes"]) // PAGE):
            moves[e["direction"]][p] += 1
    pages = PROBE_BYTES // PAGE
    want = {
        "HtoD": {p: 2 if p < pages // 2 else 1 for p in range(pages)},
        "DtoH": {p: 1 for p in range(pages) if p < pages // 2 or p >= pages // 4 * 3},
    }
    wrong = {d: sum(1 for p in set(moves[d]) | set(want[d]) if moves[d][p] != want[d].get(p, 0)) for d in moves}
    outside = sum(n for p, n in faulted.items() if not 0 <= p < pages)
    blocks = {p // 512 for p in faulted if 0 <= p < pages}
    return {
        "events": dict(kinds), "pages_moved_otherwise": wrong, "faults": sum(faulted.values()), "faulted_pages": len(faulted), "faults_outside": outside,
        "blocks_with_faults": len(blocks), "blocks": pages // 512, "lost": lost, "bytes_by_cause": {d: dict(x) for d, x in causes.items()},
    }  # fmt: skip


def judged(x, launches):
    """The problems with a probe's recording."""
    if x.get("error"):
        return [x["error"]]
    bad = []
    for d, n in x["pages_moved_otherwise"].items():
        if n:
            bad.append(f"{n} pages moved {d} otherwise than the program made them")
    if x["faults"] == 0 or x["blocks_with_faults"] != x["blocks"] or x["faults_outside"]:
        bad.append(f"{x['faults']} faults in {x['blocks_with_faults']} of {x['blocks']} blocks, {x['faults_outside']} outside")
    if x["lost"]:
        bad.append(f"{x['lost']} events lost")
    s = x["summary"]
    d = s.get("driver")
    if not d or (d["h2d_bytes"], d["d2h_bytes"]) != (s["h2d_bytes"], s["d2h_bytes"]):
        bad.append(f"the driver's own sums are {d}, the events' {s['h2d_bytes']} and {s['d2h_bytes']}")
    if launches and (x["attribution"]["none"] or x["launches"] != 2 or x["kernels"].get("touch_pages") != x["faults"]):
        bad.append(f"attribution {x['attribution']}, kernels {x['kernels']}, {x['launches']} launches")
    return bad


def finish_probe(x, base, trace, launches):
    x.update(check_pages(base, trace))
    if not x.get("error"):
        r = report(trace)
        x["summary"], x["attribution"], x["limits"] = r["summary"], r["attribution"], r.get("limits")
        x["kernels"], x["launches"] = {k["kernel"]: k["faults"] for k in r["kernels"]}, r["summary"]["launches"]
        x["causes"] = {k["cause"]: k["faults"] for k in r["causes"] if k["faults"]}
    x["problems"] = judged(x, launches)
    x["explain"] = penstock("faults", "explain", trace).stdout
    return x


def probe_by_command(program, folder):
    trace = Path(folder) / "command.pstrace"
    r = penstock("faults", "record", "--output", trace, "--", program, timeout=60)
    lines = c.json_lines(r.stdout)
    x = {"how": "faults record -- command", "rc": r.returncode, "stderr": c.tail(r.stderr)}
    if r.returncode or not lines or not lines[-1]["right"] or not trace.exists():
        x["problems"] = [f"exit status {r.returncode}, {'wrong data, ' if lines and not lines[-1]['right'] else ''}{c.tail(r.stderr, 3, 400)}"]
        return x
    return finish_probe(x, lines[-1]["base"], trace, launches=True)


def probe_by_pid(program, folder):
    trace = Path(folder) / "pid.pstrace"
    x = {"how": "faults record --pid"}
    # Yama lets only ancestors trace: the program is started by us, and so is the listener.
    p = subprocess.Popen([str(program), "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=c.environment())
    listener = None
    try:
        ready = p.stdout.readline().split()
        if len(ready) != 2:
            x["problems"] = [f"the program did not start: {p.stderr.read()[:300]}"]
            return x
        listener = subprocess.Popen([str(c.PENSTOCK), "faults", "record", "--pid", ready[1], "--output", str(trace)], stderr=subprocess.PIPE, text=True, env=c.environment(), cwd=c.ROOT)
        time.sleep(2.0)
        if listener.poll() is not None:
            x["problems"] = [f"the listener ended: {listener.stderr.read().strip()}"]
            return x
        out, err = p.communicate("go\n", timeout=60)
        _, x["stderr"] = listener.communicate(timeout=60)
        x["rc"] = p.returncode
    except subprocess.TimeoutExpired:
        x["problems"] = ["the program or its listener did not end within 60 s"]
        return x
    finally:
        for q in (p, listener):
            if q and q.poll() is None:
                q.kill()
                q.wait()
    lines = c.json_lines(out)
    if p.returncode or not lines or not lines[-1]["right"]:
        x["problems"] = [f"exit status {p.returncode}: {err[-300:]}"]
        return x
    return finish_probe(x, lines[-1]["base"], trace, launches=False)


# ---- gpt2m ----


def seconds_of(record):
    result = record.get("result")
    return c.median(c.steady(result["iter_s"])) if result and result.get("iter_s") else None


def analysed(record, trace):
    r = report(trace)
    s, live = r["summary"], c.report_of(record)
    d = s.get("driver") or {}
    n = s["faults"]
    at = r["attribution"]
    return {
        "file_bytes": trace.stat().st_size, "events": r["events"], "report_seconds": round(r["report_seconds"], 2), "faults": n, "serviced_faults": s["serviced_faults"],
        "attributed_share": (n - at["none"]) / n if n else None, "attribution": at, "lost": s["lost_events"],
        "lost_share": s["lost_events"] / max(r["events"], 1), "h2d_bytes": s["h2d_bytes"], "d2h_bytes": s["d2h_bytes"],
        "driver": d, "engine": {k: live.get(k) for k in ("h2d_bytes", "d2h_bytes", "faults", "dropped_events", "dropped_records")},
        "equal_to_driver": bool(d) and (d["h2d_bytes"], d["d2h_bytes"], d["gpu_faults"]) == (s["h2d_bytes"], s["d2h_bytes"], s["serviced_faults"]),
        "causes": {x["cause"]: x["faults"] for x in r["causes"] if x["faults"]}, "phases": {x["phase"]: x["faults"] for x in r["phases"]},
        "stall_seconds": s["stall_seconds"], "seconds": r["seconds"], "amplification": s["amplification"], "limits": r.get("limits"),
        "kernels": [[k["kernel"][:120], k["faults"]] for k in r["kernels"][:8]],
    }  # fmt: skip


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--deadline", type=float, default=340, help="no run is started that could not end within so many seconds")
    p.add_argument("--only", default="probe,gpt2m")
    p.add_argument("--iters", type=int, default=16)
    p.add_argument("--naive-iters", type=int, default=5)
    p.add_argument("--keep", action="store_true", help="keep the recordings in $PENSTOCK_BENCH_OUT")
    p.add_argument("--name", default="faults", help="results go to bench/results/NAME.json")
    return p.parse_args()


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    card.require_free()
    began = time.monotonic()
    only = a.only.split(",")
    doc = {**c.header(card), "probe": [], "gpt2m": {}, "runs": [], "skipped": []}
    failures = []
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as folder:
        doctor = penstock("doctor")
        doc["doctor"] = doctor.stdout
        print(doctor.stdout)
        if "probe" in only:
            program = build_probe(folder)
            for f in (probe_by_command, probe_by_pid):
                x = f(program, folder)
                doc["probe"].append(x)
                failures += [f"probe, {x['how']}: {b}" for b in x["problems"]]
                print(f"\nprobe by {x['how']}: {'as the program did' if not x['problems'] else x['problems']}")
                print(json.dumps({k: v for k, v in x.items() if k not in ("explain", "problems")}, indent=None)[:1500])
                print(x.get("explain", ""), flush=True)
                c.save(a.name, doc)
        plan = [("naive", a.naive_iters), ("penstock", a.iters)] if "gpt2m" in only else []
        traces = {}
        for policy, iters in plan:
            left = a.deadline - (time.monotonic() - began)
            if left < 35:
                doc["skipped"].append(policy)
                continue
            trace = Path(folder) / f"{policy}.pstrace"
            r = c.train(card, "gpt2m", iters, min(90, left), penstock=True, budget="3GiB", policy=policy, deterministic=True, trace=trace)
            s = seconds_of(r)
            doc["runs"].append({"name": policy, "seconds_per_iteration": s, "error": r["error"], "wall_s": r["wall_s"], "iter_s": (r.get("result") or {}).get("iter_s")})
            print(f"{policy}: {c.fmt(s)} s/iteration{'; ' + r['error'] if r['error'] else ''} ({r['wall_s']} s in all)", flush=True)
            if r["error"]:
                failures.append(f"{policy}: {r['error'].splitlines()[0]}")
                print(c.tail(r["stderr_tail"]))
                continue
            if trace.exists():
                traces[policy] = trace
                x = analysed(r, trace)
                doc["gpt2m"][policy] = x
                print(json.dumps(x, indent=None))
                x["explain"] = penstock("faults", "explain", trace).stdout
                print(x["explain"], flush=True)
                if policy == "naive" and (not x["faults"] or x["attributed_share"] != 1.0):
                    failures.append(f"naive: {x['attributed_share']} of {x['faults']} faults are attributed")
                if not x["equal_to_driver"]:
                    failures.append(f"{policy}: events {x['h2d_bytes']} / {x['d2h_bytes']}, {x['serviced_faults']} serviced, driver {x['driver']}")
                if x["lost_share"] > 0.001:
                    failures.append(f"{policy}: {x['lost']} events lost of {x['events']}")
            c.save(a.name, doc)
        if "naive" in traces and "penstock" in traces:
            doc["diff"] = penstock("faults", "diff", traces["naive"], traces["penstock"]).stdout
            print(doc["diff"])
            doc["report_naive"] = penstock("faults", "report", traces["naive"]).stdout
            print(doc["report_naive"])
            out = os.environ.get("PENSTOCK_BENCH_OUT")
            if out and a.keep:
                for path in traces.values():
                    shutil.copy(path, Path(out) / path.name)
            if out:
                penstock("faults", "report", traces["naive"], "--format", "html", "--output", Path(out) / "faults-naive.html")
                penstock("faults", "export", traces["penstock"], "--format", "chrome", "--output", Path(out) / "faults-penstock-chrome.json")
    doc["failures"] = failures
    c.save(a.name, doc)
    for f in failures:
        print("FAILED:", f)
    if doc["skipped"]:
        print("skipped for the deadline:", ", ".join(doc["skipped"]))
    print(f"{time.monotonic() - began:.0f} s in all")
    return 1 if failures else 0


if __name__ == "__main__":
    c.main(body)
