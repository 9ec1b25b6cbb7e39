"""When everything fits: stock PyTorch beside `penstock run` without a budget.

    python3 bench/fits.py [--models gpt2l,llama1b,moe,resnet152] [--iters 12] [--rounds 1] [--engine none] [--name fits]

Runs are interleaved (stock, penstock, penstock, stock, in each round), so that a
drift of the card's clocks does not favour one side. The default four models take about ten
minutes; --models and --name split them over several calls. Nothing here uses
managed memory, and the reports are checked for it. What disturbs a machine makes iterations longer and
never shorter: beside medians over all iterations stands the time that a tenth of a run's iterations
stay below, its median over the runs.
Exit status 1 when a run failed, used managed memory, or is more than 2 % slower.
"""

import argparse
import time

import _common as c

ALL = ("gpt2l", "llama1b", "moe", "resnet152")
WARM_UP = 3  # iterations left out: libraries load, the caching allocator fills
ALLOWED_PERCENT = 2.0


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--models", default=",".join(ALL))
    p.add_argument("--iters", type=int, default=12)
    p.add_argument("--rounds", type=int, default=1, help="of four runs")
    p.add_argument("--on-device", action="store_true", help="models are built where they are trained, which is faster")
    p.add_argument("--engine", help="of penstock run, e.g. none: the hook and the pool alone (its default)")
    p.add_argument("--timeout", type=float, default=120, help="seconds a run may take")
    p.add_argument("--deadline", type=float, default=570, help="no run is started that could not end within so many seconds of the start")
    p.add_argument("--name", default="fits", help="results go to bench/results/NAME.json")
    a = p.parse_args()
    a.models = a.models.split(",")
    if a.iters <= WARM_UP:
        p.error(f"more than {WARM_UP} iterations: the first {WARM_UP} are not counted")
    return a


def managed_use(record):
    """What says that managed memory was used, or None."""
    r = c.report_of(record)
    if r.get("engine") != "plain":
        return f"the report names the engine {r.get('engine')!r}, not 'plain'"
    moved = {k: r[k] for k in ("h2d_bytes", "d2h_bytes", "populated_bytes", "discarded_bytes") if r.get(k, 0) > 0}
    return f"bytes were moved: {moved}" if moved else None


def pooled(records):
    return [t for r in records for t in r["result"]["iter_s"][WARM_UP:]]


