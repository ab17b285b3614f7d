"""The work of a rank by its operators, in the recorded GPT of two CPU processes."""

import numpy as np

from lumos.changes.layout.measured_layout import measured_layout, rewriting
from lumos.changes.layout.reprice import reprice
from lumos.changes.layout.rescale import Devices, model_ratio
from lumos.cost.cluster import load_cluster
from lumos.operators.shaped import product
from lumos.segment.rank import recordings_of
from lumos.segment.segment import segment


def test_tasks_are_those_of_operators_that_pass_a_test_and_each_belongs_to_one(example):
    job, graph = example
    segmentation = segment(graph, job)
    work = recordings_of(segmentation, job)[0].work
    multiplied = work.of(product)
    assert {segmentation.graph.names[i] for i in segmentation.graph.name[multiplied]} >= {"aten::addmm", "aten::mm"}
    assert [each.task for each in work.in_order(product)] == sorted(multiplied.tolist())
    shown = np.concatenate([calls.tasks for calls in work.by_operator()])
    assert sorted(shown.tolist()) == sorted(work.tasks[work.number >= 0].tolist())
    assert not work.of(lambda o: o.name == "aten::new_fashion").size


def test_an_operator_is_priced_once_whatever_changes_made_of_it(example):
    job, graph = example
    layout, accelerator = measured_layout(segment(graph, job)), load_cluster("h100").accelerator
    work = recordings_of(layout.segmentation, job)[0].work
    each = next(work.in_order(lambda o: o.name == "aten::addmm"))

    def twice(_, o):
        return o._replace(shapes=(o.shapes[0], (2 * o.shapes[1][0], *o.shapes[1][1:]), *o.shapes[2:]))

    again = twice(None, twice(None, each.operator))
    changed = rewriting(layout, 0, [each.row], twice)
    priced = reprice(rewriting(changed, 0, [each.row], twice), job, Devices(accelerator, accelerator)).prices
    assert priced.best[each.task] == model_ratio(each.operator, again, accelerator, accelerator).best
    assert np.flatnonzero(priced.best != 1).tolist() == np.sort(work.tasks[work.rows == each.row]).tolist()
