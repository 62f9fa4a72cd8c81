"""Built-in models: looked up by name, resolved as their config files are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Provenance, Source
from vmtool.kv.sources.hf.resolve import resolve
from vmtool.kv.sources.hub import is_repository
from vmtool.kv.sources.models import config_of, names
from vmtool.kv.sources.origins import ORIGINS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.kv.geometry import ModelGeometry


def known(name: str) -> bool:
    """Return whether *name* is a built-in model; upper and lower case are the same."""
    return name.lower() in names()


def load(name: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry of the built-in model *name*, which must be `known`."""
    key = name.lower()
    geometry = resolve(
        config_of(key), f"built-in {key}", key, source=Source.BUILTIN, overrides=overrides
    )
    read_in = Provenance(key, Source.BUILTIN, ORIGINS[key])
    return replace(geometry, provenance={"model": read_in, **geometry.provenance})


def suggestion(name: str) -> str:
    """Return what the user may have meant by *name*."""
    import difflib  # noqa: PLC0415  # only needed to help with a mistake

    wanted = name[:80].lower().rpartition("/")[2]
    close = difflib.get_close_matches(wanted, names(), n=3)
    did_you_mean = f"did you mean {', '.join(close)}? " if close else ""
    hub = f", or --hub {name} to fetch it from the hub" if is_repository(name) else ""
    return f"{did_you_mean}give a path, or a name that `vmtool kv-estimate --list` shows{hub}"
