"""A Windows CPython laid out from packages: PyPI wheels, this Python's library, two small builds.

The interpreter's DLL and the extension modules of python.org are inside a wheel of panda3d, which
carries them for the programs that its users ship. The library is that of the Python that runs
this, so the Windows Python has the same minor version. mingw-w64 makes python.exe and python3.dll.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import sysconfig
import tomllib
import zipfile
from typing import TYPE_CHECKING

import tools

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_WHEEL = "panda3d==1.10.16"
_WHEEL_SHA256 = {
    (3, 11): "37acfb92655c4226879f95c988e2ef1449a53c54486d6c1ebc00e2772429af82",
    (3, 12): "f6493e2ecc0d1b7c1556a999556e5278cbc9484fe5fe1e159a1ccc02b870b18f",
    (3, 13): "0e505261bb58d8402d0099c291f1a3459acfdd38f3e7d666e72aa2e1ea5dc46f",
}

# numpy 2 aborts under Wine, whose C runtime lacks crealf; gguf and onnx need numpy.
_LEFT_OUT = {"numpy", "gguf", "onnx", "cuda-python", "distributed"}

# pip evaluates markers for the system it runs on, so it misses what click needs on Windows.
# cuda-bindings is the part of cuda-python that vmtool uses.
_ADDED = ["colorama", "cuda-bindings>=12.9,<14"]

_LAUNCHER = """\
#include <wchar.h>
__declspec(dllimport) int Py_Main(int, wchar_t **);
int wmain(int argc, wchar_t **argv) { return Py_Main(argc, argv); }
"""

# To a program whose manifest does not name Windows 10, Windows says that it is Windows 8.
_MANIFEST = """\
<assembly xmlns="urn:schemas-microsoft-com:asm.v1" manifestVersion="1.0">
<compatibility xmlns="urn:schemas-microsoft-com:compatibility.v1"><application>
<supportedOS Id="{8e0f7a12-bfb3-4fe8-b9a5-48fd50a15a9a}"/>
</application></compatibility></assembly>
"""

_LIBRARY_LEFT_OUT = shutil.ignore_patterns(
    *("__pycache__", "*.so", "*.a", "config-3*", "_sysconfigdata*", "lib-dynload"),
    *("site-packages", "dist-packages", "sitecustomize.py"),
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3"),
)

_BUILD_HINT = "install the packages that `python3 tests/windows/rig/rig.py packages` lists"


def minor_version() -> tuple[int, int]:
    """Return the version of the Windows Python, which is that of this one."""
    version = sys.version_info[:2]
    if version not in _WHEEL_SHA256:
        tools.fail(
            f"no package has a Windows Python {version[0]}.{version[1]}",
            "run this with Python 3.11, 3.12 or 3.13",
            4,
        )
    return version


def requirements() -> list[str]:
    """Return the project's requirements and those of its tests, as far as they work under Wine."""
    with (tools.ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    wanted = project["project"]["dependencies"] + project["dependency-groups"]["test"]
    kept = [line for line in wanted if re.split(r"[^\w.-]", line, maxsplit=1)[0] not in _LEFT_OUT]
    return kept + _ADDED


def build(directory: Path, downloads: Path, paths: Sequence[Path]) -> None:
    """Lay out the interpreter in *directory*.

    Args:
        directory: Where to; it does not exist yet.
        downloads: Where the wheel is kept.
        paths: What the interpreter finds modules in, beside its library.
    """
    library = directory / "Lib"
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_LIBRARY_LEFT_OUT)
    _reconcile(library / "importlib" / "metadata" / "__init__.py")
    (library / "site-packages").mkdir()
    (library / "site-packages" / "rig.pth").write_text(
        "".join(f"{windows_path(path)}\n" for path in paths), encoding="utf-8"
    )
    (directory / "DLLs").mkdir()
    dll = directory / "python{}{}.dll".format(*minor_version())
    with zipfile.ZipFile(fetch_wheel(downloads)) as wheel:
        for member in wheel.namelist():
            name = member.rpartition("/")[2]
            if not member.startswith("deploy_libs/") or name.startswith(
                ("api-ms-", "tcl", "tk", "_tk")
            ):
                continue
            beside_exe = name == dll.name or name.startswith("VCRUNTIME")
            target = directory / name if beside_exe else directory / "DLLs" / name
            target.write_bytes(wheel.read(member))
    _build_launcher(directory, dll)
    _build_stable_abi(directory, dll)


