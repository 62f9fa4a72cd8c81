"""``vmtool kv-replay`` as its users run it."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from functools import partial

import pytest
from printed import printed
from stored_runs import described

from vmtool.cli import kv_replay as module
from vmtool.cli.kv_replay_compare import compare_cells, replay_cells
from vmtool.cli.kv_replay_options import ReplayOptions
from vmtool.errors import RefusedError
from vmtool.kv.estimate import Budget
from vmtool.kv.sources.model_lookup import load
from vmtool.memory.windows.wine import wine_version
from vmtool.replay.trace_to_result import run_replay
from vmtool.report import kv_replay as report
from vmtool.report.kv_replay_page import compare_html
from vmtool.results.kv_replay import ComparedReplay, ReplayComparison
from vmtool.units import format_size

SMALL = ("synthetic:requests=40,rate=20", "--model", "qwen3-0.6b", "--budget", "1GiB")


def small_options():
    """Return the options of SMALL."""
    given = module.command.make_context("kv-replay", [*SMALL]).params
    names = {field.name for field in fields(ReplayOptions)}
    chosen = {name: value for name, value in given.items() if name in names}
    return ReplayOptions(**{**chosen, "trace": SMALL[0]})


def replayed():
    """Return the result of SMALL."""
    options = small_options()
    rules = options.rules(load("qwen3-0.6b"), Budget(1 << 30, "as given"), None)
    return run_replay(options.open_trace(), rules.plan, rules.settings)


def compared(*rows, complete=True):
    return ReplayComparison.of(rows, complete=complete)


def test_the_text_says_what_happened(vmtool):
    ran = vmtool("kv-replay", *SMALL)
    assert ran.code == 0
    assert ran.stderr == ""
    for words in ("live", "committed", "reserved", "waste", "waiting", "commits", "releases"):
        assert words in ran.stdout
    assert "█" in ran.stdout


def test_the_same_seed_gives_the_same_document(vmtool):
    first = vmtool("kv-replay", *SMALL, "--json").document
    assert (first["schema"], first["version"]) == ("vmtool.kv-replay", 1)
    assert first == vmtool("kv-replay", *SMALL, "--json").document
    other = vmtool("kv-replay", *SMALL, "--json", "--seed", "1").document
    assert other["usage"] != first["usage"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no TRACE"),
        (("a", "b"), "more than one TRACE"),
        (("synthetic:",), "no MODEL"),
        (("synthetic:rate=1,rate=2", "--model", "qwen3-0.6b"), "has rate twice"),
        (("synthetic:", "--model", "qwen3-0.6b", "--policy", "pagd"), "did you mean paged"),
        (("synthetic:", "--model", "qwen3-0.6b", "--tokens-per-second", "0"), "tokens a second"),
        (("synthetic:", "--model", "qwen3-0.6b", "--prefill-rate", "nan"), "tokens a second"),
        (("/nowhere", "--model", "qwen3-0.6b"), "cannot be read"),
    ],
)
def test_wrong_usage_is_2(vmtool, arguments, words):
    ran = vmtool("kv-replay", *arguments)
    assert ran.code == 2
    assert ran.stdout == ""
    assert words in ran.stderr


def test_bad_lines_are_reported_by_number(vmtool, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt_len": 5, "output_len": 5}\n{"prompt_len": -5, "output_len": 5}\n')
    ran = vmtool("kv-replay", str(path), *SMALL[1:])
    assert ran.code == 0
    assert "1 line is not a request: line 2 prompt_len -5 is not from 0" in " ".join(
        ran.stdout.split()
    )
    assert vmtool("kv-replay", str(path), *SMALL[1:], "--max-bad-lines", "0").code == 2


@pytest.mark.skipif(wine_version() is not None, reason="Wine keeps a file for each granule")
def test_help_examples_work(vmtool, help_examples):
    examples = help_examples(module.command)
    assert len(examples) == 2
    for example in examples:
        assert vmtool(*example).code == 0


REAL = ("synthetic:requests=9,rate=9,prompt=200,output=20,spread=0", "--model", "qwen3-0.6b")


def test_documents_are_described_to_the_last_key(vmtool):
    described(vmtool("kv-replay", *SMALL, "--json").document)
    rules = ("--budget", "256MiB", "--backing", "host", "--no-host")
    real = vmtool("kv-replay", *REAL, *rules, "--json").document
    described(real)
    conditions = real["real"]["conditions"]
    assert conditions["started"].endswith("Z")
    assert conditions["host"] is None
    compare = ("--compare", "policy=per-tensor,straddle-loses", "granule=4KiB,64KiB")
    described(vmtool("kv-replay", *SMALL, *compare, "--json").document)


def test_a_real_run_has_the_bytes_of_the_simulation(vmtool):
    rules = (*REAL, "--budget", "200MiB", "--granule", "64KiB", "--json")
    simulated = vmtool("kv-replay", *rules).document
    real = vmtool("kv-replay", *rules, "--backing", "host").document
    assert real.pop("real")["checks"] > 0
    assert simulated.pop("real") is None
    assert real.pop("command") != simulated.pop("command")
    assert real == simulated


def test_the_smallest_budget_without_refusals_is_found(vmtool):
    small = (*SMALL[:-1], "400MiB")
    assert "use --find-budget to find" in vmtool("kv-replay", *small).stdout
    assert vmtool("kv-replay", *small, "--json").document["enough_budget_bytes"] is None
    found = vmtool("kv-replay", *small, "--find-budget", "--json").document
    enough = found["enough_budget_bytes"]
    assert found["requests"]["refused_admissions"] > 0
    assert enough > found["usage"]["committed"]["peak_bytes"]
    ran = vmtool("kv-replay", *small[:-1], str(enough))
    assert f"({enough:,} bytes) is the smallest without refusals" in ran.stdout
    assert " 0 admissions, 0 steps" in ran.stdout
    less = vmtool("kv-replay", *small[:-1], str(enough - 1), "--json").document
    assert less["requests"]["refused_admissions"] + less["requests"]["refused_steps"] > 0
    axis = ("--compare", "policy=per-tensor,paged")
    assert "budget without refusals" not in vmtool("kv-replay", *small, *axis).stdout
    assert format_size(enough) in vmtool("kv-replay", *small, *axis, "--find-budget").stdout


@pytest.mark.parametrize("more", [(), ("--find-budget",)])
def test_no_budget_is_enough_where_all_requests_are_too_long(vmtool, more):
    ran = vmtool("kv-replay", *SMALL, "--context", "1", *more)
    text = " ".join(ran.stdout.split())
    assert ran.code == 0
    assert "budget no budget is enough: every request is longer than --context" in text
    assert "at most 256 sequences of 1 token " in text


def test_prefixes_that_are_kept_are_not_prefilled_again(vmtool, tmp_path):
    trace = tmp_path / "t.jsonl"
    line = '{{"timestamp": {}, "input_length": 1025, "output_length": 2, "hash_ids": [1, {}, 9]}}\n'
    trace.write_text("".join(line.format(at * 10**4, at % 2) for at in range(4)))
    rules = (str(trace), *SMALL[1:])
    ran = vmtool("kv-replay", *rules, "--prefix-cache", "--json")
    described(ran.document)
    # Two prefixes, of which the first block is the same: 1,025 tokens, 513, 1 and 1 are prefilled.
    assert ran.document["requests"]["prompt_tokens"] == 1025 + 513 + 1 + 1
    assert ran.document["prefix_cache"]["saved_tokens"] == 512 + 1024 + 1024
    assert vmtool("kv-replay", *rules, "--json").document["prefix_cache"] is None
    text = " ".join(vmtool("kv-replay", *rules, "--prefix-cache").stdout.split())
    assert "hit rate 62.4 % (2,560 tokens not prefilled)" in text


def test_page_faults_are_a_phase_of_their_own_unless_left_out(vmtool):
    rules = (*REAL, "--budget", "200MiB", "--granule", "64KiB", "--backing", "host")
    touched, bare = vmtool("kv-replay", *rules), vmtool("kv-replay", *rules, "--no-touch")
    assert re.search(r"^touch +[1-9]", touched.stdout, re.MULTILINE)
    assert "steps include the page faults" in " ".join(touched.stdout.split())
    assert not re.search(r"^touch ", bare.stdout, re.MULTILINE)
    assert "the times do not include page faults, as --no-touch was given" in " ".join(
        bare.stdout.split()
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux faults pages in at commit")
@pytest.mark.parametrize("touch", ["--touch", "--no-touch"])
def test_page_faults_of_a_commit_are_in_its_time(vmtool, touch):
    rules = (*REAL, "--budget", "200MiB", "--granule", "64KiB", "--backing", "host")
    text = " ".join(vmtool("kv-replay", *rules, "--prefault", touch).stdout.split())
    assert "; commits include the page faults" in text
    assert "first writes" not in text


def test_steps_that_committed_nothing_are_none(vmtool):
    rules = (*REAL, "--budget", "200MiB", "--granule", "64KiB", "--backing", "host")
    text = " ".join(vmtool("kv-replay", *rules, "--context", "1").stdout.split())
    assert "no decode step committed memory" in text
    assert "0 of 0" not in text


def test_one_is_no_plural():
    result = replayed()
    one = dict.fromkeys(("refused_admissions", "refused_steps", "preemptions"), 1)
    result = replace(result, requests=replace(result.requests, **one))
    text = "\n".join(printed(partial(report.to_text, result), 100))
    assert "1 admission, 1 step; 1 preemption\n" in text


def test_a_plan_that_is_not_safe_is_5(vmtool):
    ran = vmtool("kv-replay", *REAL, "--budget", "1EiB", "--granule", "2MiB", "--backing", "host")
    assert ran.code == 5
    assert ran.stdout == ""
    assert "hint: use" in ran.stderr
    assert "a smaller --budget: " in ran.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is enforced on Linux")
def test_a_plan_that_reserves_too_much_names_the_options_that_lower_that(vmtool_child):
    limit = "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 30,) * 2)"
    rules = (*REAL, "--budget", "64MiB", "--granule", "64KiB", "--backing", "host")
    ran = vmtool_child("kv-replay", *rules, "--context", "1000000", before=limit)
    assert ran.code == 5
    assert "hint: use a smaller --max-sequences or --context: " in ran.stderr
    less = ("--context", "1000", "--max-sequences", "2")
    assert vmtool_child("kv-replay", *rules, *less, before=limit).code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--compare", "granul=1"), "did you mean granule"),
        (("--compare", "policy="), "no values"),
        (("--compare", "policy=pagd"), "unknown policy"),
        (("--compare", "dtype=bf17"), "did you mean bf16"),
        (("--compare", "on-refusal=panic"), "is not wait, reject or preempt"),
        (("--compare", "block=0"), "at least one token"),
        (("--method", "fixed"), "need --backing"),
        (("--no-touch",), "need --backing"),
        (("--prefix-cache", "--no-share"), "needs shared prefixes"),
        (("--prefix-cache", "--find-budget"), "fills any budget"),
        (("--backing", "host", "--granule", "5000", "--budget", "64MiB"), "not a multiple"),
        (("--html", "/nowhere/x.html"), "cannot write"),
    ],
)
def test_wrong_combinations_are_2(vmtool, arguments, words):
    ran = vmtool("kv-replay", *REAL, *arguments)
    assert (ran.code, ran.stdout) == (2, "")
    assert words in ran.stderr


def test_a_comparison_marks_the_best_and_says_what_is_not_possible(vmtool, tmp_path):
    ran = vmtool(
        *(
            "kv-replay",
            *SMALL,
            "--csv",
            str(tmp_path / "t.csv"),
            "--html",
            str(tmp_path / "t.html"),
        ),
        *("--compare", "policy=per-tensor,straddle-loses,token-major", "granule=16KiB"),
    )
    assert ran.code == 0
    lines = [line for line in ran.stdout.splitlines() if line.endswith("best")]
    assert [line.split()[0] for line in lines] == ["token-major"]
    assert "not possible: straddle-loses, 16KiB: " in ran.stdout
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["best"] for row in rows] == ["0", "0", "1"]
    assert "more than a granule" in rows[1]["impossible"]
    assert (tmp_path / "t.html").read_text(encoding="utf-8").count("<svg") == 2


def test_a_comparison_on_real_memory_names_impossible_rows(vmtool, tmp_path):
    files = ("--csv", str(tmp_path / "t.csv"), "--html", str(tmp_path / "t.html"))
    ran = vmtool(
        *("kv-replay", *REAL, "--budget", "256MiB", "--backing", "host", *files),
        *("--compare", "granule=3,64KiB"),
    )
    assert ran.code == 0
    assert "3: a granule of 3 bytes is not a multiple of" in ran.stdout
    assert next(line for line in ran.stdout.splitlines() if line.startswith("64KiB"))[-4:] == "best"


def test_one_row_that_is_refused_takes_no_other_with_it():
    result = replayed()

    def once(changed):
        if changed.granule == 4096:
            raise RefusedError("too many memory areas")
        return result

    cells = replay_cells(small_options(), ["granule=4KiB,2MiB"])
    found = compare_cells(cells, once)
    assert found.complete
    assert [row.result for row in found.rows] == [None, result]
    assert found.rows[0].impossible == "too many memory areas"
    with pytest.raises(RefusedError, match="memory areas"):
        compare_cells(cells[:1], once)


def test_an_interrupted_comparison_says_so():
    row = ComparedReplay({"policy": "paged"}, replayed(), "")
    assert "interrupted" in compare_html(compared(row, complete=False), [])
    assert "interrupted" not in compare_html(compared(row), [])
    nothing = compared(complete=False)
    lines = printed(partial(report.compare_text, nothing))
    assert lines == ["no combination was replayed: interrupted"]
    compare_html(nothing, [])


def test_a_comparison_that_lost_its_workers_says_so_and_not_that_it_was_interrupted():
    lost = ReplayComparison.of((), complete=False, problem="its worker died")
    lines = printed(partial(report.compare_text, lost))
    assert lines == ["no combination was replayed: its worker died"]
    page = compare_html(lost, [])
    assert "its worker died: no combination" in page
    assert "interrupted" not in page


def test_combinations_replayed_at_once_match_those_replayed_in_turn(vmtool):
    axes = ("--compare", "policy=per-tensor,straddle-loses,paged", "granule=16KiB")
    rules = ("kv-replay", *SMALL, "--seed", "5", "--on-refusal", "wait", *axes, "--json")
    serial = vmtool(*rules).document
    at_once = vmtool(*rules, "--jobs", "2").document
    assert at_once.pop("command") != serial.pop("command")
    assert at_once == serial
    assert serial["rows"][1]["impossible"]


def test_jobs_need_a_comparison_of_simulations(vmtool):
    assert "--jobs" in vmtool("kv-replay", *SMALL, "--jobs", "2").stderr
    axes = ("--compare", "granule=64KiB,2MiB")
    ran = vmtool("kv-replay", *SMALL, *axes, "--jobs", "2", "--backing", "host")
    assert (ran.code, ran.stdout) == (2, "")


def test_the_report(golden):
    result = replayed()
    golden("kv-replay", partial(report.to_text, result))
    rows = [
        ComparedReplay({"policy": "per-tensor"}, result, ""),
        ComparedReplay({"policy": "straddle-loses"}, None, "a block is more than a granule"),
    ]
    golden("kv-replay-compare", partial(report.compare_text, compared(*rows)))


def test_late_requests_are_a_notice_that_names_sort(vmtool, tmp_path):
    trace = tmp_path / "t.jsonl"
    line = '{{"prompt_len": 5, "output_len": 5, "arrival_time": {}}}\n'
    trace.write_text("".join(line.format(at if at != 50 else 1) for at in range(200)))
    ran = vmtool("kv-replay", str(trace), *SMALL[1:])
    assert ran.code == 0
    assert "1 request is out of order; --sort sorts by time" in ran.stderr
    assert vmtool("kv-replay", str(trace), *SMALL[1:], "--sort").stderr == ""


@pytest.mark.parametrize("given", ["--commit-ahead=1048577", "--compare=commit-ahead=1048577"])
def test_the_most_that_is_committed_ahead_holds_for_an_axis_too(vmtool, given):
    ran = vmtool("kv-replay", *SMALL, given)
    assert (ran.code, ran.stdout) == (2, "")
    assert "must be at most 1048576" in ran.stderr


def test_a_replay_that_committed_nothing_has_no_plot(vmtool):
    ran = vmtool("kv-replay", *SMALL[:-1], "10MiB")
    assert ran.code == 0
    assert "40 too large for the budget" in ran.stdout
    assert "over simulated time" not in ran.stdout


def test_the_page_needs_nothing_but_itself_and_is_escaped(vmtool, tmp_path):
    trace = tmp_path / "a&b.jsonl"
    trace.write_text('{"prompt_len": 600, "output_len": 50}\n' * 5 + "<script>\n")
    page = tmp_path / "r.html"
    table = tmp_path / "r.csv"
    files = ("--html", str(page), "--csv", str(table))
    ran = vmtool(
        "kv-replay", str(trace), *REAL[1:], "--budget", "1GiB", "--backing", "host", *files
    )
    assert ran.code == 0
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?:src|href|url|@import)\s*[=(](?!.data:application/json)", text) == []
    assert "<script" not in text
    assert "a&amp;b.jsonl" in text
    assert "&b.jsonl" not in text
    assert text.count("<svg") > 3
    assert "33.3 ms" in text
    assert not re.search(r"[a-z]_(bytes|ns|tokens|prefixes)", text.partition(">Rules<")[2])
    with table.open() as file:
        points = list(csv.DictReader(file))
    assert points
    assert all(int(row["live_bytes"]) <= int(row["committed_bytes"]) for row in points)
    peak = max(int(row["committed_max_bytes"]) for row in points)
    assert re.search(rf"^committed +{re.escape(format_size(peak))}", ran.stdout, re.MULTILINE)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width):
    result = replayed()
    lines = printed(partial(report.to_text, result), width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    words = " ".join(lines).split()
    assert f"{result.requests.decode_steps:,}" in words
    assert f"{result.operations.commits:,}" in words
    rows = compared(ComparedReplay({"policy": "per-tensor"}, result, ""))
    assert max(map(len, printed(partial(report.compare_text, rows), width))) <= width


def test_a_comparison_of_many_rows_keeps_its_columns_at_80():
    result = replayed()
    other = replace(result, operations=replace(result.operations, commits_per_s=1131.0))
    rows = [
        ComparedReplay({"policy": policy, "granule": granule}, found, "")
        for policy, found in (("per-tensor", result), ("token-major", other), ("paged", result))
        for granule in ("64KiB", "2MiB")
    ]
    lines = printed(partial(report.compare_text, compared(*rows)))
    start = next(i for i, line in enumerate(lines) if line.startswith("The same in every row: "))
    assert f"finished {result.requests.finished:,}" in " ".join(lines[start:])
    table = lines[lines.index("", start) + 1 :]
    assert table[0].split() == ["policy", "granule", "commits/s"]
    assert table[3].split() == ["token-major", "64KiB", "1,131.0"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on POSIX")
@pytest.mark.parametrize("backing", [(), ("--backing", "host")])
def test_an_interruption_is_130_with_a_valid_partial_document(backing):
    rules = ("synthetic:requests=1000000,rate=9,prompt=50,output=9", *REAL[1:])
    for wait_s in (3, 10, 30):
        ran = subprocess.Popen(
            [
                *(sys.executable, "-m", "vmtool", "kv-replay", *rules, "--budget", "256MiB"),
                *backing,
                "--json",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(wait_s)
        ran.send_signal(signal.SIGINT)
        stdout, stderr = ran.communicate(timeout=60)
        assert ran.returncode == 130
        # On a busy machine it takes longer until it, or its child, replays.
        if stdout and json.loads(stdout)["requests"]["arrived"]:
            break
    document = json.loads(stdout)
    described(document)
    assert not document["complete"]
    assert 0 < document["requests"]["arrived"] < 1_000_000
    assert document["operations"]["commit_bytes"] == document["operations"]["release_bytes"]
    assert "everything is released" in stderr
    assert (document["real"] is None) == (not backing)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is enforced on Linux")
def test_the_death_of_the_process_with_the_memory_leaves_a_result():
    rules = ("synthetic:requests=1000000,rate=9", *REAL[1:], "--budget", "256MiB")
    limit = "import resource as r, sys; r.setrlimit(r.RLIMIT_CPU, (4, 4))"
    enter = "from vmtool.cli.app import run; sys.exit(run(sys.argv[1:]))"
    ran = subprocess.run(
        [
            *(sys.executable, "-c", f"{limit}; {enter}"),
            *("kv-replay", *rules, "--backing", "host", "--json"),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ran.returncode == 1
    document = json.loads(ran.stdout)
    described(document)
    assert not document["complete"]
    assert document["requests"]["arrived"] > 0
    assert document["accident"]["signal"] in ("SIGKILL", "SIGXCPU")
    assert "RLIMIT_CPU is 4 s" in document["accident"]["cause"]
    assert "RLIMIT_CPU is 4 s" in ran.stderr


def test_a_breach_of_the_books_is_3(vmtool_child):
    before = """
