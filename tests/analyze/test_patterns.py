from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lumos.analyze.loop.steps import members
from lumos.analyze.patterns import patterns, repeats
from lumos.graph.table import Kind, Processor, Step
from lumos.simulation.timeline import measured

US = 1000


def found(text, sections=None):
    """The rows of a text, each with how often it occurs; "|" is in no row."""
    symbols = np.array([-1 if letter == "|" else ord(letter) for letter in text], np.int64)
    section = np.zeros(len(text), np.int64) if sections is None else np.array(sections, np.int64)
    return [(text[row.starts[0] : row.starts[0] + row.length], len(row.starts)) for row in repeats(symbols, section)]


def test_layers_that_follow_each_other_are_one_row():
    assert found("e" + "abcdb" * 4 + "z") == [("abcdb", 4)]


def test_the_row_that_shortens_the_list_most_is_taken_first_and_the_next_from_what_is_left():
    assert found("xabcdyabcdzabcdw" + "pq1pq2pq3pq4") == [("abcd", 3), ("pq", 4)]
    assert found("abcdyabcdzab") == [("abcd", 2)]


def test_no_row_goes_across_what_stands_apart_or_from_one_section_to_the_next():
    assert found("ab|cab|c") == [("ab", 2)]
    assert found("abcabc", [0, 0, 0, 1, 1, 1]) == []
    assert found("abab", [0, 0, 1, 1]) == []
    assert found("aaaa") == []


@given(st.text("abc|", min_size=1, max_size=60), st.data())
def test_rows_do_not_overlap_and_occur_as_often_as_said(text, data):
    sections = sorted(data.draw(st.lists(st.integers(0, 2), min_size=len(text), max_size=len(text))))
    symbols = np.array([-1 if letter == "|" else ord(letter) for letter in text], np.int64)
    covered = Counter()
    for length, starts in repeats(symbols, np.array(sections)):
        words = {text[start : start + length] for start in starts.tolist()}
        within = [sections[start] for start in starts.tolist()]
        assert length >= 2 and len(words) == 1 and "|" not in words.pop()
        assert all(sections[start] == sections[start + length - 1] for start in starts.tolist()) and len(set(within)) < len(within)
        covered.update(i for start in starts.tolist() for i in range(start, start + length))
    assert max(covered.values(), default=1) == 1


def test_the_patterns_of_a_stream(draw_graph):
    """Twice gemm and add, 10 and 5 µs with 2 µs between them, then a kernel of 20 µs; a second stream has gemm once."""
    processors = [Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    row = [("gemm", 0, 10), ("add", 12, 17), ("gemm", 20, 30), ("add", 32, 37), ("last", 40, 60)]
    tasks = [(0, Kind.KERNEL, *each) for each in row] + [(1, Kind.KERNEL, "gemm", 0, 10)]
    graph = draw_graph(processors, tasks, steps=(Step(0, "s", 0, 100 * US),))
    assert patterns(measured(graph), members(graph)) == ((("gemm", "add"), 2, 30 * US, 0.5, 15 * US, 4 * US),)
    assert patterns(measured(none := replace(graph, kind=np.full_like(graph.kind, Kind.COLLECTIVE))), members(none)) == ()
