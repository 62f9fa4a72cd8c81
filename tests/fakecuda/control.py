"""Steer the stand-in driver: settings, faults and reports, in this process and in others."""

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from fakecuda import build

from vmtool.memory.cuda import driver

ROOT = Path(__file__).parents[2]


def setting_lines(settings: dict[str, object]) -> dict[str, str]:
    """``devices=2`` becomes ``DEVICES: "2"``; ``None`` is left out."""
    return {name.upper(): str(value) for name, value in settings.items() if value is not None}


def broken_rules(report: dict) -> list[str]:
    """What the report objects to, as text; empty when every rule was kept."""
    found = [f"{v['rule']} {v['call']}: {v['text']}" for v in report["violations"]]
    if report["violation_count"] > len(found):
        found.append(f"and {report['violation_count'] - len(found)} more")
    return found


def leaks(report: dict) -> dict[str, int]:
    """What is still held. A stream with work in flight is no leak once its context is gone."""
    held = {name: count for name, count in report["live"].items() if count}
    held.pop("pending_streams", None)
    return held


class FakeCuda:
    """The stand-in, loaded into this process ahead of the bindings' first call."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(build.driver()))
        self._library.fakecuda_report.restype = ctypes.c_size_t
        self._library.fakecuda_report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        for name in ("fakecuda_reset", "fakecuda_fail"):
            function = getattr(self._library, name)
            function.restype = ctypes.c_int
            function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
        self._library.fakecuda_forgive.restype = None
        self._library.fakecuda_forgive.argtypes = []

    def _say(self, function: str, text: str) -> None:
        why = ctypes.create_string_buffer(400)
        if getattr(self._library, function)(text.encode(), why, len(why)) != 0:
            raise ValueError(why.value.decode())

    def reset(self, **settings: object) -> None:
        """Start anew with these settings, as a freshly loaded driver; the rest are defaults.

        The next ``driver.load()`` initialises it again.

        Raises:
            ValueError: If a setting or its value is not understood.
        """
        lines = "\n".join(f"{name}={value}" for name, value in setting_lines(settings).items())
        self._say("fakecuda_reset", lines)
        driver.forget()

    def fail(self, faults: str) -> None:
        """Make calls fail, counted from now: ``cuMemMap:5``, ``cuMemMap:2+=700``; ``""`` ends it."""
        self._say("fakecuda_fail", faults)

    def forgive(self) -> list[str]:
        """Return the rules broken so far and forget them: the test broke them on purpose."""
        broken = broken_rules(self.report())
        self._library.fakecuda_forgive()
        return broken

    def report(self) -> dict:
        """What happened since the last reset: see README.md for the keys."""
        room = self._library.fakecuda_report(None, 0) + 1
        text = ctypes.create_string_buffer(room)
        self._library.fakecuda_report(text, room)
        return json.loads(text.value)

    def assert_clean(self) -> None:
        """Assert that no rule was broken and, unless the device was lost, that nothing is held."""
        report = self.report()
        broken = broken_rules(report)
        assert not broken, "\n".join(broken)
        assert report["sticky"] or leaks(report) == {}


@dataclass
class Finished:
    """A process that ran on the stand-in, and the reports of it and of its workers."""

    returncode: int
    stdout: str
    stderr: str
    reports: list[dict] = field(default_factory=list)

    def assert_clean(self) -> None:
        """Assert that it used the stand-in, broke no rule and, unless lost, held nothing at exit."""
        assert self.reports, "the process never loaded the stand-in"
        for report in self.reports:
            broken = broken_rules(report)
            assert not broken, "\n".join(broken)
            assert report["sticky"] or leaks(report) == {}


def environment(reports: Path, **settings: object) -> dict[str, str]:
    """The environment in which a new Python process finds vmtool here, and the stand-in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAKECUDA_")}
    kept.pop("CUDA_VISIBLE_DEVICES", None)
    given = {f"FAKECUDA_{name}": value for name, value in setting_lines(settings).items()}
    paths = {
        "LD_LIBRARY_PATH": str(build.driver().parent),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
        "FAKECUDA_REPORT": str(reports / "%p.json"),
    }
    return kept | paths | given


def run_python(
    arguments: list[str], reports: Path, *, env: dict[str, str] | None = None, **settings: object
) -> Finished:
    """Run this Python with *arguments* on the stand-in; reports go to the empty folder *reports*."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(reports, **settings) | (env or {}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr, read_reports(reports))


def read_reports(folder: Path) -> list[dict]:
    """The reports that processes left in *folder*."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
