"""Whether the operators of PyTorch's own database compute the same when what they use has left the device in between.

    python3 bench/opinfo.py [--jobs 8] [--samples N] [--only REGEX] [--minutes M] [--shard I/N] [--resume]

All samples that PyTorch tests its operators with (torch.testing's op_db; needs the package expecttest), of all types that they
have on CUDA, forward and backward (opinfo_job.py), under the explicit engine in a budget of 384 MiB. Results and gradients must be the
same bytes as with stock PyTorch, which runs each twice to tell what repeats itself, and 16 times more where one differs: atomic additions
often come in the same order twice. What raises must raise the same. Inputs are the engine's to move; results
smaller than 1 MiB stay where they are, so operators.py, whose tensors are large, is there beside this. Exit status 1 when anything is wrong, dies or does not end.
"""

import importlib.util

import _common as c
import _gate as g

# Not the database, whose import initialises CUDA.
IMPORTS = ("torch", "torch._dynamo", "torch.testing", "numpy", "scipy", "scipy.special", "scipy.signal", "expecttest", "zoo_models")
BUDGET = "384MiB"
STOCK_ROUNDS, MORE_ROUNDS = 2, 16
GROUP = 24  # operators of a process: it imports the database


class Runs:
    """What a way made of some operators, in as many processes as it takes: each that died has (state, detail) instead of results."""

    def __init__(self, zygote, a, names, rounds, pressed, env=None, engine=None):
        self.results, self.bad, self.outcomes = {}, {}, []
        left = list(names)
        while left:
            outcome = zygote.run("opinfo_job:run", {"device": a.device, "chosen": left, "rounds": rounds, "most": a.samples, "pressed": pressed}, a.timeout, env)
            self.outcomes.append(outcome)
            for line in outcome.lines:
                if "raised" in line:
                    self.bad[line["operator"]] = ("cannot" if "OutOfMemory" in line["raised"] else "FAILED", f"{line['raised']}: {g.first_line(line['why'])}")
                elif "operator" in line:
                    self.results[line["operator"]] = line["rounds"]
            bad = g.failure(outcome, engine)
            if not bad:
                break
            begun = outcome.line("begun")
            done = set(self.results) | set(self.bad)
            if begun is None or begun["begun"] in done:  # before the first, or after the last: all that have no results
                for name in left:
                    if name not in done:
                        self.bad[name] = bad
                if not set(left) - done:
                    self.bad[left[-1]] = bad
                break
            self.bad[begun["begun"]] = bad
            left = left[left.index(begun["begun"]) + 1 :]

    def wall_s(self):
        return round(sum(o.wall_s for o in self.outcomes), 1)


def compare(stock, ours):
    """(state, detail, samples, compared) of an operator's rounds with stock, and its one round under Penstock."""
    first, mine = stock[0], ours[0]
    total = compared = 0
    wrong = []
    for dtype, results in first.items():
        here, again = mine.get(dtype, []), [x.get(dtype, []) for x in stock[1:]]
        total += len(results)
        if len(here) != len(results):
            wrong.append(f"{dtype}: {len(here)} samples instead of {len(results)}")
            continue
        for i, result in enumerate(results):
            if any(i >= len(x) or x[i] != result for x in again):
                continue
            compared += 1
            if here[i] != result:
                told = isinstance(here[i], str) or isinstance(result, str)
                wrong.append(f"{dtype}, sample {i}" + (f": {_told(here[i])} instead of {_told(result)}" if told else ""))
    if wrong:
        return "WRONG", f"{len(wrong)} of {total} samples: {'; '.join(wrong[:6])}", total, compared
    if compared < total:
        return "near", f"{total - compared} of {total} samples do not repeat themselves in {len(stock)} rounds with stock and were not compared", total, compared
    return "equal", "", total, compared


def _told(result):
    return result if isinstance(result, str) else "a result"


def rows(gate, a, names):
    stock = Runs(gate.stock, a, names, STOCK_ROUNDS, False)
    if a.device == "cpu":
        ways = {"again": Runs(gate.stock, a, names, 1, True)}
    elif gate.late():
        return None
    else:
        ways = {"explicit": Runs(gate.penstock, a, names, 1, True, {"PENSTOCK_ENGINE": "explicit", "PENSTOCK_BUDGET": BUDGET, "PENSTOCK_HOST_BUDGET": g.HOST_BUDGET}, "explicit")}
    differ = [n for n in names if n not in stock.bad and any(n in w.results and compare(stock.results[n], w.results[n])[0] == "WRONG" for w in ways.values())]
    if differ:
        for name, rounds in Runs(gate.stock, a, differ, MORE_ROUNDS, False).results.items():
            stock.results[name] = stock.results[name] + rounds
    found = []
    for name in names:
        row = {"name": name, "ways": {}}
        if name in stock.bad:
            state, detail = stock.bad[name]
            row["ways"]["stock"] = {"state": "stock", "detail": f"{state}: {detail}", "wall_s": stock.wall_s()}
        else:
            for way, runs in ways.items():
                state, detail, *counts = runs.bad.get(name) or compare(stock.results[name], runs.results[name])
                row["ways"][way] = {"state": state, "detail": detail, "wall_s": runs.wall_s(), "moved_gib": round(sum(map(g.moved_gib, runs.outcomes)), 2)}
                if counts:
                    row.update(samples=counts[0], compared=counts[1])
                if state == "DIED":
                    row["ways"][way]["log_tail"] = c.tail(runs.outcomes[-1].log, 30, 3000)
        found.append(row)
    return found


def body():
    p = g.parser(__doc__, "opinfo", 8, 240)
    p.add_argument("--samples", type=int, default=0, metavar="N", help="at most so many of each type of an operator (all)")
    a = p.parse_args()
    if not importlib.util.find_spec("expecttest"):
        raise c.Refused("the package expecttest is missing, which PyTorch's database of operators needs: pip install expecttest")
    gate = g.Gate(a, IMPORTS, c.EXPLICIT_NOTE)
    told = gate.stock.run("opinfo_job:tell", {"device": a.device}, a.timeout)
    if g.failure(told, None):
        raise c.Refused(f"PyTorch's database of operators cannot be had: {': '.join(g.failure(told, None))}")
    names = g.select(g.dealt(told.line("operators")["operators"]), a)
    gate.document["budget"], gate.document["samples_each"] = BUDGET, a.samples or "all"
    return gate.run(names, lambda group: rows(gate, a, group), GROUP)


if __name__ == "__main__":
    c.main(body)
