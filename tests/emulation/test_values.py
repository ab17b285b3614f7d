"""What a script learns of tensors without data: values that follow, old names of types, what a device knows of itself."""

import textwrap

import pytest
from tests.emulation.emulated_scripts import STEPS, leaves, run

from lumos.emulation.record import Tensor

torch = pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")


def test_known_values_survive_what_is_done_to_them_and_end_with_what_is_written(tmp_path):
    body = """
def generated(most):  # as transformers generates text: until all sequences are done, of which nobody knows whether one is early
    left, made = torch.ones(3, dtype=torch.long, device="cuda"), 0
    while True:
        made += 1
        ends = torch.isin(torch.randint(0, 5, (3,), device="cuda"), torch.tensor([2], device="cuda"))
        done = torch.full((3,), False, device="cuda") | ends
        left = left & ~(done | torch.full((3,), made >= most, device="cuda"))
        if left.max() == 0:
            return made
for _ in range(2):
    assert generated(7) == 7
    zeros = torch.zeros(4, device="cuda")
    assert zeros.max().item() == 0
    zeros[2] = 5  # by way of a view
    assert zeros.max().item() == 5
    assert zeros.add_(torch.rand((), device="cuda")).max().item() == 1, "a stand-in"
    zeros = torch.zeros(4, device="cuda")
    torch._foreach_add_([zeros], 1.0)
    assert zeros.max().item() == 1
    zeros.copy_(torch.full((4,), 3, device="cuda"))
    assert zeros[1].item() == 3
    zeros[:2].copy_(torch.full((2,), 4, device="cuda"))
    assert zeros.tolist() == [4, 4, 3, 3]
    drawn = torch.multinomial(torch.rand(3, 9, device="cuda"), 1)
    assert not (drawn == 2).all() and (torch.rand(3, device="cuda") == 2).all()  # not all of what was drawn is the end
    drawn = torch.rand(4, device="cuda")
    normal = torch.distributions.Normal(drawn.log(), drawn)  # which checks that its parameters are valid
    assert normal.log_prob(normal.sample()).shape == (4,)
    step()
"""
    run(tmp_path, STEPS + body)


def test_values_that_the_host_sent_decide_shapes_as_they_would_there(tmp_path):
    body = """
for _ in range(2):
    batch = torch.repeat_interleave(torch.arange(3), torch.tensor([5, 9, 3])).cuda()
    x, ends = torch.rand(17, 4).cuda(), torch.bincount(batch).cumsum(0)
    assert batch.max().item() == 2 and ends.tolist() == [5, 14, 17] and ends[-1].cpu().numpy() == 17
    assert x[batch == 1].shape == (9, 4) and torch.unique(batch).shape == (3,) and len(batch.nonzero()) == 12
    assert torch.arange(1 + (1 << 24), device="cuda")[3].item() == 1, "too large: a stand-in"
    step()
"""
    (process,) = run(tmp_path, STEPS + body)
    assert not {"stand-in-selection", "stand-in-unique", "stand-in-counts"} & {note.code for note in process.notes}


@pytest.mark.parametrize("mark", ["lumos.collect.step()", "optimizer = None; profiler.step()"])
def test_a_script_says_itself_where_a_step_ends(tmp_path, mark):
    body = f"""
import lumos.collect
weight = torch.rand(4, 4, device="cuda", requires_grad=True)
profiler = torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=0, active=2))
optimizer = torch.optim.SGD([weight]) if {"lumos" in mark} else None
for _ in range(4):
    for _ in range(3):
        nn.ReLU()(weight), optimizer and optimizer.step()
    {mark}
"""
    assert leaves(*run(tmp_path, body)).count("aten::clamp_min") == 3


