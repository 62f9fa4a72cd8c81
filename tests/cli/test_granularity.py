"""``vmtool granularity`` on real memory."""

import io
import mmap
import sys

import pytest
from rich.console import Console

from vmtool.cli import granularity as module
from vmtool.memory.backing import Granularity
from vmtool.probes.granularity import make_result
from vmtool.report.granularity import to_text
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.granularity import BackingGranularity, LargestReservation


def test_the_host_is_described_and_absent_cuda_says_why(vmtool):
    ran = vmtool("granularity", "--json")
    assert ran.code == 0
    document = ran.document
    assert (document["schema"], document["version"]) == ("vmtool.granularity", 2)
    assert document["command"] == ["vmtool", "granularity", "--json"]
    host, *others = document["backings"]
    assert host["name"] == "host"
    assert host["granularity"]["page_bytes"] == mmap.PAGESIZE
    assert host["largest_reservation"]["works_bytes"] >= 1 << 40
    assert host["largest_reservation"]["tries"] <= 64
    assert others
    for other in others:
        assert (other["absent"] is None) == (other["granularity"] is not None)
    assert document["machine"]["page_bytes"] == mmap.PAGESIZE


def test_the_text_shows_units_limits_and_reasons(vmtool):
    ran = vmtool("granularity")
    assert ran.code == 0
    assert ran.stderr == ""
    for words in ("commit in units of", "largest reservation", "safe to commit"):
        assert words in ran.stdout
    assert "cuda" in ran.stdout


def test_tokens_per_granule_of_2048_bytes_a_token(vmtool):
    # 4096/2048, 65536/2048 and 2097152/2048 by hand.
    ran = vmtool("granularity", "--bytes-per-token", "2048", "--json")
    found = {t["granule_bytes"]: t["tokens"] for t in ran.document["tokens_per_granule"]}
    assert {size: found[size] for size in (4096, 65536, 2097152)} == {
        4096: 2,
        65536: 32,
        2097152: 1024,
    }


def test_a_model_adds_its_kv_tensors(vmtool):
    # Llama 3.1 8B: 8 KV heads of 128 elements in 16 bits, so 2048 bytes a token for K and for V.
    document = vmtool("granularity", "--model", "llama-3.1-8b", "--json").document
    found = {(t["tensor"], t["granule_bytes"]): t["tokens"] for t in document["tokens_per_granule"]}
    assert {size: found["k", size] for size in (4096, 65536, 2097152)} == {
        4096: 2,
        65536: 32,
        2097152: 1024,
    }
    assert found["v", 65536] == 32


def test_tensors_of_one_name_are_distinguished_by_their_layers(vmtool):
    # Gemma 4 12B has more KV heads in its sliding window layers than in the others.
    document = vmtool("granularity", "--model", "gemma-4-12b", "--json").document
    names = {t["tensor"] for t in document["tokens_per_granule"]}
    assert "k (sliding window)" in names
    assert "k (full attention)" in names


def test_tensors_are_rows_and_granules_say_who_uses_them(vmtool):
    lines = vmtool("granularity", "--model", "gemma-4-26b-a4b").stdout.splitlines()
    start = lines.index("tokens per granule of one KV tensor")
    headings, *rows, granules = lines[start + 1 : start + 7]
    assert headings.split()[:3] == ["tensor", "per", "token"]
    assert [row.split("   ")[0] for row in rows] == [
        *("k (sliding window)", "v (sliding window)", "k (full attention)", "v (full attention)")
    ]
    assert rows[2].split()[3:] == ["2", "KiB", "2", "32", "1,024"]
    assert "2 MiB: CUDA, huge pages" in granules
    assert max(map(len, [headings, *rows, granules])) <= 100


def test_a_model_without_a_cache_per_token_is_refused(vmtool):
    ran = vmtool("granularity", "--model", "falcon-mamba-7b")
    assert ran.code == 2
    assert "caches nothing per token" in ran.stderr


