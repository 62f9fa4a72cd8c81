"""Which facts of machines and settings are compared, and which come and go."""

from dataclasses import fields, replace

import pytest
from stored_runs import MACHINE, method, run, run_set

from vmtool.compare.changes import compare
from vmtool.compare.machines_and_settings import MACHINE_FACTS
from vmtool.json_documents import plain
from vmtool.machine import read_facts
from vmtool.machine.device_facts import DeviceFacts
from vmtool.report.compare import side_text


def test_machines_differ_by_what_matters_and_not_by_what_comes_and_goes():
    other = {
        **MACHINE,
        "system": {**MACHINE["system"], "kernel": "6.9.0"},
        "memory": {"total_bytes": 8 << 30, "available_bytes": 1},
        "huge_pages": {"thp_mode": "always", "pmd_bytes": 2 << 20},
        "commit": {"mode": 2, "ratio_percent": 50},
        "cgroup": {"levels": [{"path": "/b", "limit_bytes": None, "high_bytes": 2 << 30}]},
        "process": {"mappings": 5000, "max_mappings": 65530},
        "device": {"name": "H200", "driver_version": 13000, "uuid": "1"},
    }
    result = compare(
        run_set(run(method(commit=[1]))), run_set(run(method(commit=[1]), machine=other))
    )
    assert {d.name: (d.before, d.after) for d in result.machine} == {
        "kernel": ("6.1.0", "6.9.0"),
        "THP mode": ("madvise", "always"),
        "vm.overcommit_memory": (0, 2),
        "cgroup limit in bytes": (4 << 30, 2 << 30),
        "GPU": (None, "H200"),
        "CUDA version of the driver": (None, 13000),
    }


def test_what_is_set_of_the_conditions_is_compared_and_what_comes_and_goes_is_not():
    made = run(method(commit=[1]))
    later = replace(
        made.conditions,
        started="2026-11-30T22:31:00Z",
        load_average=(9.0, 9.0, 9.0),
        cpu_governor="powersave",
        mitigations={"spectre_v2": "Vulnerable"},
        sysctls={"vm.swappiness": "10"},
    )
    result = compare(run_set(made), run_set(replace(made, conditions=later)))
    assert {d.name: (d.before, d.after) for d in result.machine} == {
        "CPU governor": ("performance", "powersave"),
        "mitigation of spectre_v2": (None, "Vulnerable"),
        "vm.swappiness": (None, "10"),
    }
    assert "load 9.0; idle 93 %" in side_text("after", result.after)


@pytest.mark.parametrize(
    "facts", [{"system": 3}, {"cgroup": {"levels": 7}}, {"cgroup": {"levels": [1]}}]
)
def test_facts_of_an_unknown_shape_count_as_not_available(facts):
    result = compare(
        run_set(run(method(commit=[1]))), run_set(run(method(commit=[1]), machine=facts))
    )
    assert all(difference.after is None for difference in result.machine)


def test_settings_that_differ_are_named_and_the_seed_is_not_one():
    a = run(method(commit=[1]), settings={"seed": 1})
    b = run(method(commit=[1]), settings={"seed": 2, "granule_bytes": 2 << 20})
    assert [(d.name, d.before, d.after) for d in compare(run_set(a), run_set(b)).settings] == [
        ("granule_bytes", 65536, 2 << 20)
    ]


def test_what_is_unlike_within_one_side_is_named_by_file():
    made = method(commit=[1])
    mixed = run_set(
        run(made),
        run(made, settings={"seed": 3}),
        run(made, settings={"pattern": "random"}),
        run(made, method("advise", commit=[2]), machine=MACHINE | {"page_bytes": 16384}),
        path="mixed",
    )
    assert [
        (f.path, [d.name for d in f.differences]) for f in compare(mixed, mixed).before.unlike
    ] == [
        ("mixed/2.json", ["pattern"]),
        ("mixed/3.json", ["page size in bytes", "methods"]),
    ]


def test_every_fact_that_is_compared_is_one_that_is_recorded():
    facts = plain(read_facts())
    facts["device"] = dict.fromkeys(field.name for field in fields(DeviceFacts))
    for path in MACHINE_FACTS:
        *parents, last = path.split(".")
        group = facts
        for key in parents:
            group = group[key]
        assert last in group, path
    assert all("limit_bytes" in level for level in facts["cgroup"]["levels"])