def install(directory: Path) -> None:
    """Install the requirements into *directory*."""
    tools.run(
        "install the Windows packages",
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"),
            *("--target", str(directory), "--only-binary=:all:", "--platform=win_amd64"),
            "--python-version={}.{}".format(*minor_version()),
            *requirements(),
        ],
        hint=tools.PIP_HINT,
        timeout_s=600,
    )


def windows_path(path: Path) -> str:
    """Return the name of an absolute *path* for a Windows program: Wine maps Z: to the root."""
    return "Z:" + str(path).replace("/", "\\")


def _reconcile(module: Path) -> None:
    """Make the library's importlib.metadata fit a DLL of a later patch release.

    From 3.11.8 and 3.12.2 on importlib, which is inside the DLL, calls this as a class method.
    """
    text = module.read_text(encoding="utf-8")
    method = "    def invalidate_caches(cls)"
    if f"@classmethod\n{method}" not in text:
        module.write_text(text.replace(method, f"    @classmethod\n{method}"), encoding="utf-8")


def fetch_wheel(downloads: Path) -> Path:
    """Return the wheel, downloaded unless it is there already, after checking its digest."""
    major, minor = minor_version()
    pattern = f"{_WHEEL.replace('==', '-')}-cp{major}{minor}-*-win_amd64.whl"
    if not any(downloads.glob(pattern)):
        tools.run(
            "download the Windows Python",
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"),
                *("--dest", str(downloads), "--only-binary=:all:", "--platform=win_amd64"),
                *(f"--python-version={major}.{minor}", _WHEEL),
            ],
            hint=tools.PIP_HINT,
            timeout_s=600,
        )
    (wheel,) = downloads.glob(pattern)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != _WHEEL_SHA256[major, minor]:
        wheel.unlink()
        tools.fail(
            f"{wheel.name} is not the expected file: its SHA-256 is {digest}",
            "find out where pip got it from before trying again",
        )
    return wheel


def _build_launcher(directory: Path, dll: Path) -> None:
    """Build python.exe, which hands its arguments to the DLL."""
    source, manifest, script, resource = (
        directory / f"launcher.{suffix}" for suffix in ("c", "manifest", "rc", "o")
    )
    source.write_text(_LAUNCHER, encoding="utf-8")
    manifest.write_text(_MANIFEST, encoding="utf-8")
    script.write_text(f'1 24 "{manifest}"\n', encoding="utf-8")  # 24: RT_MANIFEST
    _cross("windres", str(script), str(resource))
    _cross(
        *("gcc", "-municode", "-s", "-o", str(directory / "python.exe")),
        *(str(source), str(resource), str(dll)),
    )


def _build_stable_abi(directory: Path, dll: Path) -> None:
    """Build python3.dll, to which abi3 wheels such as psutil's are linked: forwarders only."""
    listing = _cross("objdump", "-p", str(dll))
    _, _, table = listing.partition("[Ordinal/Name Pointer] Table")
    names = re.findall(r"^\t\[ *\d+\].* (\w+)$", table, re.MULTILINE)
    definition = directory / "python3.def"
    definition.write_text(
        "LIBRARY python3.dll\nEXPORTS\n"
        + "".join(f" {name}={dll.stem}.{name}\n" for name in names),
        encoding="utf-8",
    )
    _cross(
        *("gcc", "-shared", "-nostdlib", "-s", "-Wl,--entry=0", str(definition)),
        *("-o", str(directory / "python3.dll")),
    )


def _cross(tool: str, *arguments: str) -> str:
    """Run a tool of mingw-w64 and return what it printed."""
    program = f"x86_64-w64-mingw32-{tool}"
    return tools.run(
        f"run {program}",
        [program, *arguments],
        hint=_BUILD_HINT,
        env={**os.environ, "LC_ALL": "C"},
        timeout_s=120,
    )
