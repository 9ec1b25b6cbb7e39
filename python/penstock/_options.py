"""Options become PENSTOCK_* environment variables, which the engine reads when it starts."""

from __future__ import annotations

import os
import re
from typing import Union
from collections.abc import Mapping, MutableMapping

from ._errors import PenstockError

Size = Union[int, str]
Value = Union[int, float, bool, str, "os.PathLike[str]"]

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 10**3,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mb": 10**6,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gb": 10**9,
    "gib": 1 << 30,
    "t": 1 << 40,
    "tb": 10**12,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")

# Options that are a number of bytes.
SIZES = ("budget", "host_budget", "managed_limit", "lookahead")


def parse_bytes(value: Size, name: str = "size") -> int:
    """Bytes of ``value``: a number, or text such as ``"24GiB"``, ``"1.5 GB"`` or ``"512M"``."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise PenstockError(f"{name} is a number of bytes or text such as '24GiB', not {value!r}")
    if isinstance(value, str):
        m = _SIZE.fullmatch(value)
        if not m or m.group(2).lower() not in _UNITS:
            raise PenstockError(f"{name} {value!r} is not a size; write bytes or a size such as 24GiB or 512MiB")
        value = int(float(m.group(1)) * _UNITS[m.group(2).lower()]) if "." in m.group(1) else int(m.group(1)) * _UNITS[m.group(2).lower()]
    if value <= 0:
        raise PenstockError(f"{name} must be above 0, not {value}")
    return value


def to_environment(options: Mapping[str, Value | None]) -> dict[str, str]:
    """The variables for options; those that are None are left out."""
    env: dict[str, str] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in SIZES:
            text = str(parse_bytes(value, name))  # type: ignore[arg-type]
        elif isinstance(value, bool):
            text = "1" if value else "0"
        else:
            text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        env["PENSTOCK_" + name.upper()] = text
    return env


def is_on(text: str) -> bool:
    """Whether a yes/no variable says yes; unset is no."""
    return text.lower() not in ("", "0", "false", "no", "off")


def differing(env: Mapping[str, str], current: MutableMapping[str, str]) -> list[str]:
    """The variables whose value is not what ``current`` already says."""
    return [k for k, v in env.items() if current.get(k) != v]