from vmtool.replay.account import Account
real = Account.release
def less(self, arena, nbytes, calls, spans):
    real(self, arena, nbytes - 4096, calls, spans)
Account.release = less
"""
    ran = vmtool_child("kv-replay", *REAL, "--budget", "256MiB", before=before)
    assert ran.code == 3
    assert ran.stdout == ""
    assert "contradict" in ran.stderr


def test_a_replay_says_that_it_subtracts_no_weights_or_that_none_fit(vmtool):
    trace = (SMALL[0], "--model", "qwen3-0.6b", "--budget")
    ran = vmtool("kv-replay", *trace, "h100")
    assert (ran.code, "no weights are subtracted from the budget" in ran.stderr) == (0, True)
    ran = vmtool("kv-replay", *trace, "1KiB", "--weights", "3GiB")
    assert ran.code == 5
    assert "the weights (3 GiB, as given) are more than the budget of 1 KiB" in ran.stderr


@pytest.mark.parametrize(
    ("line", "tp", "pp"),
    [("8xh100", 8, 1), ("2x80GB", 2, 1), ("8xh100 --pp 2", 4, 2), ("h100", 1, 1)],
)
def test_as_many_devices_divide_the_model_of_a_replay(vmtool, line, tp, pp):
    budget, *more = line.split()
    ran = vmtool("kv-replay", *SMALL[:3], "--budget", budget, *more, "--json")
    settings = ran.document["settings"]
    assert (settings["tp"], settings["pp"]) == (tp, pp)
    assert settings["budget_bytes"] >= 70 << 30  # of one rank


def test_another_number_of_ranks_than_of_devices_is_refused(vmtool):
    ran = vmtool("kv-replay", *SMALL[:3], "--budget", "8xh100", "--tp", "2")
    assert (ran.code, ran.stdout) == (2, "")
    assert "--budget names 8 devices, but tp 2 x pp 1 are 2 ranks" in ran.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("24GiB", "24 GiB of KV memory (as given, no weights subtracted)"),
        (
            "24GiB --weights 4GiB --tp 2",
            "22 GiB of KV memory (as given, 2 GiB of weights subtracted)",
        ),
    ],
)
def test_a_replay_says_what_of_the_budget_is_for_the_cache(vmtool, line, words):
    budget, *more = line.split()
    ran = vmtool("kv-replay", *SMALL[:3], "--budget", budget, *more)
    assert words in " ".join(ran.stdout.split())
