"""Where in a script its operators come from, and where two runs of it part."""

import shlex
from dataclasses import replace

import pytest

from lumos.findings.case import Priced, case_of
from lumos.findings.diagnose import diagnose_paths, with_changed_scripts
from lumos.findings.finding import FindingCode
from lumos.scripted.origin import first_difference, origins
from lumos.scripted.script import emulated_again


def test_lines_and_modules_of_an_emulated_script(scripts):
    (kindred,) = scripts.script(2, 64).kinds
    found = dict(zip((each.begin for each in kindred.process.operators), origins(kindred.process, kindred.placed), strict=True))
    of = {name: {found[each.begin] for each in kindred.process.operators if each.name == name} for name in ("aten::relu", "aten::linear")}
    assert {(each.module, each.line.rpartition(":")[2]) for each in of["aten::relu"]} == {(f"layers.{i}", "10") for i in range(2)}
    assert {each.module for each in of["aten::linear"]} == {"layers.0.up", "layers.1.up", "head"}
    backward = {found[each.begin] for each in kindred.process.operators if "ThresholdBackward" in each.name or "ReluBackward" in each.name}
    assert backward == of["aten::relu"]


def test_another_run_of_a_script_leaves_the_same(scripts):
    script = scripts.script(1, 8)
    assert first_difference(script.kinds[0].process, emulated_again(script, 1, 300.0)) == ""


def test_a_finding_names_the_line_of_the_script(scripts, slower, tmp_path):
    job = scripts.job(tmp_path, slower(), 3, 64)
    base = scripts.base(job, 3, 64)
    diagnosis = diagnose_paths(job, ("x",), graph=base.graph, origin=base.origins)
    found = {each.code: each.where.script for each in diagnosis.findings}
    assert found[FindingCode.LAUNCH_BOUND].endswith("train.py:25") and found[FindingCode.FUSIBLE_KERNELS].endswith("train.py:29")
    assert {each.where.script for each in diagnose_paths(job, ("x",)).findings} == {""}


def test_a_changed_script_prices_the_finding_that_it_fixes_and_is_one_else(scripts, slower, tmp_path):
    job = scripts.job(tmp_path, slower(), 3, 64, "item")
    base = scripts.base(job, 3, 64, "item")
    usual = diagnose_paths(job, ("x",), graph=base.graph, origin=base.origins)
    fewer, same = (base.changed(scripts.command(*words)) for words in ((1, 64, "item"), (3, 64, "item")))
    found = diagnose_paths(job, ("x",), graph=base.graph, origin=base.origins, changed=(fewer, same))
    (own,) = (each for each in found.findings if each.code is FindingCode.CHANGED_SCRIPT)
    assert own.worth_s == pytest.approx(fewer.answer.base.step_time_s - fewer.answer.outcome.step_time_s)
    assert own.command == f"lumos whatif x --before {shlex.quote(fewer.before)} --after {shlex.quote(fewer.after)}"
    assert own.where.script.startswith("layers.0.up at ") and "10 aten::t" in own.evidence
    assert "script-saves-little" in {each.code for each in found.diagnostics}
    case = case_of(job, base.graph, ("x",), base.origins)
    (launches,) = (each for each in usual.findings if each.code is FindingCode.LAUNCH_BOUND)
    there = replace(launches, where=own.where)
    ((fixed, _words),), _ = with_changed_scripts(case, [Priced(there, {})], [fewer])
    assert (fixed.code, fixed.worth_s, fixed.command) == (FindingCode.LAUNCH_BOUND, own.worth_s, own.command)
