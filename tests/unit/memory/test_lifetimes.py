"""Buffers across fork, spawn, an exception, the interpreter's exit and a free-threaded Python."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

import vmtool
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.governor import Governor, Tier

ROOT = str(Path(vmtool.__file__).parent.parent)
START = """
import os, sys
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.buffer import VirtualBuffer
buffer = VirtualBuffer(open_backing(), 1 << 26)
buffer.grow_to(1 << 16)
memory = buffer.view()
memory[0] = 1
"""


def run(program, python=sys.executable, **environment):
    """Run a program that must succeed in silence; return what it wrote to stdout."""
    child = subprocess.run(
        [python, "-c", program],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        env={**os.environ, "PYTHONPATH": ROOT, **environment},
    )
    assert (child.returncode, child.stderr) == (0, "")
    return child.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_has_a_buffer_of_its_own():
    """Contents are copied on write; neither process sees what the other does from then on."""
    program = """
child = os.fork()
if child == 0:
    try:
        assert memory[0] == 1
        memory[0] = 2
        buffer.grow_to(1 << 20)
        memory.release()
        buffer.shrink_to(0)
        buffer.close()
        os._exit(0)
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert memory[0] == 1
assert buffer.committed == 1 << 16
memory.release()
buffer.close()
print("done")
"""
    assert run(START + program) == "done\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_that_exits_in_order_frees_nothing_of_its_parent():
    program = """
child = os.fork()
if child == 0:
    sys.exit(0)  # with the buffer and its view alive
assert os.waitpid(child, 0)[1] == 0
memory[1] = 3
assert bytes(memory[:2]) == bytes([1, 3])
print("done")
"""
    assert run(START + program) == "done\n"


def test_a_buffer_is_not_sent_to_a_spawned_process():
    """It is an address, which means nothing in another process: pickling is refused."""
    with (
        VirtualBuffer(open_backing(), 1 << 20) as buffer,
        pytest.raises(TypeError, match="cannot copy or pickle a VirtualBuffer"),
    ):
        ForkingPickler.dumps(buffer)  # as Process(args=...) and Queue.put do


def test_a_spawned_process_makes_its_own(tmp_path):
    (tmp_path / "spawned.py").write_text(
        "def work(queue):\n"
        "    from vmtool.memory.backing_by_name import open_backing\n"
        "    from vmtool.memory.buffer import VirtualBuffer\n"
        "    with VirtualBuffer(open_backing(), 1 << 20) as buffer:\n"
        "        buffer.grow_to(1 << 16)\n"
        "        queue.put(buffer.committed)\n",
        encoding="ascii",
    )
    program = f"""
import multiprocessing
sys.path.insert(0, {str(tmp_path)!r})
import spawned
spawn = multiprocessing.get_context("spawn")
queue = spawn.SimpleQueue()
process = spawn.Process(target=spawned.work, args=(queue,))
process.start()
print(queue.get())
process.join()
"""
    assert run(START + program) == "65536\n"


def test_an_exception_in_a_with_gives_everything_back():
    governor = Governor({Tier.HOST: 1 << 20})
    backing = open_backing()
    with pytest.raises(ZeroDivisionError), VirtualBuffer(backing, 1 << 20, governor=governor) as b:
        b.grow_to(1 << 16)
        _ = 1 / 0
    assert b.closed
    assert governor.ledger(Tier.HOST).used_bytes == 0


def test_an_exception_while_a_view_lives_gives_all_back_with_the_view():
    governor = Governor({Tier.HOST: 1 << 20})

    def work(kept):
        with VirtualBuffer(open_backing(), 1 << 20, governor=governor) as buffer:
            buffer.grow_to(1 << 16)
            kept.append(buffer.view())
            raise RuntimeError("the caller's own")

    kept = []
    with pytest.raises(RuntimeError, match="the caller's own") as caught:
        work(kept)
    assert "freed with its last view" in caught.value.__notes__[0]
    assert governor.ledger(Tier.HOST).used_bytes == 1 << 16
    del caught
    kept.clear()
    gc.collect()
    assert governor.ledger(Tier.HOST).used_bytes == 0


KEPT = {
    "a view": "kept = memory",
    "a capsule": "kept = buffer.__dlpack__()",
    "a versioned capsule": "kept = buffer.__dlpack__(max_version=(1, 0))",
    "a numpy array": "import numpy; kept = numpy.from_dlpack(buffer)",
    "a torch tensor": "import torch; kept = torch.from_dlpack(buffer)",
    "a JAX array": "import jax.numpy; kept = jax.numpy.from_dlpack(buffer)",
}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("where", ["here", "builtins"])
def test_the_interpreter_may_exit_while_something_shows_a_buffer(kept, where):
    """What is kept in ``builtins`` is freed last, when most modules are gone."""
    for library in ("numpy", "torch", "jax"):
        if library in kept.lower():
            pytest.importorskip(library)
    program = KEPT[kept] + ("" if where == "here" else "; import builtins; builtins.kept = kept")
    assert run(START + program + "\nprint('done')\n") == "done\n"


def test_the_interpreter_may_exit_while_a_thread_uses_a_buffer():
    program = """
import threading
started = threading.Event()
def use():
    while True:
        buffer.grow_to(1 << 20)
        started.set()
        buffer.shrink_to(1 << 16)
threading.Thread(target=use, daemon=True).start()
started.wait()
print("done", flush=True)
"""
    assert run(START + program) == "done\n"


def test_torch_takes_the_memory_without_a_copy_and_writes_into_it():
    torch = pytest.importorskip("torch")
    with VirtualBuffer(open_backing(), 1 << 20) as buffer:
        buffer.grow_to(1 << 16)
        tensor = torch.from_dlpack(buffer)
        assert (tensor.data_ptr(), tensor.numel()) == (buffer.base, 1 << 16)
        tensor[5] = 7
        assert buffer.view()[5] == 7
        del tensor
        gc.collect()


def free_threaded():
    """Return a Python without the GIL, or ``None``: this one, or one on the PATH."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return sys.executable
    names = ("python3.15t", "python3.14t", "python3.13t")
    return next(filter(None, map(shutil.which, names)), None)


def test_a_free_threaded_python_keeps_a_buffer_whole():
    python = free_threaded()
    if python is None:
        pytest.skip("no free-threaded Python (python3.13t or later) on the PATH")
    program = """
import random, threading
assert not sys._is_gil_enabled()
memory.release()
errors = []
def work(seed):
    chance = random.Random(seed)
    try:
        for _ in range(2000):
            buffer.grow_to(chance.randrange(1 << 26))
            buffer.shrink_to(chance.randrange(1 << 20))
    except BaseException as error:
        errors.append(error)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert errors == [], errors
assert buffer.committed == -(-len(buffer) // 4096) * 4096
assert list(buffer.reservation.blocks) in ([], [(0, buffer.committed)])
buffer.close()
print("done")
"""
    assert run(START + program, python, PYTHON_GIL="0") == "done\n"
