"""The tools for assistants, asked with the package's own client."""

import json
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")
anyio = pytest.importorskip("anyio")

from mcp import Client, StdioServerParameters  # noqa: E402
from mcp.client.stdio import stdio_client  # noqa: E402

from lumos.serve.mcp import MOST_ENTRIES, TOOLS, server, with_short_lists  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder to serve, with two jobs, and beside it a recording that is not served, to which a link inside leads."""
    root = tmp_path_factory.mktemp("served")
    served = root / "jobs"
    for name in ("plain", "extra-work"):
        shutil.copytree(EXAMPLES / "faults" / name, served / name)
    shutil.copytree(EXAMPLES / "faults" / "sleep", root / "secret")
    (served / "linked").mkdir()
    (served / "linked" / "rank0.json").symlink_to(next((root / "secret").glob("*rank0*")))
    return served


@pytest.fixture
def ask(folder):
    """What a tool answers, as JSON or as the text of its error."""

    def call(tool, **arguments):
        async def conversation():
            async with Client(server(folder)) as client:
                return await client.call_tool(tool, arguments)

        found = anyio.run(conversation)
        return found.content[0].text if found.is_error else found.structured_content

    return call


def test_the_six_tools_over_standard_input_and_output(folder):
    async def conversation():
        command = StdioServerParameters(command=sys.executable, args=["-m", "lumos", "serve", "--mcp", str(folder)])
        async with Client(stdio_client(command)) as client:
            return (await client.list_tools()).tools, await client.call_tool("inspect", {"job": "plain"})

    tools, found = anyio.run(conversation)
    assert [tool.name for tool in tools] == list(TOOLS)
    whatif = next(tool for tool in tools if tool.name == "whatif").input_schema
    assert whatif["required"] == ["job"] and not {"before", "after", "grid", "progress"} & set(whatif["properties"])
    assert all(tool.input_schema["additionalProperties"] is False and tool.description for tool in tools)
    assert all("description" in said for tool in tools for said in tool.input_schema["properties"].values())
    assert len(found.structured_content["rows"]) == 3


def test_a_tool_answers_as_the_function(ask):
    assert ask("diagnose", job="extra-work")["findings"][0]["code"] == "extra-work"
    assert ask("whatif", job="plain", scale={"*": 1.0})["step_time_s"] > 0
    assert ask("predict", model="llama3-8b", cluster="h100", gpus=8, global_batch=64, seq=8192, tp=2)["plan"]
    assert ask("compare", before="plain", after="extra-work", fail_above=0.03)["regression"]["allowed"] == 0.03
    assert ask("breakdown", timeline="plain")["rows"][0]["rank"] == 0
    assert ask("breakdown", timeline="plain", by="operator")["rows"][0]["name"] == "PacedBackward"


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("inspect", {"job": "../secret"}, "leads out"),
        ("inspect", {"job": str(EXAMPLES)}, "leads out"),
        ("inspect", {"job": "linked"}, "leads out"),
        ("diagnose", {"job": "nowhere"}, "no such file"),
        ("compare", {"before": "plain", "after": "../secret"}, "leads out"),
        ("predict", {"model": "/etc/passwd"}, "leads out"),
        ("predict", {"model": "llama3-8c"}, "llama3-8b"),
        ("whatif", {"job": "plain", "cluster": "../secret"}, "leads out"),
        ("whatif", {"job": "plain", "before": "python train.py"}, "before"),
        ("whatif", {"job": "plain", "batch_size": 3}, "batch_size"),
    ],
)
def test_what_a_tool_refuses(ask, tool, arguments, named):
    found = ask(tool, **arguments)
    assert isinstance(found, str) and named in found


def test_long_lists_are_cut_and_say_so():
    found = with_short_lists({"rows": list(range(MOST_ENTRIES + 3)), "few": [{"inner": [1]}]})
    assert (len(found["rows"]), found["rows_left_out"], found["few"]) == (MOST_ENTRIES, 3, [{"inner": [1]}])
    json.dumps(found)
