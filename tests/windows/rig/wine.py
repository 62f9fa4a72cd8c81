"""Wine for the Windows rig: the system's if it is new enough, else Debian 13's, unpacked.

Placeholder reservations work from Wine 9 on. Debian 12 has Wine 8, so the Wine of Debian 13 is
unpacked into the rig together with its own C library; nothing is installed over the system.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import tools

_OLDEST = 9
_SYSTEM_LOADER = Path("/usr/lib/wine/wine64")

_SUITE = "trixie"
# Wine, and what its programs load: the host's own copies may be older than they were built for.
_PACKAGES = (
    *("libwine", "wine64", "libz-mingw-w64"),
    *("libc6", "libgcc-s1", "libunwind8", "liblzma5", "zlib1g"),
)

# What asks questions, draws windows or writes menus has no use here.
_DISABLED = "mscoree,mshtml,winedbg.exe,winemenubuilder.exe,winewayland.drv,winex11.drv="

_APT_HINT = "check that apt-get update works on this machine"


@functools.cache
def find_system_loader() -> Path | None:
    """Return the system's Wine if it is new enough for placeholder reservations."""
    if not _SYSTEM_LOADER.exists():
        return None
    result = subprocess.run(
        [_SYSTEM_LOADER, "--version"], check=False, capture_output=True, text=True, timeout=30
    )
    version = re.match(r"wine-(\d+)", result.stdout)
    return _SYSTEM_LOADER if version and int(version[1]) >= _OLDEST else None


def unpack(directory: Path) -> None:
    """Unpack Debian 13's Wine and its C library into *directory*, ready to run there."""
    downloads = directory / "apt"
    _download(downloads)
    for package in sorted(downloads.glob("*.deb")):
        tools.run(
            f"unpack {package.name}",
            ["dpkg-deb", "--extract", str(package), str(directory)],
            hint="is the disk full?",
            timeout_s=300,
        )
    shutil.rmtree(downloads)
    # Half of Wine is for 32-bit programs.
    shutil.rmtree(directory / "usr" / "lib" / "x86_64-linux-gnu" / "wine" / "i386-windows")
    _relocate(directory / "usr")


def loader_in(directory: Path) -> Path:
    """Return the loader of a Wine unpacked into *directory*."""
    return directory / "usr" / "lib" / "wine" / "wine64"


def variables(loader: Path, prefix: Path) -> dict[str, str]:
    """Return the environment in which *loader* runs programs of *prefix*."""
    unwanted = ("DISPLAY", "WAYLAND", "XDG_", "WINE", "PYTHON", "PYTEST_", "VIRTUAL_ENV", "VMTOOL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return kept | {
        "WINEPREFIX": str(prefix),
        "WINELOADER": str(loader),
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": _DISABLED,
    }


def make_prefix(loader: Path, prefix: Path) -> None:
    """Make the directory that holds the registry and the C: drive."""
    try:
        tools.run(
            "make a Wine prefix",
            [str(loader), "wineboot.exe", "--init"],
            env=variables(loader, prefix),
            hint="run `python3 tests/windows/rig/rig.py stop`, remove the rig's directory and try again",
            timeout_s=180,
        )
    finally:
        stop(loader, prefix)


def stop(loader: Path, prefix: Path) -> None:
    """End every process of *prefix*, and of no other, and wait until they are gone."""
    for option in ("--kill", "--wait"):
        subprocess.run(
            [loader.with_name(loader.name.replace("wine", "wineserver")), option],
            check=False,  # it fails when no server runs
            env=variables(loader, prefix),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )


def _download(directory: Path) -> None:
    """Download the packages with the system's apt, its state kept in *directory*."""
    for part in ("lists/partial", "archives/partial"):
        (directory / part).mkdir(parents=True)
    status = directory / "status"
    status.touch()
    sources = directory / "sources.list"
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources.write_text(f"deb [signed-by={keyring}] {_mirror()} {_SUITE} main\n", encoding="utf-8")
    configuration = directory / "apt.conf"
    configuration.write_text(
        f'Dir::Etc::SourceList "{sources}";\n'
        'Dir::Etc::SourceParts "/dev/null";\n'
        f'Dir::State "{directory}";\n'
        f'Dir::State::status "{status}";\n'
        f'Dir::Cache "{directory}";\n'
        'APT::Architecture "amd64";\n'
        'APT::Sandbox::User "";\n'  # the apt user may not write here
        'Acquire::Languages "none";\n',
        encoding="utf-8",
    )
    env = {**os.environ, "APT_CONFIG": str(configuration)}
    for purpose, arguments in (
        (f"read the package lists of Debian {_SUITE}", ["update"]),
        ("download Wine", ["download", *_PACKAGES]),
    ):
        tools.run(
            purpose,
            ["sh", "-c", 'cd "$0" && exec apt-get -qq "$@"', str(directory), *arguments],
            env=env,
            hint=_APT_HINT,
            timeout_s=300,
        )


def _mirror() -> str:
    """Return the mirror from which this machine takes its own Debian release."""
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian":
        tools.fail(
            f"{_SYSTEM_LOADER} is not Wine {_OLDEST} or newer, and this is not Debian",
            "install the distribution's wine64 if it is new enough",
            4,
        )
    listing = tools.run(
        "find this machine's Debian mirror",
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"],
        hint=_APT_HINT,
        timeout_s=60,
    )
    mirrors = dict(line.split(maxsplit=1) for line in reversed(listing.splitlines()) if " " in line)
    if release["VERSION_CODENAME"] not in mirrors:
        tools.fail("apt has no mirror of this Debian release", _APT_HINT)
    return mirrors[release["VERSION_CODENAME"]]


def _relocate(usr: Path) -> None:
    """Make the unpacked programs find their libraries, their server and their data here."""
    programs = usr / "lib" / "wine"
    libraries = usr / "lib" / "x86_64-linux-gnu"
    for name in ("wine64", "wineserver64"):
        tools.run(
            f"relocate {name}",
            [
                *("patchelf", "--set-interpreter", str(usr / "lib64" / "ld-linux-x86-64.so.2")),
                *("--force-rpath", "--set-rpath", str(libraries), str(programs / name)),
            ],
            hint="install patchelf",
            timeout_s=60,
        )
    server = programs / "wineserver"  # a script that names the system's directories
    server.unlink()
    server.symlink_to("wineserver64")
    (usr / "share" / "wine" / "wine").symlink_to(".")  # the server looks for wine/nls below it
    _mark_as_builtin(
        (usr / "x86_64-w64-mingw32" / "lib" / "zlib1.dll").read_bytes(),
        libraries / "wine" / "x86_64-windows" / "zlib1.dll",
    )


def _mark_as_builtin(image: bytes, target: Path) -> None:
    """Write a DLL as one of Wine's own, which a new prefix gets; Debian's installer does this."""
    mark, offset = b"Wine builtin DLL".ljust(32, b"\0"), 64
    target.write_bytes(image[:offset] + mark + image[offset + len(mark) :])
