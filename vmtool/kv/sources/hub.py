"""One ``config.json`` from the Hugging Face hub, through the optional huggingface_hub."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vmtool.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.kv.geometry import ModelGeometry

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def is_repository(name: str) -> bool:
    """Return whether *name* is of the form owner/name."""
    return _REPOSITORY.fullmatch(name) is not None


def load(repository: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry of *repository*; see `vmtool.kv.sources.from_hub`."""
    if not is_repository(repository):
        raise UsageError(f"{repository!r} is not of the form owner/name")
    try:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415
    except ImportError as exc:
        raise UnavailableError(
            "fetching from the hub needs huggingface_hub, which is not installed",
            hint="pip install 'vmtool[hub]', or download config.json and give its path",
        ) from exc
    try:
        path = hf_hub_download(repository, "config.json")
    except Exception as exc:  # the library raises its own, requests' and the OS's errors
        raise UnavailableError(
            f"config.json of {repository} could not be fetched: {exc}",
            hint="check the name, the network and the login, or give the path of a downloaded copy",
        ) from exc
    from vmtool.kv.sources.hf.resolve import resolve  # noqa: PLC0415
    from vmtool.kv.sources.reading import MAX_CONFIG_BYTES, read_object  # noqa: PLC0415

    data = read_object(path, MAX_CONFIG_BYTES)
    return resolve(data, f"{repository}/config.json", repository, overrides=overrides)
