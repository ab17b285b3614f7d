import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lumos import chakra, collect, proxy
from lumos.arguments import declared
from lumos.cli import VERBS, load, output
from lumos.cli import chakra as cli_chakra
from lumos.cli import proxy as cli_proxy
from lumos.cli.collect import ProfileWords


def test_help_names_every_verb(lumos):
    done = lumos("--help")
    assert done.status == 0
    assert all(verb in done.out for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_loads_and_explains_itself(lumos, verb):
    command = load(verb)
    assert command.name == verb
    for part in getattr(command, "commands", {"": None}):  # a verb that has verbs of its own is run through those
        done = lumos(verb, *filter(None, [part]), "--help")
        assert done.status == 0 and "--json" in done.out


@pytest.mark.parametrize(
    ("words", "function"),
    [
        (cli_proxy.RunWords, proxy.run), (cli_proxy.GenerateWords, proxy.generate), (cli_chakra.ExportWords, chakra.export),
        (cli_chakra.SampleWords, chakra.synthesize), (cli_chakra.CheckWords, chakra.check), (ProfileWords, collect.run),
    ],
)  # fmt: skip
def test_the_help_of_an_option_states_the_default_of_the_function(words, function):
    taken = inspect.signature(function).parameters
    for key, (_, term) in declared(words).items():
        stated = re.search(r"\[default: ([^]]+)\]", term.text)
        default = taken[key].default
        assert stated[1] == (key if default is True else str(default)) if stated else default in (None, (), False)


def test_an_empty_argument_is_a_variable_that_is_not_set(lumos):
    for words in (("inspect", ""), ("predict", ""), ("validate", ""), ("replay", "x.json", "--perfetto", "")):
        done = lumos(*words)
        assert done.status == 2 and "an empty argument" in done.err
    assert "an empty argument" not in lumos("collect", "--emulate", "nowhere", "--", "true", "").err


@pytest.mark.parametrize("said", [("whatif", "x.json", "--host-factor", "nan"), ("search", "--tokens", "inf")])
def test_a_number_is_finite(lumos, said):
    done = lumos(*said)
    assert done.status == 2 and f"{said[-2]} {said[-1]}: not a finite number" in done.err


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (("repaly",), "did you mean 'replay'"),
        (("replay", "x.json", "--ignore", "lunch"), "'launch'"),
        (("breakdown", "x.json", "--by", "kernels"), "'kernel'"),
        (("breakdown", "x.json", "--of", "replay"), "'replayed'"),
    ],
)
def test_an_unknown_word_names_the_nearest(lumos, arguments, nearest):
    done = lumos(*arguments)
    assert (done.status, done.out) == (2, "")
    assert nearest in done.err


@pytest.mark.parametrize("verb", ["inspect", "replay", "breakdown"])
def test_an_input_without_an_answer_is_status_1_and_one_message(lumos, verb, tmp_path):
    done = lumos(verb, tmp_path / "absent.json", "--json")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("lumos: ") and "absent.json" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("how", ["--json", ""])
def test_a_reader_that_leaves_is_no_error(trace, how):
    command = f"{sys.executable} -c 'from lumos.cli import main; main()' replay {trace()} {how} | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("how", ["--json", "", "--help"])
def test_a_full_disk_is_one_message(trace, how):
    command = f"{sys.executable} -c 'from lumos.cli import main; main()' breakdown {trace()} {how} >/dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("lumos: standard output: cannot be written (No space left on device)") and done.stderr.count("\n") == 1


def test_closed_streams_are_no_fault(trace):
    command = f"{sys.executable} -c 'from lumos.cli import main; main()' inspect {trace()} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("lumos rep", ["replay", "report"]),
        ("lumos replay --pro", ["--probes"]),
        ("lumos replay --ignore stream-", ["stream-order", "stream-wait"]),
        ("lumos breakdown --by mo", ["module"]),
        ("lumos breakdown --of r", ["replayed"]),
    ],
)
def test_the_shell_completes_verbs_options_and_words(lumos, monkeypatch, words, expected):
    monkeypatch.setenv("_LUMOS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert lumos().out.split() == expected


def test_the_general_form_of_an_option_is_that_option(lumos):
    job = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", 8, "--global-batch", 16, "--seq", 4096)
    by_name = lumos("predict", *job, "--tp", 2, "--switch", "fusion=eager", "--json").json
    assert lumos("predict", *job, "--set", "tp=2", "--set", "fusion=eager", "--json").json == by_name
    twice = lumos("predict", *job, "--tp", 2, "--set", "tp=4")
    assert twice.status == 2 and "given twice" in " ".join(twice.err.split())
    whatif = ("whatif", Path(__file__).parents[2] / "examples" / "gpt-2rank-cpu", "--json")
    assert lumos(*whatif, "--layers", 8).json == lumos(*whatif, "--set", "layers=8").json
    few = ("search", *job, "--micro-batch", 1, "--cp", 1, "--zero", 1, "--refine", 1, "--json")
    assert lumos(*few, "--set", "tp=2,4").json["best"] == lumos(*few, "--tp", "2,4").json["best"]


def test_half_a_surrogate_pair_does_not_stop_the_answer(capfd):
    output.write_json({"name": "ge\ud800mm"})
    sys.stdout.flush()
    assert json.loads(capfd.readouterr().out) == {"name": "ge?mm"}
