"""Changed scripts as fixes: what one saves is the worth of the finding that it fixes, else a finding of its own.

A changed script fixes a finding where it calls less often what stands at the line and in the module that the finding names, and saves
what the finding says that this is worth, within its interval. Both scripts are run without devices (`scripted`): no rule says what a change
does.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from lumos.diagnostics import Diagnostic
from lumos.findings.case import Priced
from lumos.findings.finding import Finding, FindingCode
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.findings.case import Case
    from lumos.scripted.answer import ChangedScript

#: How many kinds of operators are named.
_NAMED = 3


def with_changed_scripts(
    case: Case, findings: Sequence[Priced], changed: Sequence[ChangedScript]
) -> tuple[list[Priced], list[Diagnostic]]:
    """The findings with those that changed scripts fix at the scripts' prices, and what is said of scripts that save too little."""
    out, said = list(findings), []
    for script in changed:
        base, after = script.answer.base.step_time_s, script.answer.outcome
        worth, low, high = (base - time for time in (after.step_time_s, after.step_time_high_s, after.step_time_low_s))
        if not case.matters(1e9 * worth):
            message = f"--after {script.after}: saves {duration(1e9 * worth)} a step ({duration(1e9 * low)} to {duration(1e9 * high)})"
            said.append(Diagnostic("script-saves-little", message))
            continue
        lines = {line for lost in script.gone for line in lost.origins} - {""}
        fixed = [
            i
            for i, (finding, _) in enumerate(out)
            if finding.where.script in lines and finding.worth_low_s <= worth <= finding.worth_high_s
        ]
        position = max(fixed, key=lambda i: out[i].finding.worth_s, default=len(out))
        command = case.command(f"--before {shlex.quote(script.before)} --after {shlex.quote(script.after)}")
        one, words = out[position] if fixed else _of_its_own(case, script)
        priced = replace(one, worth_s=worth, worth_low_s=low, worth_high_s=high, worth_after_s=worth, grade=script.answer.trust.grade)
        out[position : position + 1] = [Priced(replace(priced, fix=f"as in {script.after}", command=command), words)]
    return out, said


def _of_its_own(case: Case, script: ChangedScript) -> Priced:
    """A finding, without its price, about what the changed script calls less often."""
    where, evidence = case.at_longest(case.counted), "the same operators, of other sizes or with others beside them"
    if script.gone:
        where = where._replace(task=script.gone[0].operator, script=script.gone[0].origins[0])
        named = ", ".join(f"{lost.calls:.0f} {lost.operator}" for lost in script.gone[:_NAMED])
        more = f" and {count(len(script.gone) - _NAMED, 'kind')} more" if len(script.gone) > _NAMED else ""
        evidence = f"fewer calls a step: {named}{more}"
    title, grade = "a changed script takes less", script.answer.trust.grade
    return Priced(Finding(FindingCode.CHANGED_SCRIPT, title, where, 0.0, 0.0, 0.0, 0.0, grade, evidence, "", ""), {})