def quiet(records):
    """What a tenth of a run's iterations stay below: the median of the runs."""
    runs = (sorted(pooled([r])) for r in records)
    return c.median([x[len(x) // 10] for x in runs])


def same_losses(records):
    """Bit for bit, as far as each got (a run may have been cut short)."""
    texts = [[repr(x) for x in r["result"]["loss"]] for r in records]
    n = min(len(t) for t in texts)
    return all(t[:n] == texts[0][:n] for t in texts)


def summarise(model, records):
    s = {"model": model, "errors": [f"{'penstock' if r['penstock'] else 'stock'}: {r['error']}" for r in records if r["error"]]}
    good = [r for r in records if not r["error"]]
    stock, ours = [r for r in good if not r["penstock"]], [r for r in good if r["penstock"]]
    if not stock or not ours:
        return s
    a, b = pooled(stock), pooled(ours)
    s["stock_s"], s["penstock_s"] = c.median(a), c.median(b)
    s["slowdown_percent"] = 100 * (s["penstock_s"] / s["stock_s"] - 1)
    s["quiet_s"] = {"stock": quiet(stock), "penstock": quiet(ours)}
    s["run_medians_s"] = {"stock": [c.median(pooled([r])) for r in stock], "penstock": [c.median(pooled([r])) for r in ours]}
    s["stock_spread_percent"] = 100 * (max(a) - min(a)) / s["stock_s"]
    # Algorithms are not deterministic here: what stock itself does not repeat cannot be asked of Penstock.
    s["stock_repeats_itself"] = same_losses(stock) if len(stock) > 1 else None
    s["losses_equal"] = same_losses([stock[0], *ours])
    s["first_loss_equal"] = all(repr(r["result"]["loss"][0]) == repr(stock[0]["result"]["loss"][0]) for r in ours)
    s["peak_allocated_bytes"] = {"stock": stock[0]["result"].get("peak_allocated_bytes"), "penstock": ours[0]["result"].get("peak_allocated_bytes")}
    s["peak_reserved_bytes"] = {"stock": stock[0]["result"].get("peak_reserved_bytes"), "penstock": ours[0]["result"].get("peak_reserved_bytes")}
    return s


def row(s):
    if "stock_s" not in s:
        return [s["model"], "FAILED: " + "; ".join(s["errors"])[:100], *[""] * 8]
    if s["losses_equal"]:
        equal = "yes"
    elif s["stock_repeats_itself"] is False:
        equal = "n/a (stock differs from itself)" + ("" if s["first_loss_equal"] else ", first loss differs")
    else:
        equal = "NO"
    gib = {k: c.fmt(v / c.GIB if v is not None else None, ".2f") for k, v in s["peak_reserved_bytes"].items()}
    spread = [100 * (max(v) / min(v) - 1) for v in s["run_medians_s"].values()]
    return [
        s["model"], c.fmt(s["stock_s"], ".4f"), c.fmt(s["penstock_s"], ".4f"), c.fmt(s["slowdown_percent"], "+.2f", " %"),
        " / ".join(c.fmt(s["quiet_s"][k], ".4f") for k in ("stock", "penstock")), c.fmt(100 * (s["quiet_s"]["penstock"] / s["quiet_s"]["stock"] - 1), "+.2f", " %"),
        c.fmt(max(spread), ".2f", " %"), equal, f"{gib['stock']} / {gib['penstock']}", "; ".join(s["errors"])[:80] or "none",
    ]  # fmt: skip


HEAD = ["model", "stock s/it", "penstock s/it", "slowdown", "quiet s/it", "slowdown", "run to run", "losses = stock", "reserved GiB stock / penstock", "errors"]


def body():
    a = parse()
    c.require_build()
    card = c.Card()
    card.require_free()
    document = {**c.header(card), "warm_up": WARM_UP, "runs": [], "summaries": [], "skipped": []}
    began = time.monotonic()
    for model in a.models:
        records = []
        for penstock in (False, True, True, False) * a.rounds:
            left = a.deadline - (time.monotonic() - began)
            # What such a run took before is what the next will take.
            needed = max((r["wall_s"] for r in records), default=30) + 5
            if left < needed:
                document["skipped"].append(f"{model} {'penstock' if penstock else 'stock'}")
                continue
            r = c.train(card, model, a.iters, min(a.timeout, left), penstock=penstock, engine=a.engine if penstock else None, flags=["--on-device"] if a.on_device else [])
            if penstock and not r["error"] and managed_use(r):
                r["error"] = "managed memory was used: " + managed_use(r)
            if not r["error"] and len(r["result"]["iter_s"]) <= WARM_UP:
                r["error"] = f"only {len(r['result']['iter_s'])} iterations within {r['timeout_s']:.0f} s"
            records.append(r)
            document["runs"].append(r)
            text = r["error"] or f"{c.median(pooled([r])):.4f} s/iteration"
            print(f"{model} {'penstock' if penstock else 'stock'}: {text} ({r['wall_s']} s in all)", flush=True)
            if r["error"]:
                print(c.tail(r["stderr_tail"]), flush=True)
            elif "torch" not in document:
                document.update({k: r["result"].get(k) for k in ("torch", "cuda")})
            c.save(a.name, document)
        if records:
            document["summaries"].append(summarise(model, records))
            c.save(a.name, document)
    print(f"\nEverything fits, no budget, {c.CAP_NOTE} (none is used); medians after {WARM_UP} iterations; {document['gpu']}, driver {document['driver']}")
    print(c.table(HEAD, [row(s) for s in document["summaries"]]))
    bad = []
    for s in document["summaries"]:
        if s["errors"] or "stock_s" not in s:
            bad.append(f"{s['model']} failed")
        elif s["slowdown_percent"] > ALLOWED_PERCENT:
            bad.append(f"{s['model']} is {s['slowdown_percent']:.2f} % slower (allowed: {ALLOWED_PERCENT} %)")
        if s.get("losses_equal") is False and s["stock_repeats_itself"] is not False:
            bad.append(f"{s['model']} has other losses than stock")
    bad += [f"{x} skipped" for x in document["skipped"]]
    if bad:
        print("NOT in order: " + "; ".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    c.main(body)
