"""What scripts ask of torch.cuda besides work, and parts of torch that look for a real device."""

import pytest
from tests.emulation.emulated_scripts import STEPS, leaves, run

from lumos.emulation.record import Tensor

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")


def test_a_script_may_ask_for_memory_profilers_and_settings_of_the_driver_in_every_way(tmp_path):
    body = """
import warnings
import torch.cuda.memory
for asked in (torch.cuda, torch.cuda.memory):
    asked.reset_peak_memory_stats()
    held = torch.zeros(1 << 20, device="cuda")
    assert asked.memory_stats()["allocated_bytes.all.current"] == asked.memory_allocated() >= 4 << 20
    assert asked.memory_stats()["num_ooms"] == 0
    assert "Allocated memory" in asked.memory_summary() and "Peak Usage" in asked.memory_summary(abbreviated=True)
    free, whole = asked.mem_get_info()
    assert whole > free + asked.memory_reserved() > 0.98 * whole, "the process has a context beside"
    asked.set_per_process_memory_fraction(0.9)
torch.cuda.set_sync_debug_mode("warn")
torch.cuda.ipc_collect()
torch.cuda.random.manual_seed(seed=3)
torch.cuda.synchronize(device="cuda"), torch.cuda.stream(stream=torch.cuda.current_stream(device=0)), torch.cuda.is_tf32_supported()
assert torch.backends.cuda.is_flash_attention_available()
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # what a script warns of must not hide it
torch.cuda.profiler.start()
torch.cuda.cudart().cudaProfilerStart()
with torch.autograd.profiler.emit_nvtx(), torch.cuda.profiler.profile():
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("steps"))
    for _ in range(2):
        step()
"""
    run(tmp_path, STEPS + body)


def test_an_optimizer_that_steps_while_gradients_are_made_has_stepped_when_all_are(tmp_path):
    body = """
layers = [nn.Linear(4, 4).cuda() for _ in range(3)]
of = {each: torch.optim.SGD([each], 0.1, foreach=False) for layer in layers for each in layer.parameters()}
for each in of:
    each.register_post_accumulate_grad_hook(lambda each: (torch.tensor(1.0, device="cuda"), of[each].step()) and None)
for _ in range(4):
    nn.Sequential(*layers)(torch.ones(2, 4, device="cuda")).sum().backward()
"""
    (process,) = run(tmp_path, body)
    names = leaves(process)
    assert names.count("aten::addmm") == 3
    assert names.count("aten::add_") == 6 + 6, "gradients are added up, and each of the six parameters is changed once"
    assert names[0] == "aten::ones" or names.index("aten::addmm") < names.index("aten::mm"), "a step begins with its forward pass"


def test_a_step_ends_where_the_first_optimizer_steps_at_the_first_of_its_lines(tmp_path):
    body = """
layer = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
hessian = torch.func.vmap(torch.func.jacfwd(torch.func.jacrev(lambda x: (2.0 * layer(x)).sin().sum())))
while True:
    layer(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    hessian(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
"""
    (process,) = run(tmp_path, body)
    names = leaves(process)
    assert {"aten::addmm", "aten::cos"} <= set(names) and names.count("aten::_foreach_add_") == 2


def test_lengths_of_sequences_that_come_from_the_device_are_the_longest(tmp_path):
    body = """
from torch.nn.utils.rnn import pack_padded_sequence
lstm = nn.LSTM(3, 8, batch_first=True).cuda()
for _ in range(2):
    lengths = torch.randint(1, 10, (3,), device="cuda")
    packed = pack_padded_sequence(torch.rand(3, 9, 3).cuda(), lengths.cpu(), batch_first=True, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [3] * 9
    lstm(packed)[0].data.sum().backward()
    scores = torch.rand(50, 4, 20, device="cuda", requires_grad=True)
    targets = torch.randint(1, 20, (4, 30), device="cuda")
    nn.CTCLoss()(scores.log_softmax(2), targets, torch.full((4,), 50), torch.full((4,), 10)).backward()
    step()
"""
    (process,) = run(tmp_path, STEPS + body)
    (network,) = (each for each in process.operators if each.name == "aten::_cudnn_rnn")
    assert isinstance(network.inputs[0], Tensor) and network.inputs[0].shape == (27, 3)
    assert "stand-in-lengths" in {note.code for note in process.notes}
    (loss,) = (each for each in process.operators if each.name == "aten::_ctc_loss")
    assert [10, 10, 10, 10] in loss.inputs