def test_a_piped_report_has_no_spaces_at_the_ends_of_lines(vmtool):
    lines = vmtool("granularity", "--prove").stdout.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_token_that_does_not_divide_the_granule_leaves_spare_bytes(vmtool):
    ran = vmtool("granularity", "--bytes-per-token", "3000", "--json")
    four_kib = next(t for t in ran.document["tokens_per_granule"] if t["granule_bytes"] == 4096)
    assert (four_kib["tokens"], four_kib["spare_bytes"]) == (1, 1096)
    assert "1, 1.07 KiB left over" in vmtool("granularity", "--bytes-per-token", "3000").stdout


def test_a_token_larger_than_the_granule_says_how_many_it_takes(vmtool):
    ran = vmtool("granularity", "--bytes-per-token", "5000")
    assert "0: a token takes 2 granules" in ran.stdout


def test_prove_tries_vmtool_and_the_kernel(vmtool):
    ran = vmtool("granularity", "--prove", "--json")
    assert ran.code == 0
    checks = ran.document["backings"][0]["checks"]
    assert {check["outcome"] for check in checks} == {"passed"}
    answers = [check["values"] for check in checks]
    assert "vmtool" in {answer["who"] for answer in answers}
    if sys.platform != "win32":
        kernel = [answer for answer in answers if answer["who"] == "kernel"]
        assert sum("EINVAL (22)" in answer["answer"] for answer in kernel) == 2
        assert sum(answer["accepted"] for answer in kernel) == 3


def test_a_wrong_granule_fails_the_command(vmtool, monkeypatch):
    wrong = Check(
        "mmap g at address base+g",
        CheckOutcome.FAILED,
        {"who": "kernel", "accepted": False, "answer": "no"},
    )
    found = BackingGranularity(
        "host",
        method="fixed",
        granularity=Granularity(4096, 4096, 4096),
        largest_reservation=LargestReservation(1, None, 1, None),
        checks=(wrong,),
    )
    monkeypatch.setattr("vmtool.probes.granularity.probe_all", lambda **_: (found,))
    ran = vmtool("granularity", "--prove")
    assert ran.code == 3
    assert "WRONG" in ran.stdout
    assert "the granularity is wrong" in ran.stderr


def test_an_absent_backing_requested_by_name_is_exit_4(vmtool, monkeypatch):
    monkeypatch.setattr(
        "vmtool.probes.granularity.probe",
        lambda name, **_: BackingGranularity(name, absent="no driver", hint="install one"),
    )
    ran = vmtool("granularity", "--backing", "cuda:7")
    assert ran.code == 4
    assert "cuda:7: not available: no driver" in ran.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bytes-per-token", "0"],
        ["--bytes-per-token", "2QB"],
        ["--backing", "gpu"],
        ["--model", "no-such-model"],
    ],
)
def test_bad_input_is_exit_2_with_nothing_on_stdout(vmtool, arguments):
    ran = vmtool("granularity", *arguments)
    assert ran.code == 2
    assert ran.stdout == ""
    assert ran.stderr


def example(facts):
    """Return a result with a host and a device that cannot be used."""
    found = LargestReservation(94007818645504, 94007818649600, 52, "ENOMEM")
    host = BackingGranularity(
        "host",
        method="fixed",
        granularity=Granularity(4096, 4096, 4096),
        largest_reservation=found,
        checks=(
            Check(
                "commit g at offset g/2",
                CheckOutcome.PASSED,
                {"who": "kernel", "accepted": False, "answer": "EINVAL (22)"},
            ),
        ),
    )
    gpu = BackingGranularity("cuda:0", absent="no driver", hint="install one")
    return make_result(facts, (host, gpu), (("k", 2048), ("latent", 5000)))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_digit_is_cut_at_any_width(width):
    from vmtool.machine import read_facts

    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, legacy_windows=False)
    to_text(example(read_facts()), console)
    text = out.getvalue()
    assert "…" not in text
    assert "94,007,818,645,504" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_the_report(golden, machine_facts):
    golden("granularity", lambda console: to_text(example(machine_facts), console))


def test_help_opens_with_a_sentence_and_two_examples_that_work(vmtool, help_examples):
    text = vmtool("granularity", "-h").stdout
    assert text.index("Show what this machine can map") < text.index("vmtool granularity\n")
    examples = help_examples(module.command)
    assert len(examples) == 2
    for example in examples:
        assert vmtool(*example).code == 0
