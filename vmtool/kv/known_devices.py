"""The memory of well-known accelerators, as their driver reports the total."""

from __future__ import annotations

from typing import Final

_MIB: Final = 1 << 20
#: MiB by name, as ``nvidia-smi`` prints them in public logs; AMD's are the sizes of the data sheets.
_TOTAL_MIB: Final = {
    "a10": 23028,
    "a10g": 23028,
    "a100": 81920,
    "a100-40gb": 40960,
    "a100-80gb": 81920,
    "a6000": 49140,
    "b200": 183359,
    "gh200": 97871,
    "h100": 81559,
    "h100-nvl": 95830,
    "h100-pcie": 81559,
    "h20": 97871,
    "h200": 143771,
    "l4": 23034,
    "l40": 46068,
    "l40s": 46068,
    "mi300x": 192 * 1024,
    "mi325x": 256 * 1024,
    "mi355x": 288 * 1024,
    "rtx-3090": 24576,
    "rtx-4090": 24564,
    "rtx-5090": 32607,
    "rtx-6000-ada": 49140,
    "rtx-pro-6000": 97887,
    "t4": 15360,
    "v100-16gb": 16384,
    "v100-32gb": 32768,
}
#: The total memory of each device in bytes, by name.
DEVICES: Final = {name: total * _MIB for name, total in _TOTAL_MIB.items()}


def find_device(name: str) -> tuple[str, int] | None:
    """Return the name and the bytes of the device that *name* means, or ``None``.

    Case, blanks and a maker's name in front do not matter: ``NVIDIA H100``, ``rtx4090``.
    """
    key = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    for maker in ("nvidia-", "amd-", "geforce-"):
        key = key.removeprefix(maker)
    plain = {known.replace("-", ""): known for known in DEVICES}
    known = plain.get(key.replace("-", ""))
    return None if known is None else (known, DEVICES[known])
