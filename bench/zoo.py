"""Whether architectures that this project did not write train inside half and a quarter of their peak as they do in memory.

    python3 bench/zoo.py [--jobs 8] [--only REGEX] [--minutes M] [--shard I/N] [--resume]

Some 330 architectures of transformers, timm, torchvision and PyTorch Geometric (zoo_models.py), with random weights: a few
training iterations each with stock PyTorch, then under the explicit engine in a half and a quarter of the peak that stock
had. Algorithms are deterministic where PyTorch can, so losses, parameters and buffers must be the same bytes. Where they are not, stock runs again: what
does not repeat itself by itself is told from what is wrong. Exit status 1 when anything is wrong, dies or does not end.
"""


import _common as c
import _gate as g

IMPORTS = ("torch", "torch._dynamo", "torch.utils.checkpoint", "numpy", "scipy.optimize", "transformers", "transformers.modeling_utils", "transformers.generation", "transformers.loss.loss_utils", "torchvision", "timm", "torch_geometric.nn", "zoo_models")
SHARES = {"half": 0.5, "quarter": 0.25}
MIB = 1 << 20


def row(gate, a, name):
    arguments = {"name": name, "device": a.device, "iterations": a.iterations}

    def run(zygote, env=None):
        return zygote.run("zoo_models:train", arguments, a.timeout, env)

    stock = run(gate.stock)
    ways = {}
    bad = g.failure(stock, None)
    if bad:
        ways["stock"] = g.record(stock, "stock", f"{bad[0]}: {bad[1]}")
        return {"name": name, "ways": ways}
    result, peak = stock.line("result")["result"], stock.line("result")["peak_bytes"]
    again = None

    def second():
        nonlocal again
        if again is None:
            again = run(gate.stock)
        return (again.line("result") or {}).get("result")

    if a.device == "cpu":
        ways["again"] = g.record(again := run(gate.stock), *judged(again, result, lambda: None))
    for way, share in SHARES.items() if a.device == "cuda" else ():
        if gate.late():
            return None
        budget = int(peak * share) // MIB
        ours = run(gate.penstock, {"PENSTOCK_ENGINE": "explicit", "PENSTOCK_BUDGET": f"{budget}MiB", "PENSTOCK_HOST_BUDGET": g.HOST_BUDGET})
        ways[way] = g.record(ours, *judged(ours, result, second, "explicit"), budget_mib=budget)
    return {"name": name, "peak_bytes": peak, "parameters": stock.line("result")["parameters"], "stock_wall_s": stock.wall_s, "losses": result["losses"], "ways": ways}


def judged(ours, stock, second, engine=None):
    """(state, detail) of an outcome; second() runs stock again, which is needed only when something differs."""
    bad = g.failure(ours, engine)
    if bad:
        return bad
    result = ours.line("result")["result"]
    return ("equal", "") if g.same(result, stock) else g.compare(stock, second(), result)


def body():
    p = g.parser(__doc__, "zoo", 8, 90)
    p.add_argument("--iterations", type=int, default=4)
    a = p.parse_args()
    import zoo_models

    names = g.select(g.dealt(zoo_models.ZOO), a)
    gate = g.Gate(a, IMPORTS, c.EXPLICIT_NOTE)
    return gate.run(names, lambda name: row(gate, a, name))


if __name__ == "__main__":
    c.main(body)
