"""Conversion of documents of earlier versions of vmtool."""

from __future__ import annotations

from typing import Any

_OUTCOMES = {True: "passed", False: "failed", None: "not done"}


def from_version_1(document: dict[str, Any]) -> dict[str, Any]:
    """Return a stress result of version 1, which vmtool 0.1 wrote, with the present keys.

    What is not as version 1 wrote it stays as it is, and is refused when it is decoded.
    """
    new = dict(document)
    checks = _map(new.pop("verdicts", None), _check)
    if checks is not None:
        new["checks"] = checks
    for key, change in (
        ("checkpoints", _checkpoint),
        ("slopes", _slope),
        ("warnings", _warning),
    ):
        if key in new:
            new[key] = _map(new[key], change)
    recommendation = new.get("recommendation")
    if isinstance(recommendation, dict) and "method" in recommendation:
        method = recommendation["method"]
        new["recommendation"] = {
            "method": method,
            "reason": "fastest",
            "cycle_ns": {},
            "fastest": method,
        }
    settings, methods = new.get("settings"), new.get("methods")
    if isinstance(settings, dict):
        new["settings"] = {"runs": 1, **settings}
        if "outcome" in new and "wall_ns" in new and isinstance(methods, list):
            new["runs"] = [
                {
                    "index": 0,
                    "outcome": new["outcome"],
                    "wall_ns": new["wall_ns"],
                    "order": settings.get("methods", []),
                    "methods": methods,
                }
            ]
    return new


def _map(items: Any, change: Any) -> Any:
    if not isinstance(items, list):
        return items
    return [change(dict(item)) if isinstance(item, dict) else item for item in items]


def _rename(item: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in item.items()}


def _check(item: dict[str, Any]) -> dict[str, Any]:
    values = {key: item[key] for key in ("detail", "hint") if isinstance(item.get(key), str)}
    passed, name = item.get("passed"), item.get("check")
    if isinstance(name, str):
        name = name.replace("ledger.", "counters.", 1)
    known = passed is None or isinstance(passed, bool)
    return {"name": name, "outcome": _OUTCOMES[passed] if known else passed, "values": values}


def _checkpoint(item: dict[str, Any]) -> dict[str, Any]:
    if "buffers" in item:
        item["buffers"] = _map(
            item["buffers"], lambda reading: _rename(reading, ledger="counter", believed="expected")
        )
    return item


def _slope(item: dict[str, Any]) -> dict[str, Any]:
    low, high = item.get("low"), item.get("high")
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        item["detectable_per_cycle"] = (high - low) / 2
    return _rename(item, ledger="counter")


def _warning(item: dict[str, Any]) -> dict[str, Any]:
    values = {key: item[key] for key in ("message", "hint") if isinstance(item.get(key), str)}
    return {"kind": item.get("kind"), "values": values}
