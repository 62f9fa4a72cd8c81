"""One page of each command that writes one, made of fixed results."""

from dataclasses import replace

from stored_runs import MACHINE, gaussian, method, run, several

from vmtool.cli.app import run as run_vmtool
from vmtool.compare.assertions import parse_change
from vmtool.compare.changes import compare
from vmtool.fleet.judge import judge
from vmtool.fleet.machine_readings import MachineReading
from vmtool.fleet.machines import Fleet
from vmtool.kv import estimate as kv
from vmtool.kv.packing.policies import POLICIES
from vmtool.kv.sources import model_lookup
from vmtool.machine.doctor.findings import Finding
from vmtool.machine.run_conditions import RunConditions
from vmtool.report.check import to_html as check_page
from vmtool.report.compare_page import to_html as compare_page
from vmtool.report.fleet import to_html as fleet_page
from vmtool.report.kv_estimate_page import to_html as estimate_page
from vmtool.report.matrix import to_html as matrix_page
from vmtool.report.stress_page import to_html as stress_page
from vmtool.results.check import MachineCheckResult, MemoryCheck
from vmtool.results.fleet import Problem
from vmtool.results.matrix import MatrixCell, MatrixResult, MatrixRow
from vmtool.results.stress import Outcome, StressSettings
from vmtool.stress.matrix import best_granule, choose_granules
from vmtool.stress.recommendation_and_advice import recommend
from vmtool.stress.workloads import PATTERNS

CONDITIONS = RunConditions("2026-11-30T22:30:00Z", "worker-7", 86_400, (0.5, 0.4, 0.3), 0.93)
METHODS = ("fixed", "fixed+huge", "protect", "protect+huge", "advise", "advise+huge")


def latencies(seed, *, slower=1.0):
    return {
        "commit": gaussian(seed, 180_000 * slower, 12_000),
        "touch": gaussian(seed + 1, 400_000, 12_000),
        "release": gaussian(seed + 2, 90_000, 12_000),
    }


def stress():
    result = run(method("fixed", **latencies(1)), method("protect", **latencies(4)))
    return stress_page(result, command=["vmtool", "stress"])


def stress_all():
    methods = [method(name, **latencies(i, slower=1 + i / 4)) for i, name in enumerate(METHODS)]
    result = replace(run(*methods), recommendation=recommend(methods))
    return stress_page(result, command=["vmtool", "stress", "--method", "all"])


def comparison():
    before = several(5)
    after = several(5, seed=2, factor=1.4, machine=MACHINE | {"page_bytes": 16384})
    gates = [parse_change("commit.median>+20%"), parse_change("touch.p50>+90%")]
    result = compare(before, after, fail_on=gates)
    return compare_page(before, after, result, ["vmtool", "compare"])


def matrix():
    cells = [
        MatrixCell(
            *(pattern, granule, name, 90, 1000 + i, None, None, None, Outcome.COMPLETE, (), None),
            *(900 + i, 1100 + i, (1000 + i) * (1 << 30) // granule),
        )
        for granule in (4096, 65536, 2 << 20)
        for pattern in PATTERNS
        for i, name in enumerate(METHODS)
    ]
    choices = choose_granules(cells, None)
    result = MatrixResult(
        settings=StressSettings(methods=METHODS, seed=7),
        cells=tuple(cells),
        complete=True,
        passed=True,
        rows=tuple(MatrixRow(pattern, 65536, None) for pattern in PATTERNS),
        granules=choices,
        best=best_granule(choices),
        conditions=CONDITIONS,
        machine=MACHINE,
    )
    return matrix_page(result, command=["vmtool", "matrix"])


def check():
    result = run(method("fixed", **latencies(1)), method("protect", **latencies(4)))
    memory = MemoryCheck(
        backing="host",
        device=None,
        recommendation=recommend(result.methods),
        checks=result.checks,
        stress=result,
    )
    found = MachineCheckResult(
        wall_ns=15 * 10**9,
        complete=True,
        passed=True,
        safe_bytes=16 << 30,
        limiting_bound="available-memory",
        findings=(Finding.note("no-swap", "no swap", "add swap"),),
        memory=(memory,),
        conditions=CONDITIONS,
        machine=MACHINE,
    )
    return check_page(found, command=["vmtool", "check"])


def replay(folder):
    path = folder / "replay.html"
    line = ("kv-replay", "synthetic:requests=40", "--model", "llama-3.1-8b", "--budget", "1GiB")
    assert run_vmtool([*line, "-q", "-o", str(folder / "replay.txt"), "--html", str(path)]) == 0
    return path.read_text(encoding="utf-8")


def estimate(hostile="16 GiB of RAM"):
    model = model_lookup.load("qwen3.5-27b")
    question = kv.Question(
        model,
        kv.choose_formats(model.dtype, key=None, value=None),
        kv.why_format(model, None, None),
        budget=kv.Budget(80 << 30, hostile, 20 << 30, 0, "as given"),
        context=32_768,
    )
    result = kv.answer_question(question, policies=POLICIES, explain=True)
    return estimate_page(result, ["vmtool", "kv-estimate", hostile])


def fleet(hostile="Retpolines"):
    """40 machines with names and measures as long as they come: three slow ones, and a split."""
    names = [f"stress.host.2MiB.protect+huge.{name}_ns" for name in ("commit.median", "touch.p99")]
    found = Fleet()
    for number in range(40):
        own = 1 + 0.01 * (number % 5)
        slow = number % 13 == 3
        values = 40_000 * own * (1.9 if slow else 1), 9e7 * own * (1.5 if number % 2 else 1)
        runs = [
            {name: value * (1 + 0.02 * (at - 2)) for name, value in zip(names, values, strict=True)}
            for at in range(5)
        ]
        facts = {
            "system.cpu_model": "AMD EPYC 9654 96-Core Processor",
            "huge_pages.thp_mode": "never" if slow else "madvise",
            "mitigations.spectre_v2": f"Mitigation: {hostile}; {number % 2}",
        }
        host = f"gpu-node-{number:04}.cluster-7.example.internal"
        once = {"limits.commit.fixed.reached_bytes": float(number << 30)}
        found.add(MachineReading(host, host, "vmtool.stress", "0", facts, (*runs, once)))
    found.add(Problem("results/" + "long" * 30 + ".json", "unreadable", f"is not JSON: {hostile}"))
    return fleet_page(judge(found), ["vmtool", "fleet", "results/", hostile])


NAMES = ("stress", "stress-all", "compare", "matrix", "check", "kv-replay", "kv-estimate", "fleet")


def page_of(name, folder):
    """The page called *name*; a replay writes it to *folder* first."""
    if name == "kv-replay":
        return replay(folder)
    made = {
        "stress": stress,
        "stress-all": stress_all,
        "compare": comparison,
        "matrix": matrix,
        "check": check,
        "kv-estimate": estimate,
        "fleet": fleet,
    }
    return made[name]()
