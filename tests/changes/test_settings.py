"""The list of settings: the values that it accepts and refuses, and that the docs list the same."""

import re
from pathlib import Path

import pytest

from lumos.changes.changes import Changes
from lumos.changes.settings import SETTINGS, SettingKind, Way, check_blocks, check_settings, counts, in_words, keys_for, parse_settings
from lumos.errors import LumosError, UsageError
from lumos.vocabulary import Recompute

DOCS = Path(__file__).parents[2] / "docs" / "whatif.md"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("layer=8", "did you mean 'layers'"), ("batch_size=8", "did you mean 'micro_batch'"), ("mbs=8", "did you mean 'micro_batch'"),
        ("gpus=8", "did you mean 'dp'"), ("compile=on", "not a setting; a changed script is --before CMD --after CMD"),
        ("layers", "KEY=VALUE"),
        ("layers= ", "KEY=VALUE"),
        ("layers=eight", "not a whole number"),
        ("layers=nan", "not a whole number"),
        ("hidden=0", "at least 1"),
        ("tp=-1", "at least 1"),
        ("zero=4", "at most 3"),
        ("cuda_graphs=full", "valid are on, off"),
        ("precision=fp9", "did you mean 'fp8'"),
        ("recompute=ful", "did you mean 'full'"),
        ("zero=3,dp=x2", "more than one KEY=VALUE; repeat --set for each"),
    ],
)
def test_a_value_that_no_job_could_take_is_refused(word, said):
    with pytest.raises(UsageError, match=said):
        parse_settings([word])


def test_two_values_of_one_setting_are_refused():
    with pytest.raises(UsageError, match="--set layers: given twice, as 8 and as 2; give it once"):
        parse_settings(["layers=8", "layers=2"])
    assert parse_settings(["micro-batch=2", "micro_batch=2"]) == {"micro_batch": "2"}


def test_changes_made_in_python_are_checked_the_same_way():
    with pytest.raises(UsageError, match="--set precision=fp9"):
        Changes({"precision": "fp9"})


def test_every_value_of_every_setting_is_taken():
    for key, setting in SETTINGS.items():
        for value in setting.words or (str(setting.least),):
            check_settings({key: value})


def test_whole_numbers_are_parsed_and_words_are_not():
    wanted = parse_settings(["micro-batch=4", "recompute=full", "zero=0"])
    assert wanted == {"micro_batch": "4", "recompute": "full", "zero": "0"}
    assert counts(wanted) == {"micro_batch": 4, "zero": 0}


def test_words_that_measured_blocks_do_not_show_are_refused_with_the_reason_of_each():
    check_blocks(parse_settings(["layers=8", "recompute=full", "tp=2"]))
    with pytest.raises(LumosError, match=r"recompute=selective: which parts .*; schedule=zero-bubble: it runs .* ask lumos predict"):
        check_blocks(parse_settings(["recompute=selective", "schedule=zero-bubble"]))


def test_a_word_may_be_valid_elsewhere():
    SETTINGS["recompute"].check_for(Way.PREDICTED, Recompute.SELECTIVE)
    with pytest.raises(UsageError, match="valid are full, none for a job that is changed through its measured blocks"):
        SETTINGS["recompute"].check_for(Way.BLOCKS, Recompute.SELECTIVE)


def test_kinds():
    kinds = {key: setting.kind for key, setting in SETTINGS.items()}
    assert (kinds["tp"], kinds["schedule"], kinds["cuda_graphs"]) == (SettingKind.COUNT, SettingKind.WORD, SettingKind.SWITCH)
    assert keys_for(Way.PASSES) == ("pp", "vpp", "microbatches", "schedule")


def test_the_help_names_every_setting_where_it_is_valid():
    blocks, predicted, passes = in_words().split("; ")
    assert blocks.endswith("recompute (full or none), cuda_graphs (on or off)")
    assert predicted.startswith("of what lumos predict wrote also schedule=zero-bubble, ") and predicted.endswith("recompute=selective")
    assert passes == "of recordings of passes pp, vpp, microbatches, schedule (1f1b, gpipe or interleaved)"


def test_the_docs_say_of_every_setting_what_it_assumes():
    table = DOCS.read_text(encoding="utf-8").split("| key | what happens, and what that assumes |\n|---|---|\n")[1].split("\n\n")[0]
    keys = [key for row in table.splitlines() for key in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(keys) == sorted(SETTINGS)


def test_a_framework_of_which_nothing_is_known_is_refused():
    assert Changes.parse(base=["framework=torchtitan"]).framework.name == "fsdp2"
    with pytest.raises(UsageError, match="framework=deepspeed: it is not known what this framework exchanges"):
        Changes.parse(base=["framework=deepspeed"])
    with pytest.raises(UsageError, match="framework 'my own' is not known"):
        Changes.parse(base=["framework=my own"])
