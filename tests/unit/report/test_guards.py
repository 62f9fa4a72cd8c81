"""The whole report of guards."""

from vmtool.report.guards import to_text
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.guards import GuardsResult


def test_the_report_of_guards(golden):
    checks = [
        Check(
            f"guard.{method}.{case}",
            CheckOutcome.PASSED,
            {
                "method": method,
                "case": case,
                "must_fault": method == "fixed" and case != "committed",
                "faulted": method == "fixed" and case != "committed",
                "written": method != "fixed" or case == "committed",
                "signal": "SIGSEGV" if method == "fixed" and case != "committed" else None,
                "error": None,
            },
        )
        for method in ("fixed", "advise")
        for case in ("committed", "never", "released")
    ]
    result = GuardsResult("host", tuple(checks), complete=True, passed=True)
    golden("guards", lambda console: to_text(result, console))
