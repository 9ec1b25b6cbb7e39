"""Puts the native libraries into the wheel, and its platform into the wheel's name."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = ("libpenstock.so", "libpenstock_hook.so", "libpenstock_torch.so")


class NativeLibraries(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # a checkout's own lib/ is used
        libs = Path(self.root).parent / "lib"
        for name in LIBRARIES:
            if not (libs / name).is_file():
                raise FileNotFoundError(f"{libs / name} does not exist: run `make build` first")
            build_data["force_include"][str(libs / name)] = f"penstock/lib/{name}"
        build_data["pure_python"] = False
        # Any Python 3 of this platform: no library of ours links to Python.
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
