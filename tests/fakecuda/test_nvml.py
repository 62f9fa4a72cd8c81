"""NVML's stand-in with the driver's: the memory of this process and that of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakecuda import control

NVML = Path(__file__).parent / "nvml"
CODE = """
import json, os
from vmtool.machine.nvml import read_nvml
from vmtool.memory.backing_by_name import open_device
from vmtool.memory.cuda.devices import device
backing = open_device("cuda")
reservation = backing.reserve(4 * backing.granularity)
backing.commit(reservation, 0, 2 * backing.granularity)
found = read_nvml().device(device(0).uuid)
print(json.dumps([found.bytes_of(os.getpid()), found.bytes_of(4242), found.used_bytes,
                  [each.name for each in found.others(os.getpid())]]))
backing.unreserve(reservation)
backing.close()
"""
MIB = 1 << 20


SLICE = """
import json
from vmtool.machine.device_facts import read_device_facts
from vmtool.machine.nvml import read_nvml
from vmtool.memory.cuda.devices import device
info = device(0)
facts = read_device_facts(info)
print(json.dumps([len(read_nvml().devices), read_nvml().device(info.uuid) is None,
                  read_nvml(info.uuid).device(info.uuid) is None, facts.mig, facts.ecc, facts.persistence]))
"""


def test_a_slice_is_found_by_its_uuid_and_its_parent_answers_for_it(fakecuda_lib, tmp_path):
    """NVML lists parents only, and a slice's handle has no ECC, MIG or persistence mode."""
    path = control.environment(tmp_path)["PYTHONPATH"]
    env = {"PYTHONPATH": f"{NVML}:{path}", "FAKENVML": "mig"}
    done = control.run_python(["-c", SLICE], tmp_path, env=env)
    assert json.loads(done.stdout) == [1, True, False, True, True, False], done.stderr


@pytest.mark.parametrize(("mode", "counted"), [("on", True), ("wddm", False)])
def test_ours_and_others_are_distinguished(fakecuda_lib, tmp_path, mode, counted):
    path = control.environment(tmp_path)["PYTHONPATH"]
    env = {"PYTHONPATH": f"{NVML}:{path}", "FAKENVML": mode}
    settings = {"others": "200MiB", "context_memory": "10MiB"}
    done = control.run_python(["-c", CODE], tmp_path, env=env, **settings)
    ours, others, used, names = json.loads(done.stdout)
    assert (ours, others) == ((14 * MIB, 200 * MIB) if counted else (None, None))
    assert used == 214 * MIB
    assert names == ["/opt/other/engine"]
    done.assert_clean()


INSPECT = """
import json, os
from vmtool.inspect.processes import read_devices
from vmtool.memory.backing_by_name import open_device
backing = open_device("cuda")
reservation = backing.reserve(4 * backing.granularity)
backing.commit(reservation, 0, 2 * backing.granularity)
for mode in ("on", "container", "denied"):
    os.environ["FAKENVML"] = mode
    found, absent = read_devices((os.getpid(),))
    print(json.dumps([[each.own_bytes for each in found], absent and absent.reason]))
backing.unreserve(reservation)
backing.close()
"""


def test_inspect_counts_what_is_listed_and_says_where_nothing_is(fakecuda_lib, tmp_path):
    path = control.environment(tmp_path)["PYTHONPATH"]
    env = {"PYTHONPATH": f"{NVML}:{path}", "FAKENVML": "on"}
    done = control.run_python(["-c", INSPECT], tmp_path, env=env, context_memory="10MiB")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found == [[[14 * MIB], None], [[], "not listed"], [[None], None]], done.stderr