def test_old_names_of_types_and_what_a_driver_tells_are_answered(tmp_path):
    body = """
import io, pickle
two = torch.cuda.FloatTensor([1.0, 2.0])
assert isinstance(two, torch.cuda.FloatTensor) and not isinstance(two, torch.cuda.HalfTensor) and two.is_cuda
assert two.type() == "torch.cuda.FloatTensor" and two.type(torch.cuda.HalfTensor).dtype == torch.float16
assert torch.cuda.LongTensor(3, 4).shape == (3, 4)
assert two[1:].untyped_storage().data_ptr() == two.untyped_storage().data_ptr() > 0, "where it lies"
torch.set_default_tensor_type("torch.cuda.HalfTensor")
assert torch.ones(2).is_cuda and torch.ones(2).dtype == torch.float16
torch.set_default_tensor_type("torch.FloatTensor")
assert not torch.ones(2).is_cuda and torch.ones(2).dtype == torch.float32
assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() > 0 == torch.cuda.utilization()
assert torch.cuda.nccl.version() > (2, 10)
from torch._dynamo.trace_rules import get_torch_obj_rule_map  # by which torch's compiler tells functions apart
get_torch_obj_rule_map()
assert torch.cuda.manual_seed is not torch.cuda.manual_seed_all
import threading
from torch.distributed.optim.functional_adam import _FunctionalAdam  # of which torch.jit.script makes its own code
gated = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Tanh())).cuda()
[gated(torch.ones(2, 8, device="cuda")).sum().backward() for _ in range(3)]  # no kernel is compiled once it has run often enough
made = []
thread = threading.Thread(target=lambda: made.extend((torch.empty(2, 4, pin_memory=True), torch.rand(2, 4, device="cuda")) * 99))
thread.start()
step()
thread.join()
assert made[0].is_pinned() and made[1].is_cuda
assert "RANK" not in os.environ  # nobody launched this script
(generator,) = torch.cuda.default_generators
kept = torch.cuda.random.get_rng_state(device=torch.device("cuda"))  # by the part of torch.cuda that has the function
assert kept.shape == generator.get_state().shape == generator.clone_state().get_state().shape == (16,)
generator.set_state(kept)
assert torch.Generator().get_state().shape[0] > 16 and generator.clone_state().device.type == "cuda"
assert pickle.loads(pickle.dumps(torch.arange(4))).tolist() == [0, 1, 2, 3]
torch.save(torch.arange(3), held := io.BytesIO())
held.seek(0)
assert torch.load(held).tolist() == [0, 1, 2]
assert torch.tensor([1], pin_memory=True).is_pinned() and torch.ones(3, device="cuda").cpu().__array__(copy=True).shape == (3,)
with torch.device("cuda"):
    assert torch.tensor([1]).is_cuda and torch.as_tensor([1]).is_cuda
print((own := torch.profiler.profile()).key_averages().table(), list(own.events()))
step()
"""
    run(tmp_path, STEPS + body)


