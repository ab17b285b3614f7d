"""Sparse tensors of emulated scripts: gradients of embeddings, and matrices."""

import pytest
from tests.emulation.emulated_scripts import leaves, run

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

SCRIPT = """
    table, bag = nn.Embedding(99, 8, sparse=True).cuda(), nn.EmbeddingBag(99, 8, sparse=True, mode="mean").cuda()
    matrix = torch.sparse_coo_tensor(torch.randint(0, 50, (2, 200)), torch.ones(200), (50, 50), check_invariants=True).cuda()
    weight = nn.Parameter(torch.rand(50, 4).cuda())
    first, second = torch.optim.SparseAdam(list(table.parameters())), torch.optim.SGD([bag.weight, weight], 0.1)
    while True:
        table.weight.grad = None
        rows = torch.ones(6, 3, dtype=torch.long).cuda()
        (table(rows[:4]).sum() + table(rows[4:]).sum() + bag(rows).sum() + torch.sparse.mm(matrix, weight).sum()).backward()
        gradient = table.weight.grad
        assert gradient.is_sparse and not gradient.is_coalesced() and gradient._values().shape == (18, 8)
        assert gradient.shape == gradient.to_dense().shape == (99, 8) and gradient.coalesce()._nnz() == 18
        second.step()
        first.step()
"""


def test_work_on_sparse_tensors_is_that_on_their_rows(tmp_path):
    (process,) = run(tmp_path, SCRIPT)
    names = set(leaves(process))
    assert {"aten::sort", "aten::index_add_", "aten::index_select", "aten::div"} <= names, "rows of tables, bags and matrices"
    assert not names & {"aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward"}
    assert {each.inputs[0].shape for each in process.operators if each.name == "aten::_index_put_impl_"} == {(99, 8)}
    products = [each.inputs[3].shape for each in process.operators if each.name == "aten::index_add_" and each.inputs[0].shape == (50, 4)]
    assert products == [(200, 4)] * 2, "forward and backward"
    assert "sparse-rows" in {note.code for note in process.notes}
