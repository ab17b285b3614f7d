"""`import lumos` offers everything public, with types. Names load when they are used, and keep their meaning after other imports."""

import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import lumos
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Dependency

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "gpt-2rank-cpu"
SCRIPT = ROOT / "tests" / "data" / "a_users_script.py"

PACKAGES = ["lumos", *(found.name for found in pkgutil.walk_packages([str(ROOT / "src" / "lumos")], "lumos.") if found.ispkg)]
PACKAGES = [name for name in PACKAGES if not name.endswith((".startup", ".data"))]

#: The packages whose functions are the commands of Lumos.
OFFERING = ("lumos", "lumos.chakra", "lumos.cost", "lumos.proxy")


def test_every_package_says_what_is_public():
    assert len(PACKAGES) > 20
    for name in PACKAGES:
        package = importlib.import_module(name)
        own = {word for word, value in vars(package).items() if not word.startswith("_") and not isinstance(value, types.ModuleType)}
        public = set(vars(package).get("__all__", ()))
        assert bool(own) == bool(public), f"{name} has names, of which it does not say which are public"
        assert all(getattr(package, word) is not None for word in public)


def answers_of(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("package", OFFERING)
def test_no_function_has_the_name_of_a_package_or_module(package):
    """Importing a module binds it to its parent, so `import lumos.X.Y` would hide a function X from then on."""
    offered = importlib.import_module(package)
    beside = {found.name for found in pkgutil.iter_modules(offered.__path__)}
    assert {name for name in offered.__all__ if name in beside} <= {"chakra", "collect", "cost", "proxy"}, "modules that are public"


def test_modules_are_imported_by_their_full_names():
    code = "import lumos.changes.layout.place as place, lumos.simulation.engine\nprint(place.__name__, lumos.simulate.__name__)"
    assert answers_of(code) == ["lumos.changes.layout.place", "simulate"]


def test_modules_of_functions_are_modules():
    code = "import lumos\nprint(*(type(getattr(lumos, n)).__mro__[-2].__name__ for n in ('chakra', 'collect', 'cost', 'proxy')))"
    assert answers_of(code) == ["module"] * 4


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'replya'"):
        _ = lumos.replya
    with pytest.raises(AttributeError, match="no attribute 'exprot'"):
        _ = lumos.chakra.exprot


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert lumos.__version__ == version("lumos-trace")


@pytest.mark.parametrize(
    "statement", ["import lumos", "import lumos.cli", "import lumos.chakra", "import lumos.proxy", "import lumos.cost"]
)
def test_importing_loads_nothing_heavy(statement):
    assert answers_of(f"import sys; {statement}; print(*(m for m in ('numpy', 'msgspec', 'rich', 'isal') if m in sys.modules))") == []


def test_keyword_arguments_and_the_command_line_have_the_same_words():
    from lumos.arguments import MEANINGS
    from lumos.changes.settings import SETTINGS, SettingKind
    from lumos.changes.words import SettingWords
    from lumos.plan.configuration import Settings
    from lumos.plan.words import JobWords
    from lumos.searching.space import PLAN_COLUMNS
    from lumos.searching.words import SpaceWords

    types = {SettingKind.COUNT: "int", SettingKind.WORD: "str", SettingKind.SWITCH: "bool | Literal['on', 'off']"}
    annotated = {key: annotation.__forward_arg__.replace('"', "'") for key, annotation in SettingWords.__annotations__.items()}
    assert annotated == {key: types[setting.kind] for key, setting in SETTINGS.items()}
    assert SETTINGS.keys() <= MEANINGS.keys()
    assert JobWords.__optional_keys__ == set(Settings.__struct_fields__)
    assert SpaceWords.__optional_keys__ == set(PLAN_COLUMNS)


def functions() -> dict[str, Callable[..., object]]:
    """The public functions of the packages whose words are those of the command line."""
    packages = [importlib.import_module(name) for name in ("lumos", "lumos.chakra", "lumos.collect", "lumos.cost", "lumos.proxy")]
    result = {f"{package.__name__}.{name}": getattr(package, name) for package in packages for name in package.__all__}
    return {name: value for name, value in result.items() if callable(value) and not isinstance(value, type)}


@pytest.mark.parametrize("name", functions())
def test_every_option_of_a_function_is_shown_with_its_meaning(name):
    function = functions()[name]
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind is not parameter.VAR_KEYWORD or (name.startswith("lumos.collect.") and parameter.name == "options")
        assert re.search(rf"\b{parameter.name}\b[^.:]*:", inspect.getdoc(function)), f"{name}: {parameter.name}"


@pytest.fixture(scope="module")
def forms():
    """A job in each form in which a verb takes it."""
    job = lumos.read(EXAMPLE)
    graph = lumos.build(job)
    return [EXAMPLE, sorted(EXAMPLE.glob("*.json.gz")), job, graph, lumos.measured(graph), lumos.simulate(graph)]


#: Verbs about when things ran, which of a run tell what that run was.
OF_A_RUN = (lumos.breakdown, lumos.critical_path, lumos.slack, lumos.utilization)


@pytest.mark.parametrize(
    "function",
    [
        *OF_A_RUN, lumos.build, lumos.diagnose, lumos.inspect, lumos.memory, lumos.probes, lumos.replay, lumos.simulate, lumos.stragglers,
        lumos.trust, lambda job: lumos.whatif(job, drop="aten::mm"), lambda job: lumos.compare(job, EXAMPLE),
    ],
)  # fmt: skip
def test_a_verb_takes_a_path_files_a_job_a_graph_or_a_timeline(function, forms):
    same = forms[:-1] if function in OF_A_RUN else forms
    assert len({re.sub(r"\d+ diagnostics", "", repr(function(form))) for form in same}) == 1
    assert function(forms[-1]) is not None


def test_a_run_of_a_changed_job_is_of_no_recording(forms):
    graph = forms[3]
    changed = lumos.simulate(graph, graph.duration * 2)
    assert forms[-1].job is graph.job is forms[2]
    with pytest.raises(UsageError, match="this Timeline is of a job that was changed"):
        lumos.whatif(changed, drop="aten::mm")
    with pytest.raises(UsageError, match="this Graph is of a job that was changed"):
        lumos.diagnose(replace(graph, ignored=frozenset({Dependency.SYNC})))


def test_a_job_that_is_read_for_its_graph_tells_the_stages_too():
    job = lumos.read(EXAMPLE)
    assert repr(lumos.stragglers(EXAMPLE)) == repr(lumos.stragglers(lumos.build(job), job))


def test_lumos_is_a_module_that_runs():
    done = subprocess.run([sys.executable, "-m", "lumos", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("lumos ")


def test_a_cluster_is_as_good_by_its_name_and_none_is_no_word():
    cluster = lumos.load_cluster("h100")
    assert lumos.cost.gemm(64, 64, 64, "h100").time == lumos.cost.gemm(64, 64, 64, cluster.accelerator).time
    assert lumos.cost.collective("all_reduce", 8, 1e6, "h100").time == lumos.cost.collective("all_reduce", 8, 1e6, cluster).time
    job = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 64, "seq": 8192, "tp": 2}
    assert lumos.predict(**job, pp=None, recompute=None).time.time_s == lumos.predict(**job).time.time_s
    assert lumos.replay(EXAMPLE, ignore=["rendezvous"]).ignored == ("rendezvous",)


def test_a_grid_is_a_row_for_each_combination():
    job = lumos.read(EXAMPLE)
    graph = lumos.build(job)
    cells = lumos.whatif(job, graph=graph, grid={"scale:aten::mm": (0.5, 1.0), "scale:aten::add*": (0, 1)})
    assert [cell.settings for cell in cells][1] == {"scale:aten::mm": "0.5", "scale:aten::add*": "1"}
    assert "step_time (ms)" in cells._repr_html_()
    alone = lumos.whatif(job, graph=graph, scale={"aten::mm": 0.5})
    assert alone.outcome.step_time_s == pytest.approx(cells[1].step_time_s)
    assert lumos.whatif([EXAMPLE / "rank0.json.gz", EXAMPLE / "rank1.json.gz"], drop="aten::mm").changes == ("drop aten::mm",)


def test_steps_are_named_as_on_the_command_line():
    timeline = lumos.simulate(lumos.build(lumos.read(EXAMPLE)))
    (path,) = lumos.critical_path(timeline, step="11")
    assert path.name == "ProfilerStep#11"
    assert {row.name for row in lumos.breakdown(timeline, step="11")} == {"ProfilerStep#11"}
    assert lumos.breakdown(timeline, step="11", by="rank")[0].steps == 1
    assert len(lumos.critical_path(timeline)) == 4
    assert lumos.compare(EXAMPLE, step=("10", "11")).change_ns == lumos.compare(EXAMPLE, EXAMPLE, step=("10", "11")).change_ns != 0
    assert lumos.compare(EXAMPLE, EXAMPLE, step="10").change_ns == 0


def run_script(folder: Path) -> None:
    """Run the user's script in a folder that has the files it names."""
    (folder / "traces").symlink_to(EXAMPLE)
    (folder / "runs.csv").write_text(
        "id,source,model,gpu,n_gpus,seq_len,global_batch,tp,pp,step_time_s\n1,mine,llama3-8b,H100,8,8192,64,2,1,7.2\n"
    )
    spec = importlib.util.spec_from_file_location("a_users_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(folder)


def test_a_users_script_runs(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install -e '.[arrow]')")
    monkeypatch.chdir(tmp_path)
    run_script(tmp_path)


def test_a_users_script_names_every_public_function():
    text = SCRIPT.read_text()
    for package in ("lumos", "lumos.chakra", "lumos.proxy"):
        for name in importlib.import_module(package).__all__:
            if callable(getattr(importlib.import_module(package), name)) and name[0].islower():
                assert f"{package}.{name}(" in text, f"{package}.{name}"


def test_a_strict_checker_passes_a_users_script_and_sees_wrong_types(tmp_path):
    """That the script passes proves nothing if everything is Any."""
    pytest.importorskip("mypy", reason="mypy is not installed (pip install -e '.[dev]')")
    script = tmp_path / "wrong.py"
    wrong = (
        'lumos.whatif("a", tp="two")',
        'lumos.whatif("a", layer=8)',
        "lumos.predict(model=8)",
        "lumos.no_such_name",
        'lumos.chakra.export("a")',
        'lumos.whatif("a").outcom',
    )
    script.write_text("\n".join(("import lumos", *wrong)) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", str(SCRIPT), str(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "MYPYPATH": "src"})
    errors = set(re.findall(r"([\w.]+:\d+): error", done.stdout))
    assert errors == {f"wrong.py:{line}" for line, _ in enumerate(wrong, 2)}, done.stdout + done.stderr


def test_errors_of_the_facade_are_lumos_errors():
    assert issubclass(UsageError, LumosError)
    assert lumos.UsageError is UsageError
