"""Scripts that cannot be emulated, or would change what they must not: each ends, names its line, and leaves files as they were."""

import sqlite3
import sys
import textwrap

import pytest

from lumos.emulation.accelerators import emulated_device
from lumos.emulation.run import Launched, records
from lumos.errors import LumosError

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

#: Six lines; `step` is one step of training.
HEAD = """import errno, os, pathlib, shutil, socket, sys, tempfile, threading, torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.rand(4, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def run(folder, body, *arguments, limit_s=60.0, **more):
    script = folder / "train.py"
    script.write_text(HEAD + textwrap.dedent(body).lstrip())
    return records(Launched([sys.executable, str(script), *arguments], emulated_device("h100"), 1, 1, 1, folder, limit_s, **more))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("step()\nsys.exit(1)", r"after 1 steps of its optimizer, 2 are needed, by sys\.exit at .*train\.py:8: let it run longer"),
        ("step()\nif torch.rand(1, device='cuda').item() < 5: raise SystemExit", r"it read values .*train\.py:8\): let it go on"),
        ("x = torch.rand(1, device='cuda')\nwhile x.item() != 5: pass", r"train\.py:8: EndlessReadsError: .*bound its rounds"),
        (
            "def work(): raise ValueError('five')\nthreading.Thread(target=work).start()\nthreading.Event().wait()",
            r"py:7: ValueError: five",
        ),
        ("socket.create_connection(('127.0.0.1', 9))", r"py:7: ConnectionRefusedError: .*have what it loads on this machine"),
        ("torch.nested.nested_tensor([torch.rand(2, 8).cuda()]).sum()", r"py:7: .*make them with layout=torch\.jagged"),
        ("with torch.cuda.graph(torch.cuda.CUDAGraph()): torch.rand(1).cuda().item()", r"py:7: CudaGraphError: .*outside of the capture"),
        ("torch._C._scatter(torch.rand(4, 8), [0, 1])", r"py:7: SeveralDevicesError: nn\.DataParallel uses 2 .*DistributedDataParallel"),
        ("torch.eye(8).to_sparse_csr().cuda()", r"py:7: UnsupportedOperatorException: .* of torch\.sparse_csr: .*torch\.sparse_coo"),
        (
            "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cuda', (4, 2))",
            r"py:8: RuntimeError: .*world size.*ask for as many --ranks",
        ),
        ("[torch.empty(1 << 30, device='cuda') for _ in range(60)]", r"py:7: torch\.OutOfMemoryError: .* allocate 4\.00 GiB"),
        ("os.environ['LOCAL_RANK']", r"py:7: KeyError: 'LOCAL_RANK': a launcher sets that"),
        ("os.kill(os.getpid(), 9)", r"rank 0 was ended by SIGKILL"),
        (
            "torch.distributed.init_process_group('nccl')\none = torch.rand(4).cuda()\n"
            "torch.distributed.all_gather_into_tensor(torch.empty(5).cuda(), one)",
            r"py:9: ValueError: _allgather_base_: 5 elements for all 1 ranks, but 4 of each",
        ),
        (
            "torch.distributed.init_process_group('nccl')\none = torch.rand(4).cuda()\n"
            "torch.distributed.all_to_all_single(one[:3].clone(), one, [3], [3])",
            r"py:9: ValueError: input_split_sizes has 3 rows in all, the tensor 4",
        ),
        (
            "torch.distributed.init_process_group('nccl')\ntorch.distributed.all_reduce(torch.ones(3))",
            r"py:8: RuntimeError: No backend type associated with device type cpu: move .* to the device, or .*'cpu:gloo,cuda:nccl'",
        ),
        ("(model.weight > 0).float().sum().backward()", r"py:7: RuntimeError: .*does not require grad.*: make the loss of what the model"),
        ("model.weight.sub_(1.0)", r"py:7: RuntimeError: a leaf Variable .*: do it within torch\.no_grad\(\)"),
        ("torch.embedding(torch.rand(3, 8).cuda(), torch.arange(4).cuda())", r"py:7: RuntimeError: .* index 3 is out of bounds of 3"),
    ],
)
def test_a_script_that_ends_early_is_told_its_line_and_what_to_change(tmp_path, body, said):
    with pytest.raises(LumosError, match=said) as raised:
        run(tmp_path, body)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600
    left = {each.name for each in tmp_path.iterdir()} - {"objects", "rank0.record.files"}  # what ranks tell each other, and write
    assert left == {"train.py"}


def test_a_traceback_leads_from_the_scripts_innermost_line_to_what_failed(tmp_path):
    with pytest.raises(LumosError) as raised:
        run(tmp_path, "def work(): model(torch.rand(2, 5, device='cuda'))\nwork()", traceback=True)
    message, *frames = str(raised.value).split("\n")
    assert "train.py:7: RuntimeError: " in message
    assert frames[0].endswith("train.py:7 in work") and frames[-1].endswith(" in Linear.forward") and len(frames) < 6


CALLS = [
    "one.half() @ one", "model.half()(one)", "torch.nn.functional.conv1d(one, one[None].half())", "one.index_add_(0, classes, one.half())",
    "torch.nn.functional.cross_entropy(one, classes.int())", "attend(one[None, None], one[None, None].half(), one[None, None])",
    "attend(one.expand(1, 8, 8, 8), one.expand(1, 2, 8, 8), one.expand(1, 2, 8, 8))", "one.numpy()", "one.cpu().requires_grad_().numpy()",
    "torch.softmax(one, 2)", "torch.multinomial(one, 9)", "one.index_select(0, one[0])", "one[one[:3] > 0]", "classes.softmax(0)",
    "torch.nn.functional.ctc_loss(one.expand(4, 8, 8), torch.ones_like(classes)[:, None], classes[:3], classes)", "one.long() @ one.long()",
    "one.long().std()", "torch.nn.functional.smooth_l1_loss(one, one, beta=-1.0)", "torch.bincount(one[0])", "one & one",
    "one[:1].expand(8, 8).add_(one)", "torch.cat([one[0]], out=one[0, :1].expand(8))",
]  # fmt: skip


def test_calls_that_a_device_refuses_are_refused(tmp_path):
    body = f"""
        one, classes = torch.rand(8, 8, device="cuda"), torch.zeros(8, dtype=torch.int64, device="cuda")
        attend = torch.nn.functional.scaled_dot_product_attention
        for call in {CALLS!r}:
            try: eval(call)
            except (RuntimeError, TypeError, IndexError): continue
            raise AssertionError(call)
        model.float()
        assert attend(one.expand(1, 8, 8, 8), one.expand(1, 2, 8, 8), one.expand(1, 2, 8, 8), enable_gqa=True).shape == (1, 8, 8, 8)
        one.numpy(force=True), torch._C._nn.nll_loss_nd(one, classes), torch.histc(classes), one.add_(one), one[:1].expand(8, 8).fill_(1)
        step(), one.__setitem__(one > 0, torch.ones_like(one[0, :3])), step()
        assert socket.socket().connect_ex(("localhost", 9)) == errno.ECONNREFUSED
        """
    assert run(tmp_path, body)[0].operators


def test_a_script_that_waits_is_stopped_at_the_limit_with_its_line(tmp_path):
    with pytest.raises(LumosError, match=r"not done after 15 s, as rank 0, at .*train\.py:7: raise --limit"):
        run(tmp_path, "threading.Event().wait()", limit_s=15.0)


def test_an_error_before_torch_is_told_with_its_line(tmp_path):
    with pytest.raises(LumosError, match=r"train\.py:7: SyntaxError: '\(' was never closed"):
        run(tmp_path, "step(")


WRITES = """
import numpy
for folder in sys.argv[1:]:
    kept, new = folder + "/kept", folder + "/new"
    torch.save(model.state_dict(), kept)
    pathlib.Path(kept).write_text("lost")
    numpy.savez(open(kept, "wb"), numpy.zeros(3))
    low = os.open(kept, os.O_WRONLY | os.O_TRUNC)
    os.write(low, b"lost")
    os.symlink(kept, new)
    shutil.copy(__file__, new)
    shutil.copy2(__file__, kept)
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("lost")
    os.replace(file.name, kept)
    assert pathlib.Path(kept).open().read() == "lost"
    with tempfile.TemporaryDirectory() as own:
        pathlib.Path(own, "x").write_text("kept")
        assert pathlib.Path(own, "x").read_text() == "kept"  # what the script made itself is there
        shutil.move(own + "/x", kept)
    os.rename(kept, new)
    os.unlink(kept)
    shutil.rmtree(folder)