def test_operators_for_whose_results_torch_has_no_rule_have_their_shapes(tmp_path):
    body = """
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
up = nn.ConvTranspose2d(6, 8, 4, 2, 1, groups=2).cuda()
cell = nn.GRUCell(4, 8).cuda()
lstm = nn.LSTM(3, 8, batch_first=True).cuda()
for _ in range(2):
    assert up(torch.rand(2, 6, 5, 5, device="cuda")).sum().backward() is None
    cell(torch.rand(2, 4, device="cuda")).sum().backward()
    packed = pack_padded_sequence(torch.rand(3, 9, 3).cuda(), torch.tensor([9, 2, 4]), batch_first=True, enforce_sorted=False)
    assert packed.data.shape == (15, 3) and packed.batch_sizes.tolist() == [3, 3, 2, 2, 1, 1, 1, 1, 1]
    with torch.autocast("cuda", torch.bfloat16): assert lstm(packed)[0].data.dtype == torch.bfloat16
    padded, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    assert padded.shape == (3, 9, 8)
    padded.sum().backward()
    scores = torch.rand(50, 4, 20, device="cuda", requires_grad=True)
    lengths = torch.full((4,), 10, device="cuda")
    functional.ctc_loss(scores.log_softmax(2), torch.randint(1, 20, (4, 30), device="cuda"), lengths * 5, lengths).backward()
    rounded = torch.fake_quantize_per_tensor_affine(torch.rand(4, 4, device="cuda", requires_grad=True), 0.1, 0, -128, 127)
    rounded.sum().backward()
    numbers = torch.randint(0, 5, (10, 2), device="cuda")
    assert torch.unique(numbers, dim=0).shape == (10, 2) and torch.unique_consecutive(numbers).shape == (20,)
    assert numbers.masked_select(torch.rand(10, 2, device="cuda") > 0.5).shape == (20,)
    query = torch.rand(2, 4, 8, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    flex_attention(query, query, query, score_mod=lambda score, *_: score)[0].sum().backward()
    step(), torch.optim.AdamW(cell.parameters(), torch.tensor(1e-3, device="cuda"), fused=True).step()
"""
    (process,) = run(tmp_path, STEPS + body)
    (up,) = (each for each in process.operators if each.name == "aten::cudnn_convolution_transpose")
    assert isinstance(up.outputs[0], Tensor) and up.outputs[0].shape == (2, 8, 10, 10)
    low, network = (each for each in process.operators if each.name == "aten::_cudnn_rnn")
    assert [(each.inputs[0].shape, each.inputs[0].dtype) for each in (low, network)] == [((15, 3), "bfloat16"), ((15, 3), "float32")]
    assert [3, 3, 2, 2, 1, 1, 1, 1, 1] in network.inputs
    assert "aten::_flash_attention_forward" in leaves(process)
    assert "flex-attention" in {note.code for note in process.notes}


def test_what_is_sorted_by_unknown_values_or_written_into_new_memory_is_known(tmp_path):
    """As graph pooling keeps the best nodes of each graph: which graph a kept one is of follows."""
    body = """
        for _ in range(3):
            graphs = torch.repeat_interleave(torch.arange(3), torch.tensor([4, 2, 6])).cuda()
            scores = model(torch.ones(12, 4, device="cuda")).sum(1)
            _, order = torch.sort(scores, descending=True)
            _, along = torch.sort(model(torch.ones(2, 4, device="cuda")), dim=0)
            assert along.tolist() == [[0] * 4, [1] * 4]
            ends = torch.empty(4, dtype=torch.long, device="cuda")
            ends.narrow(0, 0, 1).zero_()
            torch.cumsum(torch.bincount(graphs, minlength=3), 0, out=ends.narrow(0, 1, 3))
            assert ends.tolist() == [0, 4, 6, 12]
            kept = order[torch.arange(12, device="cuda") - ends[graphs[order]] < 2]
            assert graphs[kept].tolist() == [0, 0, 1, 1, 2, 2]
            shown = torch.tensor([[1.0], [2.0]]).expand(2, 5).cuda()
            assert shown.sum().item() == 15.0
            step()
    """
    (process,) = run(tmp_path, STEPS + textwrap.dedent(body))
    assert {note.code for note in process.notes} >= {"stand-in-order"}


def test_what_rank_0_tells_the_others_reaches_the_last_one(tmp_path):
    body = """
        torch.distributed.init_process_group("nccl")
        rank = torch.distributed.get_rank()
        told, mine = [{"width": 6} if rank == 0 else None], [None]
        torch.distributed.broadcast_object_list(told, src=0)
        torch.distributed.scatter_object_list(mine, [8, 9] if rank == 0 else None, src=0)
        assert mine == [8 + rank]
        sizes = torch.tensor([5, 7] if rank == 0 else [-1, -1], device="cuda")
        torch.distributed.broadcast(sizes, src=0)
        assert sizes.tolist() == [5, 7]
        if rank == 0: open("prepared.txt", "w").write("7")
        torch.distributed.barrier()
        assert open("prepared.txt").read() == "7", "what rank 0 has written"
        model = nn.Linear(told[0]["width"], mine[0]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while True:
            model(torch.rand(2, 6, device="cuda")).sum().backward()
            optimizer.step()
        """
    assert len(run(tmp_path, body, ranks=2)) == 2


