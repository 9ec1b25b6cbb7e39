"""Stand-ins for the CUDA libraries that a PyTorch is linked with, so that it can be imported without them.

    cuda_stubs.py TORCH_LIB FOLDER

Those libraries are gigabytes and do nothing without a GPU. For each that is not there, FOLDER gets a library of its
name in which every function that PyTorch wants of it, by name and version, says that there is no device.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE


def stub(name: str) -> str:
    if re.fullmatch(r"cuda\w*GetError(Name|String)", name):  # PyTorch puts it into the error that it raises
        return f'const char *{name}(void) {{ return "no CUDA device"; }}\n'
    return f"int {name}(void) {{ return {NO_DEVICE}; }}\n"


def main(torch_lib: Path, folder: Path) -> None:
    ours = {f.name for f in torch_lib.iterdir()}
    present = ours | set(re.findall(r"^\s*(\S+) \(", subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout, re.M))
    missing: set[str] = set()
    versions: dict[str, set[str]] = defaultdict(set)  # by library: those that are wanted of it
    names: dict[str, set[str]] = defaultdict(set)  # by version, "" for none
    for lib in sorted(torch_lib.glob("*.so*")):
        text = subprocess.run(["objdump", "-p", "-T", lib], capture_output=True, text=True, check=True).stdout
        missing |= set(re.findall(r"^\s*NEEDED\s+(\S+)", text, re.M)) - present
        for name, references in re.findall(r"required from (\S+):\n((?:\s+0x.*\n)+)", text):
            versions[name] |= set(re.findall(r"(\S+)$", references, re.M))
        for version, name in re.findall(r"\*UND\*\s+[0-9a-f]+\s+(?:(?:\((\S+)\)|Base)\s+)?(?:\.hidden )?(\S+)$", text, re.M):
            names[version].add(name)
    anybodys = {n for n in names[""] if re.match(r"(__)?(cuda|cu[A-Z]|cu(blas|fft|rand|sparse|solver|dnn|pti)|nv|nccl)", n)}
    folder.mkdir(parents=True, exist_ok=True)
    for lib in sorted(missing):
        own = {v: names[v] for v in sorted(versions[lib])}
        source, script = folder / "stub.c", folder / "stub.map"
        source.write_text("".join(map(stub, sorted(anybodys.union(*own.values())))))
        script.write_text("".join(f"{v} {{ global: {' '.join(n + ';' for n in sorted(own[v]))} }};\n" for v in own) or "{ global: *; };\n")
        subprocess.run(["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{lib}", f"-Wl,--version-script={script}", "-o", folder / lib, source], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