for _ in range(2):
    step()
"""


def test_files_that_were_there_before_stay_as_they_were_in_the_folder_for_temporary_files_too(tmp_path, monkeypatch):
    temporary, outside = tmp_path / "temporary", tmp_path / "outside"
    folders = [temporary / "run", outside]
    for each in folders:
        each.mkdir(parents=True)
        (each / "kept").write_text("original")
    monkeypatch.setenv("TMPDIR", str(temporary))
    run(tmp_path, WRITES, *map(str, folders))
    assert [(each / "kept").read_text() for each in folders] == ["original"] * 2
    assert [file.name for file in outside.iterdir()] == ["kept"]


def test_what_a_script_saves_it_may_rename_copy_find_and_load(tmp_path):
    body = """
        import glob, importlib.util, io, pickle
        os.chdir(sys.argv[2])
        for number in range(2):
            step()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "at": number}, sys.argv[1] + "/new")
            os.replace(sys.argv[1] + "/new", sys.argv[1] + "/last")
            there, here = torch.load(sys.argv[1] + "/last"), torch.load(sys.argv[1] + "/last", map_location="cpu", weights_only=True)
            assert (here["at"], here["model"]["weight"].is_cuda, there["model"]["weight"].is_cuda) == (number, False, True)
            model.load_state_dict(here["model"]), optimizer.load_state_dict(here["optimizer"])
            os.makedirs("run", exist_ok=True), shutil.copy(sys.argv[1] + "/last", "run/best")
            torch.save(torch.load("run/best")["model"], "run/saved.pt")
            assert os.path.getsize("run/saved.pt") and os.path.exists("run/best") and glob.glob("run/*.pt") == ["run/saved.pt"]
            torch.save([model.weight], file := io.BytesIO())
            assert isinstance(torch.load(io.BytesIO(file.getvalue()))[0], torch.nn.Parameter)
            assert pickle.loads(pickle.dumps(model.state_dict()))["weight"].is_cuda
            if all(map(importlib.util.find_spec, ("safetensors", "tokenizers"))):
                import safetensors.torch, tokenizers
                safetensors.torch.save_file({"weight": model.weight}, "run/weights", {"format": "pt"})
                part = safetensors.safe_open("run/weights", "pt", "cuda").get_slice("weight")
                assert (part.get_shape(), part.get_dtype(), part[:1].is_cuda) == ([8, 8], "F32", True)
                tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).save("run/words")
                assert tokenizers.Tokenizer.from_file("run/words").get_vocab() == {"a": 0}
        """
    (outside := tmp_path / "outside").mkdir()
    run(tmp_path, body, str(outside), str(outside))
    assert not list(outside.iterdir())


#: What a script does before it imports torch.
BEFORE = """
import os, pathlib, platform, shutil, sqlite3, subprocess, sys
os.remove("kept.txt")
shutil.rmtree("folder")
pathlib.Path("made").mkdir()
assert pathlib.Path("made").is_dir() and os.listdir("made") == []
pathlib.Path("made.txt").write_text("new")
assert pathlib.Path("made.txt").read_text() == "new"
with sqlite3.connect("kept.db") as base:
    base.execute("insert into rows values (2)")
    assert base.execute("select count(*) from rows").fetchone() == (2,)