def test_tensors_of_classes_of_the_scripts_own_run_and_libraries_select_by_values_what_they_may(tmp_path):
    body = """
class Named(torch.Tensor):
    pass
class Packed(nn.Parameter):
    def __new__(cls, data):
        made = torch.Tensor._make_subclass(cls, data, False)
        made.scale = 3.0
        return made
torch.library.define("mine::chosen", "(Tensor x, int? most) -> Tensor")
@torch.library.register_fake("mine::chosen")
def _(x, most):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(max=most), dtype=torch.int64)
assert [torch.ops.mine.chosen(torch.rand(6, device="cuda"), most).shape[0] for most in (None, 4, 9)] == [6, 4, 6]
library = torch.library.Library("mine", "FRAGMENT")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x.sin() * 2, "CUDA")  # nothing says what it gives, so it runs by its kernel
@torch.library.custom_op("mine::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x.cos() / 2
other = nn.Linear(8, 4)
other.weight = Packed(other.weight.data)
other.cuda().half().float()
assert isinstance(other.weight, Packed) and other.weight.is_cuda and (other.weight.scale, other.weight.requires_grad) == (3.0, False)
for _ in range(2):
    out = other(torch.rand(2, 8, device="cuda").as_subclass(Named))
    assert isinstance(out, Named) and not isinstance(out.as_subclass(torch.Tensor), Named)
    out.as_subclass(torch.Tensor).sum().backward()
    assert half(torch.ops.mine.twice(torch.rand(3, device="cuda"))).shape == (3,)
    step()
assert other.bias.grad.shape == (4,)
"""
    (process,) = run(tmp_path, STEPS + body)
    assert {"aten::sin", "aten::mul", "aten::cos", "aten::div"} <= set(leaves(process))


#: Gradients of embeddings, and a matrix.
SPARSE = """
    table, bag = nn.Embedding(99, 8, sparse=True).cuda(), nn.EmbeddingBag(99, 8, sparse=True, mode="mean").cuda()
    matrix = torch.sparse_coo_tensor(torch.randint(0, 50, (2, 200)), torch.ones(200), (50, 50), check_invariants=True).cuda()
    weight = nn.Parameter(torch.rand(50, 4).cuda())
    first, second = torch.optim.SparseAdam(list(table.parameters())), torch.optim.SGD([bag.weight, weight], 0.1)
    while True:
        table.weight.grad = None
        rows = torch.ones(6, 3, dtype=torch.long).cuda()
        (table(rows[:4]).sum() + table(rows[4:]).sum() + bag(rows).sum() + torch.sparse.mm(matrix, weight).sum()).backward()
        assert torch.sparse.sum(matrix, 1).to_dense().shape == (50,) and torch.sparse.sum(matrix).dim() == 0
        gradient = table.weight.grad
        assert gradient.is_sparse and not gradient.is_coalesced() and gradient._values().shape == (18, 8)
        assert gradient.shape == gradient.to_dense().shape == (99, 8) and gradient.coalesce()._nnz() == 18
        second.step()
        first.step()
"""


def test_work_on_sparse_tensors_is_that_on_their_rows(tmp_path):
    (process,) = run(tmp_path, SPARSE)
    names = set(leaves(process))
    assert {"aten::sort", "aten::index_add_", "aten::index_select", "aten::div"} <= names, "rows of tables, bags and matrices"
    assert not names & {"aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward"}
    assert {each.inputs[0].shape for each in process.operators if each.name == "aten::_index_put_impl_"} == {(99, 8), (50,)}
    products = [each.inputs[3].shape for each in process.operators if each.name == "aten::index_add_" and each.inputs[0].shape == (50, 4)]
    assert products == [(200, 4)] * 2, "forward and backward"
    made = [each for each in process.operators if each.name == "aten::_sparse_coo_tensor_with_dims_and_tensors"]
    assert made and all(part in each.inputs for each in made for part in each.outputs[0]), "it names its parts, and launches nothing"
    assert "sparse-rows" in {note.code for note in process.notes}
