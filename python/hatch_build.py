"""Puts the command and the native libraries into the wheel, and what they need of a machine into its name."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = ("libpenstock.so", "libpenstock_hook.so", "libpenstock_torch.so")


class NativeParts(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # a checkout's own lib/ is used
        checkout = Path(self.root).parent
        command, libs = checkout / "bin" / "penstock", [checkout / "lib" / name for name in LIBRARIES]
        for path in (command, *libs):
            if not path.is_file():
                raise FileNotFoundError(f"{path} does not exist: run `make wheel`, or `make build` first")
        # The command finds the package by its version.
        built = subprocess.run([command, "version"], capture_output=True, text=True, check=True).stdout.split()[1]
        if built != self.metadata.version:
            raise ValueError(f"{command} is of version {built} and the package of {self.metadata.version}: run `make wheel`")
        build_data["shared_scripts"][str(command)] = "penstock"
        for path in libs:
            build_data["force_include"][str(path)] = f"penstock/lib/{path.name}"
        build_data["pure_python"] = False
        # Any Python 3: no library of ours links to Python.
        machine = sysconfig.get_platform().rpartition("-")[2]
        build_data["tag"] = f"py3-none-manylinux_2_{max(map(glibc, (command, *libs)))}_{machine}"


def glibc(path: Path) -> int:
    """The least N of the C library 2.N that has every symbol version that a file needs."""
    with path.open("rb") as file:
        sections = [s for s in ELFFile(file).iter_sections() if isinstance(s, GNUVerNeedSection)]
        names = [needed.name for s in sections for _, versions in s.iter_versions() for needed in versions]
    return max(int(m[1]) for name in names if (m := re.match(r"GLIBC_2\.(\d+)", name)))