for command, more in ((["touch", "made.txt"], {}), ("touch made.txt", {"shell": True})):
    try:
        subprocess.run(command, **more)
        sys.exit(1)
    except FileNotFoundError as error:
        assert "starts no program but Python" in str(error)
assert os.system("touch made.txt") != 0
subprocess.run([sys.executable, "-c", "open('made.txt', 'w')"], check=True)
platform.processor()
"""


def test_files_databases_and_programs_are_cut_before_torch_is_imported(tmp_path, monkeypatch):
    for name in ("work", "work/folder"):
        (tmp_path / name).mkdir()
    work = tmp_path / "work"
    (work / "kept.txt").touch()
    with sqlite3.connect(work / "kept.db") as base:
        base.execute("create table rows (number)")
        base.execute("insert into rows values (1)")
    (work / "train.py").write_text(BEFORE + HEAD + "step(), step()\n")
    monkeypatch.chdir(work)
    (process,) = records(Launched([sys.executable, "train.py"], emulated_device("h100"), 1, 1, 1, tmp_path, 120.0))
    assert {each.name for each in work.iterdir()} == {"kept.txt", "kept.db", "folder", "train.py"}
    assert sqlite3.connect(work / "kept.db").execute("select count(*) from rows").fetchone() == (1,)
    notes = {each.message: each.where for each in process.notes}
    assert notes["programs that the script starts are not started (touch)"].endswith("train.py:14")
