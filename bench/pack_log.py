#!/usr/bin/env python3
"""Write a launch log as if tensors that are born and die together shared one allocation.

    bench/pack_log.py [--mib 32] [--ops 200] LOG.tsv.gz OUT.tsv.gz

For estimates in the simulator of what packing would save the explicit engine: a pack
is born with its first member, dies with its last, moves as one, and an operation that
names a member names it. Which allocations share one is learned from the log's last
iteration but one and applied, by their order, to the last two, so that

    penstock simulate --engine explicit --iterations 10 --trace OUT.tsv.gz --budget ...

can repeat them. Members are allocations of at least 1 MiB that live for --ops
operations and more, are born one after another within as many, and die within as many
of each other. Nothing is measured, and nothing in the engine does this.
"""

import argparse
import gzip

LEAST = 1 << 20  # smaller allocations are plain memory
UNIT = 512


def references(event):
    """Where in an event pointers stand, with what comes before the allocation's id."""
    first = {"K": 10, "C": 5}.get(event[0], len(event))
    for i in range(first, len(event)):
        mark = event[i][:1] if event[i][:1] in ("r", "w") else ""
        if "+" in event[i]:
            yield i, mark


def read(path):
    """The log's events, and the index of each iteration's mark and of the end's."""
    with gzip.open(path, "rt") as log:
        events = [line.rstrip("\n").split("\t") for line in log]
    return events, [i for i, e in enumerate(events) if e[0] == "M" and (e[1].startswith("iter") or e[1] == "end")]


def births(events, first, end):
    return [e for e in events[first:end] if e[0] == "A"]


def grouped(events, marks, most_bytes, ops):
    """Lists of places in the order of births in the last iteration but one: the packs."""
    born, died, operations = {}, {}, 0
    for e in events:
        if e[0] == "A":
            born[e[1]] = operations
        elif e[0] == "F":
            died[e[1]] = operations
        elif e[0] in ("K", "C"):
            operations += 1
    packs, total = [], 0
    for place, (_, name, size) in enumerate(births(events, marks[-3], marks[-2])):
        size, death = int(size), died.get(name, operations)
        if not LEAST <= size <= most_bytes // 2 or death - born[name] < ops:
            continue
        head = packs[-1][0] if packs else None
        together = head and born[name] - head[1] <= ops and abs(death - head[2]) <= ops
        if together and total + size <= most_bytes:
            packs[-1].append((place,))
        else:
            packs.append([(place, born[name], death)])
            total = 0
        total += (size + UNIT - 1) // UNIT * UNIT
    return [[member[0] for member in pack] for pack in packs if len(pack) > 1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=32, help="most that a pack holds")
    parser.add_argument("--ops", type=int, default=200)
    parser.add_argument("log")
    parser.add_argument("out")
    args = parser.parse_args()
    events, marks = read(args.log)
    packs = grouped(events, marks, args.mib << 20, args.ops)

    unused = 1 + max(int(e[1]) for e in events if e[0] == "A")
    home, left, size = {}, {}, {}  # by member: pack and offset; by pack: members alive, bytes
    for first, end in zip(marks[-3:-1], marks[-2:]):
        names = births(events, first, end)
        for places in packs:
            pack = str(unused)
            unused += 1
            size[pack] = 0
            for _, name, n in (names[p] for p in places):
                home[name] = (pack, size[pack])
                size[pack] += (int(n) + UNIT - 1) // UNIT * UNIT
            left[pack] = len(places)

    begun = set()
    with gzip.open(args.out, "wt", compresslevel=1) as out:
        for e in events:
            if e[0] in ("A", "F") and e[1] in home:
                pack = home[e[1]][0]
                if e[0] == "A":
                    say = pack not in begun
                    begun.add(pack)
                else:
                    left[pack] -= 1
                    say = left[pack] == 0
                if not say:
                    continue
                e = ["A", pack, str(size[pack])] if e[0] == "A" else ["F", pack]
            for i, mark in references(e):
                name, offset = e[i][len(mark) :].split("+")
                if name in home:
                    pack, at = home[name]
                    e[i] = f"{mark}{pack}+{at + int(offset)}"
            out.write("\t".join(e) + "\n")
    members = sum(map(len, packs))
    print(f"{members} of {len(births(events, marks[-2], marks[-1]))} allocations of an iteration in {len(packs)} packs")


if __name__ == "__main__":
    main()
