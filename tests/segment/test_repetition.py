"""Layers as repetition in a sequence of symbols."""

from lumos.segment.repetition import find_run, find_stacks


def symbols(text):
    return [ord(c) for c in text]


def test_layers_between_an_embedding_and_a_head():
    run = find_run(symbols("xy" + "nqadnfga" * 6 + "nhl"))
    assert run.bounds == tuple(range(2, 2 + 8 * 7, 8))
    assert run.layers == 6
    assert run.alike == 1.0


def test_two_similar_halves_are_one_layer():
    """Norm and residual add occur in both halves; attention and feed-forward do not."""
    assert find_run(symbols("e" + "nqsoa" + "nuvda" + "nqsoa" + "nuvda" + "nqsoa" + "nuvda" + "nh")).layers == 3


def test_a_layer_may_be_a_little_irregular():
    run = find_run(symbols("e" + "nqsoanuvda" + "nqsoanuvvda" + "nqsoanuda" + "nqsoanuvda" + "nh"))
    assert run.layers == 4
    assert run.alike < 1.0


def test_dense_and_expert_layers_in_turn_count_each():
    dense, experts = "nqskoanuda", "nqskoanrtea"
    assert find_run(symbols("e" + (dense + experts) * 3 + "h")).layers == 6


def test_nothing_repeats():
    assert find_run(symbols("abcdefg")) is None
    assert find_run([]) is None


def test_a_short_repetition_is_not_layers():
    assert find_run(symbols("abcdefghijklmnopqrstuvwxyzxyz")) is None


def test_an_encoder_and_a_decoder_are_two_stacks():
    encoder, decoder = "nqadnfga" * 3, "mqrdmcrdmfgs" * 3
    stacks = find_stacks(symbols("xy" + encoder + "z" + decoder + "hl"))
    assert [run.layers for run in stacks] == [3, 3]
    assert stacks[0].bounds == (2, 10, 18, 26)
    assert stacks[1].bounds == (27, 39, 51, 63)


def test_two_layers_of_an_encoder_and_two_of_a_decoder_are_stacks_of_two():
    """A decoder's layer begins with the self-attention that an encoder's layer begins with, 28 of its 35 symbols. A repetition of three
    such beginnings covers more than the two layers of the encoder, which are made of the same."""
    attention = [11, 12, 11, 12, 11, 12, 13, 13, 13, *range(14, 23)]
    itself, across = [*range(3, 10), 10, 10, 10, *attention], [3, 3, *range(27, 36), 36, 36, *attention]
    forward = [23, 24, 25, 26, 20, 21, 22]
    encoder, decoder = itself + forward, itself + across + forward
    stacks = find_stacks([0, 0, 1, 1, 2, 2, *encoder * 2, 22, *decoder * 2, 22, 37, 38, 38, 39, 40])
    assert [run.layers for run in stacks] == [2, 2]
    assert all(run.alike == 1.0 for run in stacks)


def test_two_microbatches_of_three_layers_are_no_two_layers():
    """Six layers between two heads and embeddings: either half is made of the same, and repeats itself inside."""
    stacks = find_stacks(symbols(("xyz" + "nqadnfga" * 3 + "h") * 2))
    assert [run.layers for run in stacks] == [6]


def test_an_encoder_and_a_decoder_are_no_two_layers_because_they_hold_the_same_work():
    """Four layers of norm, attention and feed-forward work, then four more with a second attention. What they have in common comes to
    most of either half, and the first layer of each has work of its own, as those of T5 have."""
    encoder = [90, 1, 2, 3, 4] + [91, 92] + [5, 6] + [1, 2, 3, 4, 5, 6] * 3
    decoder = [90, 1, 2, 3, 4] + [91, 92] + [1, 2, 7, 4, 5, 6] + [1, 2, 3, 4, 1, 2, 7, 4, 5, 6] * 3
    assert [run.layers for run in find_stacks([*encoder, 93, 94, *decoder, 95])] == [4, 4]


def test_a_head_is_no_part_of_the_last_layer():
    """The first of three layers has work of its own in its middle, so that layers are found to begin behind it; the last then ends where
    what follows is another than in the layers before."""
    runs = find_stacks([90, 1, 2, *range(91, 97), 3, 4, 5, 6, 7, *[1, 2, 3, 4, 5, 6, 7] * 2, 80, 81, 82, 83])
    assert [run.bounds for run in runs] == [(9, 16, 23, 28)]


def test_what_reads_into_the_layers_is_no_part_of_them():
    """An attention to other data, whose kernels are those inside a layer: cut there, four parts cover more, the first and last unlike."""
    run = find_run(symbols("x" + "sopqrt" + ("nhkw" + "sopqrt" + "uvdba") * 3 + "yz"))
    assert (run.layers, run.alike) == (3, 1.0)


def test_two_models_of_three_layers_beside_each_other_are_two_stacks():
    """Two models with work before and after their layers: from the last layer of the one it is farther to the other than to the next."""
    model = "efgh" + "nqsobnuda" * 3 + "mprtvwxyzLMN"
    assert [run.layers for run in find_stacks(symbols(model * 2))] == [3, 3]
