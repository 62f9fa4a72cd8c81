"""Compile the stand-in driver, once per version of its sources and flags."""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
_ROOT = Path(__file__).parents[2]
_FLAGS = (
    *("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Wconversion", "-Werror"),
)
# The bindings ask for the driver by this name, and glibc matches it with the library's own.
SHARED = ("-shared", "-Wl,-soname,libcuda.so.1")


class CannotBuildError(Exception):
    """The stand-in is not for this system, or the C compiler is missing or lacks what was asked for."""


def compile_to(output: Path, flags: tuple[str, ...], sources: list[Path]) -> None:
    """Compile *sources* into *output*; raises if the compiler is missing or objects."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise CannotBuildError("no C compiler (cc) on this machine")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        unfinished = Path(folder) / output.name
        command = [compiler, *_FLAGS, *flags, "-o", str(unfinished), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the stand-in does not compile:\n{done.stderr}")
        os.replace(unfinished, output)  # noqa: PTH105  # atomic: test processes build at once


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
    """A folder that lives as long as this process, for a checkout that cannot be written to."""
    return tempfile.TemporaryDirectory(prefix="fakecuda-")


def _folder() -> Path:
    if os.access(_ROOT, os.W_OK):
        return _ROOT / ".cache" / "fakecuda"
    return Path(_temporary().name)


def _cached(name: str, flags: tuple[str, ...], more: tuple[Path, ...] = ()) -> Path:
    if sys.platform != "linux":
        raise CannotBuildError("the stand-in driver needs Linux (memfd)")
    sources = [*sorted(SOURCES.glob("*.c")), *more]
    digest = hashlib.sha256(" ".join([*_FLAGS, *flags]).encode())
    for path in [*sources, *sorted(SOURCES.glob("*.h")), *sorted(SOURCES.glob("*.def"))]:
        digest.update(path.name.encode() + path.read_bytes())
    output = _folder() / digest.hexdigest()[:16] / name
    if not output.exists():
        compile_to(output, (*flags, f"-I{SOURCES}"), sources)
    return output


@functools.cache
def driver() -> Path:
    """Return the path of the stand-in ``libcuda.so.1``, built if it is not there yet.

    Raises:
        CannotBuildError: If there is no C compiler, or this is not Linux.
    """
    return _cached("libcuda.so.1", SHARED)


@functools.cache
def self_test(sanitizers: str) -> Path:
    """Return the path of the C self-test, built with the stand-in under *sanitizers*.

    Raises:
        CannotBuildError: If there is no C compiler, or it has no such sanitizer.
    """
    flag = f"-fsanitize={sanitizers}"
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.c"
        empty.write_text("int main(void) { return 0; }\n")
        try:
            compile_to(Path(folder) / "empty", (flag,), [empty])
        except RuntimeError as exc:
            raise CannotBuildError(f"this C compiler cannot link {flag}") from exc
    test = Path(__file__).parent / "selftest.c"
    name = "selftest-" + sanitizers.replace(",", "-")
    return _cached(name, (flag, "-fno-sanitize-recover=all"), (test,))
