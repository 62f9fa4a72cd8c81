"""A ``config.json`` from the Hugging Face hub, and the size of the weights beside it.

Both through the optional huggingface_hub.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from vmtool.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.kv.geometry import ModelGeometry

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_ADDRESS: Final = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)")
#: Longer than any answer takes; the library would try again and again for half a minute.
_TIMEOUT_SECONDS: Final = 3


def repository_of(spec: str) -> str | None:
    """Return the owner/name that *spec* means, itself or an address of one; ``None`` if neither."""
    match = _ADDRESS.match(spec)
    name = match[1] if match else spec
    return name if _REPOSITORY.fullmatch(name) else None


def load(spec: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry of *spec*; see `vmtool.kv.sources.model_lookup.from_hub`."""
    repository = repository_of(spec)
    if repository is None:
        raise UsageError(f"{spec[:200]!r} is not of the form owner/name")
    path = fetched(repository, "config.json")
    from vmtool.kv.sources.hf.config_to_layers import resolve  # noqa: PLC0415
    from vmtool.kv.sources.model_files import MAX_CONFIG_BYTES, read_object  # noqa: PLC0415

    data = read_object(path, MAX_CONFIG_BYTES)
    return resolve(data, f"{repository}/config.json", repository, overrides=overrides)


def size_of(repository: str, name: str) -> int | None:
    """Return the size of the file *name* of *repository*; ``None`` if the hub does not tell."""
    try:
        import huggingface_hub as hub  # noqa: PLC0415

        address = hub.hf_hub_url(repository, name)
        size: int | None = hub.get_hf_file_metadata(address, timeout=_TIMEOUT_SECONDS).size
    except Exception:  # noqa: BLE001 - the library raises its own, requests' and the OS's errors
        return None
    return size


def fetched(repository: str, name: str) -> str:
    """Return the path of the file *name* of *repository*, from its local cache if it is there.

    Raises:
        UnavailableError: If huggingface_hub is not installed, or the file cannot be fetched.
    """
    try:
        from huggingface_hub import (  # noqa: PLC0415
            hf_hub_download,
            try_to_load_from_cache,
        )
    except ImportError as exc:
        raise UnavailableError(
            "fetching from the hub needs huggingface_hub, which is not installed",
            hint="pip install 'vmtool[hub]', or download config.json and give its path",
        ) from exc
    path = try_to_load_from_cache(repository, name)
    if isinstance(path, str):
        return path
    _refuse_offline(repository)
    try:
        return str(hf_hub_download(repository, name, etag_timeout=_TIMEOUT_SECONDS))
    except Exception as exc:  # the library raises its own, requests' and the OS's errors
        reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        raise UnavailableError(
            f"{name} of {repository} could not be fetched: {reason}",
            hint="check the name and your access, or download it and give its path",
        ) from exc


def _refuse_offline(repository: str) -> None:
    """Fail at once if the hub does not answer; the library tries for half a minute."""
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urllib.request.urlopen(endpoint, timeout=_TIMEOUT_SECONDS):  # noqa: S310
            return
    except urllib.error.HTTPError:
        return  # it answered
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "reason", None) or exc
        raise UnavailableError(
            f"config.json of {repository} could not be fetched: the hub does not answer ({reason})",
            hint="download config.json elsewhere and give its path",
        ) from exc
