"""heddle.cudnn: sdpa and sdpa_backward of programs written for the `cudnn` package, judged by numpy in f64."""

import heddle.cudnn as cudnn
import ml_dtypes
import numpy as np
import pytest
from cudnn_program import Program, backward, drawn, forward, near, row_major, scores

B, HQ, HK, HV, SQ, SKV, DK, DV = 2, 6, 3, 2, 37, 53, 16, 24
BOTTOM_RIGHT = cudnn.diagonal_alignment.BOTTOM_RIGHT


@pytest.fixture
def rng():
    return np.random.default_rng(20261)


def operands(rng, dtype=np.float32, sq=SQ, skv=SKV):
    return drawn(rng, B, HQ, sq, DK, dtype=dtype), drawn(rng, B, HK, skv, DK, dtype=dtype), drawn(
        rng, B, HV, skv, DV, dtype=dtype)


def band(sq=SQ, skv=SKV, left=None, right=None, shift=0):
    """Keys that a band hides; shift: per batch entry."""
    row, column = np.arange(sq)[:, None] + np.reshape(shift, (-1, 1, 1, 1)), np.arange(skv)
    hidden = np.zeros(np.broadcast_shapes(row.shape, (1, 1, sq, skv)), bool)
    hidden |= False if right is None else column > row + right
    return hidden | (False if left is None else column <= row - left)


# What is asked for -> the keys it hides, of unequal lengths and a square of SKV.
BANDS = {
    "all": ({}, {}),
    "causal": ({"use_causal_mask": True}, {"right": 0}),
    "right": ({"diagonal_band_right_bound": 3}, {"right": 3}),
    "left": ({"diagonal_band_left_bound": 5}, {"left": 5}),
    "window": ({"use_causal_mask": True, "sliding_window_length": 7}, {"left": 7, "right": 0}),
    "bottom right": ({"use_causal_mask_bottom_right": True}, {"right": 0, "shift": SKV - SQ}),
    "bottom right band": ({"diagonal_alignment": BOTTOM_RIGHT, "diagonal_band_right_bound": 2, "diagonal_band_left_bound": 9},
                          {"left": 9, "right": 2, "shift": SKV - SQ}),
}


@pytest.mark.parametrize("asked, hides", BANDS.values(), ids=BANDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
def test_forward_and_backward(rng, asked, hides, dtype):
    q, k, v = operands(rng, dtype)
    program = Program(dtype)
    given = [program.give(x) for x in (q, k, v)]
    o, stats = program.graph.sdpa(*given, attn_scale=0.3, generate_stats=True, name="attention", **asked)
    o, stats = program.take(o, (B, HQ, SQ, DV), dtype), program.take(stats, (B, HQ, SQ, 1))
    program.build().run()
    s = scores(q, k, 0.3, hidden=band(**hides))
    truth, lse, *_ = forward(s, v)
    near(o, truth, dtype)
    near(stats, lse)

    d_o = drawn(rng, B, HQ, SQ, DV, dtype=dtype)
    program = Program(dtype)
    given = [program.give(np.ascontiguousarray(x)) for x in (q, k, v, o, d_o, stats)]
    gradients = program.graph.sdpa_backward(*given, attn_scale=0.3, **asked)
    found = [program.take(gradient, like.shape, dtype) for gradient, like in zip(gradients, (q, k, v), strict=True)]
    program.build().run()
    for one, true in zip(found, backward(s, q, k, v, d_o, 0.3)[:3], strict=True):
        near(one, true, dtype)


def test_interleaved_layouts_gaps_and_garbage_strides(rng):
    """Q, K and V in one buffer, O with gaps between its heads, strides of single dims that mean nothing."""
    packed = drawn(rng, 1, 19, 3, 4, 16)
    q, k, v = (packed[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
    program = Program()
    given = [program.give(x, stride=[99990001, *[step // 4 for step in x.strides[1:]]]) for x in (q, k, v)]
    o, _ = program.graph.sdpa(*given, is_inference=True)
    buffer = np.full(4 * 19 * 40 + 100, np.nan, np.float32)
    o = program.take(o, (1, 4, 19, 16), strides=[3331333, 40, 160, 1], buffer=buffer)
    program.build().run()
    near(o, forward(scores(q, k), v)[0])
    written = np.zeros_like(buffer, bool)
    np.lib.stride_tricks.as_strided(written, (4, 19, 16), (40, 160, 1))[:] = True
    assert np.isnan(buffer[~written]).all() and not np.isnan(buffer[written]).any()


def test_padding_with_empty_sequences(rng):
    q, k, v = operands(rng)
    lengths_q, lengths_kv = np.array([0, 31], np.int32), np.array([40, 11], np.int32)
    q[1, :, 31:], k[1, :, 11:], v[1, :, 11:] = np.nan, np.inf, np.nan
    program = Program()
    given = [program.give(x) for x in (q, k, v)]
    lengths = {name: program.give(x.reshape(B, 1, 1, 1)) for name, x in (("seq_len_q", lengths_q), ("seq_len_kv", lengths_kv))}
    o, stats = program.graph.sdpa(*given, attn_scale=0.25, generate_stats=True, use_padding_mask=True,
                                  diagonal_alignment=BOTTOM_RIGHT, diagonal_band_right_bound=0, **lengths)
    o, stats = program.take(o, (B, HQ, SQ, DV)), program.take(stats, (B, HQ, SQ, 1))
    program.build().run()
    clean = [np.nan_to_num(x, nan=0, posinf=0) for x in (q, k, v)]
    shift = lengths_kv - lengths_q
    padded = (np.arange(SQ)[:, None] >= lengths_q.reshape(B, 1, 1, 1)) | (np.arange(SKV) >= lengths_kv.reshape(B, 1, 1, 1))
    s = scores(*clean[:2], 0.25, hidden=padded | band(right=0, shift=shift))
    truth, lse, *_ = forward(s, clean[2])
    near(o, truth)
    near(stats, lse)
    assert np.isneginf(stats[0]).all() and (o[0] == 0).all()

    d_o = drawn(rng, B, HQ, SQ, DV)
    d_o[0] = np.nan
    program = Program()
    given = [program.give(np.ascontiguousarray(x)) for x in (q, k, v, o, d_o, stats)]
    lengths = {name: program.give(x.reshape(B, 1, 1, 1)) for name, x in (("seq_len_q", lengths_q), ("seq_len_kv", lengths_kv))}
    gradients = program.graph.sdpa_backward(*given, attn_scale=0.25, use_padding_mask=True, diagonal_alignment=BOTTOM_RIGHT,
                                            diagonal_band_right_bound=0, use_deterministic_algorithm=True, **lengths)
    found = [program.take(gradient, like.shape) for gradient, like in zip(gradients, (q, k, v), strict=True)]
    program.build().run()
    first = [x.copy() for x in found]
    d_o[0] = 0
    for one, true in zip(found, backward(s, *clean, d_o, 0.25)[:3], strict=True):
        near(one, true)
    assert (found[0][0] == 0).all() and (found[1][1, :, 11:] == 0).all() and (found[2][1, :, 11:] == 0).all()
    program.run()
    for one, other in zip(found, first, strict=True):
        np.testing.assert_array_equal(one, other)


def packed_rows(rng, lengths, starts, heads, width, dtype=np.float32):
    """A buffer [tokens, heads, width] whose tokens outside the sequences are NaN."""
    buffer = np.full((starts[-1] + 3, heads, width), np.nan, dtype)
    for start, length in zip(starts, lengths, strict=False):
        buffer[start:start + length] = drawn(rng, length, heads, width)
    return buffer


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("multiplied", [False, True])
def test_packed_sequences(rng, kind, cumulative, multiplied):
    """THD: every row outside the sequences stays as it was, forward and backward."""
    lengths_q, lengths_kv = np.array([12, 1, 37]), np.array([5, 53, 20])
    starts_q, starts_kv = np.array([0, 12, 13, 50]), np.array([0, 5, 58, 78])
    q = packed_rows(rng, lengths_q, starts_q, HQ, DK)
    k, v = packed_rows(rng, lengths_kv, starts_kv, HK, DK), packed_rows(rng, lengths_kv, starts_kv, HV, DV)

    def dense(x, starts, lengths, longest):
        made = np.zeros((3, x.shape[1], longest, x.shape[2]))
        for b, (start, length) in enumerate(zip(starts, lengths, strict=False)):
            made[b, :, :length] = x[start:start + length].transpose(1, 0, 2)
        return made

    def offset(program, tensor, starts, elements):
        """Offsets in elements, or in rows of so many."""
        given = starts if multiplied else starts * elements
        tensor.set_ragged_offset(program.give(given.astype(kind).reshape(4, 1, 1, 1)))
        return tensor.set_ragged_offset_multiplier(elements) if multiplied else tensor

    def describe(program, x, starts, longest):
        heads, width = x.shape[1:]
        tensor = program.give(x, dim=[3, heads, longest, width], stride=[longest * heads * width, width, heads * width, 1])
        return offset(program, tensor, starts, heads * width)

    def lengths(program):
        if cumulative:
            given = {"cu_seq_len_q": starts_q, "cu_seq_len_kv": starts_kv}
            return {name: program.give(x.astype(np.int32).reshape(4, 1, 1, 1)) for name, x in given.items()}
        given = {"seq_len_q": lengths_q, "seq_len_kv": lengths_kv}
        return {name: program.give(x.astype(np.int32).reshape(3, 1, 1, 1)) for name, x in given.items()}

    def take(program, tensor, heads, width, starts, longest):
        buffer = np.full((starts[-1] + 3, heads, width), np.nan, np.float32)
        program.take(offset(program, tensor, starts, heads * width), [3, heads, longest, width],
                     strides=[longest * heads * width, width, heads * width, 1], buffer=buffer.reshape(-1))
        return buffer

    asked = {"attn_scale": 0.2, "use_padding_mask": True, "use_causal_mask": True}
    program = Program()
    given = [describe(program, q, starts_q, SQ), describe(program, k, starts_kv, SKV), describe(program, v, starts_kv, SKV)]
    o, stats = program.graph.sdpa(*given, generate_stats=True, **asked, **lengths(program))
    o, stats = take(program, o, HQ, DV, starts_q, SQ), take(program, stats, HQ, 1, starts_q, SQ)
    program.build().run()
    dq, dk, dv = dense(q, starts_q, lengths_q, SQ), dense(k, starts_kv, lengths_kv, SKV), dense(v, starts_kv, lengths_kv, SKV)
    hidden = np.arange(SKV) >= lengths_kv.reshape(3, 1, 1, 1)
    s = scores(dq, dk, 0.2, hidden=hidden | band(right=0))
    truth, lse, *_ = forward(s, dv)

    def same_rows(found, true, starts, lengths):
        inside = np.zeros(len(found), bool)
        for b, (start, length) in enumerate(zip(starts, lengths, strict=False)):
            near(found[start:start + length].transpose(1, 0, 2), true[b, :, :length])
            inside[start:start + length] = True
        assert np.isnan(found[~inside]).all()

    same_rows(o, truth, starts_q, lengths_q)
    same_rows(stats, lse, starts_q, lengths_q)

    d_o = packed_rows(rng, lengths_q, starts_q, HQ, DV)
    program = Program()
    given = [describe(program, x, starts, longest) for x, starts, longest in (
        (q, starts_q, SQ), (k, starts_kv, SKV), (v, starts_kv, SKV), (o, starts_q, SQ), (d_o, starts_q, SQ),
        (stats, starts_q, SQ))]
    gradients = program.graph.sdpa_backward(*given, max_total_seq_len_q=53, max_total_seq_len_kv=81, **asked,
                                            **lengths(program))
    found = [take(program, gradient, heads, width, starts, longest) for gradient, heads, width, starts, longest in zip(
        gradients, (HQ, HK, HV), (DK, DK, DV), (starts_q, starts_kv, starts_kv), (SQ, SKV, SKV), strict=True)]
    program.build().run()
    true = backward(s, dq, dk, dv, dense(d_o, starts_q, lengths_q, SQ), 0.2)
    same_rows(found[0], true[0], starts_q, lengths_q)
    same_rows(found[1], true[1], starts_kv, lengths_kv)
    same_rows(found[2], true[2], starts_kv, lengths_kv)


def test_bias_sink_and_their_gradients(rng):
    q, k, v = operands(rng)
    bias, sink = drawn(rng, 1, HQ, SQ, SKV), drawn(rng, 1, HQ, 1, 1)
    program = Program()
    given = [program.give(x) for x in (q, k, v)]
    o, stats = program.graph.sdpa(*given, attn_scale=0.25, bias=program.give(bias), sink_token=program.give(sink),
                                  generate_stats=True)
    o, stats = program.take(o, (B, HQ, SQ, DV)), program.take(stats, (B, HQ, SQ, 1))
    program.build().run()
    s, one = scores(q, k, 0.25, bias=bias), sink.astype(np.float64)
    truth, lse, *_ = forward(s, v, one)
    near(o, truth)
    near(stats, lse)
    d_o = drawn(rng, B, HQ, SQ, DV)
    program = Program()
    given = [program.give(np.ascontiguousarray(x)) for x in (q, k, v, o, d_o, stats)]
    d_bias = program.graph.tensor(dim=bias.shape, stride=row_major(bias.shape), data_type=cudnn.data_type.FLOAT)
    d_sink = program.graph.tensor(dim=sink.shape, stride=row_major(sink.shape), data_type=cudnn.data_type.FLOAT)
    gradients = program.graph.sdpa_backward(*given, attn_scale=0.25, bias=program.give(bias), dBias=d_bias,
                                            sink_token=program.give(sink), dSink_token=d_sink)
    found = [program.take(x, dims) for x, dims in zip((*gradients, d_bias, d_sink), (
        q.shape, k.shape, v.shape, bias.shape, sink.shape), strict=True)]
    program.build().run()
    *true, d_s, true_sink = backward(s, q, k, v, d_o, 0.25, one)
    for one, other in zip(found, (*true, d_s.sum(0, keepdims=True), true_sink), strict=True):
        near(one, other)


@pytest.mark.parametrize("dims, summed", [((B, 1, SQ, SKV), (1, HQ, SQ, SKV)), ((1, 1, SQ, SKV), (B, HQ, 1, SKV))])
def test_gradient_of_a_bias_in_dims_of_its_own(rng, dims, summed):
    q, k, v = operands(rng)
    bias = drawn(rng, *dims)
    s = scores(q, k, 0.25, bias=bias)
    o, stats, *_ = forward(s, v)
    d_o = drawn(rng, B, HQ, SQ, DV)
    program = Program()
    given = [program.give(np.ascontiguousarray(x, np.float32)) for x in (q, k, v, o, d_o, stats)]
    d_bias = program.graph.tensor(dim=summed, stride=row_major(summed), data_type=cudnn.data_type.FLOAT)
    gradients = program.graph.sdpa_backward(*given, attn_scale=0.25, bias=program.give(bias), dBias=d_bias)
    found = [program.take(x, shape) for x, shape in zip((*gradients, d_bias), (q.shape, k.shape, v.shape, summed), strict=True)]
    program.build().run()
    *true, d_s = backward(s, q, k, v, d_o, 0.25)[:4]
    axes = tuple(n for n in range(4) if summed[n] == 1)
    for one, other in zip(found, (*true, d_s.sum(axes, keepdims=True)), strict=True):
        near(one, other)


def test_maximum_and_sum_of_exponentials(rng):
    q, k, v = operands(rng)
    sink = drawn(rng, 1, HQ, 1, 1)
    program = Program()
    given = [program.give(x) for x in (q, k, v)]
    rows = {"dim": [B, HQ, SQ, 1], "stride": row_major([B, HQ, SQ, 1]), "data_type": cudnn.data_type.FLOAT}
    most, total = program.graph.tensor(**rows), program.graph.tensor(**rows)
    o, stats = program.graph.sdpa(*given, generate_stats=False, score_max=most, score_sum_exp=total,
                                  sink_token=program.give(sink), implementation=cudnn.attention_implementation.UNIFIED)
    assert stats is None
    found = [program.take(x, dims) for x, dims in ((o, (B, HQ, SQ, DV)), (most, (B, HQ, SQ, 1)), (total, (B, HQ, SQ, 1)))]
    program.build().run()
    truth, _, true_most, true_total = forward(scores(q, k), v, sink.astype(np.float64))
    for one, other in zip(found, (truth, true_most, true_total), strict=True):
        near(one, other)


def test_stats_in_powers_of_two_and_a_scale_in_a_tensor(rng):
    q, k, v = operands(rng)
    program = Program()
    given = [program.give(x) for x in (q, k, v)]
    scale = program.give(np.full((1, 1, 1, 1), -0.4, np.float32), is_pass_by_value=True)
    o, stats = program.graph.sdpa(*given, attn_scale=scale, generate_stats=True, stats_use_log2=True)
    o, stats = program.take(o, (B, HQ, SQ, DV)), program.take(stats, (B, HQ, SQ, 1))
    program.build().run()
    truth, lse, *_ = forward(scores(q, k, np.float32(-0.4)), v)
    near(o, truth)
    near(stats, lse / np.log(2))


def test_alibi(rng):
    q, k, v = operands(rng)
    program = Program()
    o, _ = program.graph.sdpa(*(program.give(x) for x in (q, k, v)), use_alibi_mask=True, use_causal_mask=True,
                              generate_stats=False)
    o = program.take(o, (B, HQ, SQ, DV))
    program.build().run()
    slopes = np.array([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])  # of 6 heads: those of 4, then every other one of 8
    distance = np.arange(SKV) - np.arange(SQ)[:, None]
    near(o, forward(scores(q, k, bias=slopes[:, None, None] * distance, hidden=band(right=0)), v)[0])


def test_block_mask(rng):
    q, k, v = (drawn(rng, 1, 2, n, 16) for n in (200, 300, 300))
    mask = np.array([[0b101], [0b110], [0b000], [0b011]], np.uint8).reshape(1, 2, 2, 1)
    program = Program()
    o, stats = program.graph.sdpa(*(program.give(x) for x in (q, k, v)), block_mask=program.give(mask), generate_stats=True)
    o, stats = program.take(o, q.shape), program.take(stats, (1, 2, 200, 1))
    program.build().run()
    tiles = (mask >> np.arange(3)) & 1
    hidden = ~tiles.astype(bool)[:, :, np.arange(200) // 128][..., np.arange(300) // 128]
    truth, lse, *_ = forward(scores(q, k, hidden=hidden), v)
    near(o, truth)
    near(stats, lse)


def test_dropout_drawn(rng):
    """rng_dump is the very mask of the forward, and the backward draws the same."""
    q, k, v = operands(rng)
    seed, offset = np.full((1, 1, 1, 1), 1234567, np.int64), np.full((1, 1, 1, 1), 7, np.int64)
    d_o, dims = drawn(rng, B, HQ, SQ, DV), (B, HQ, SQ, SKV)
    dumps, found = [], []
    for forwards in (True, False):
        program = Program()
        given = [program.give(x) for x in (q, k, v)]
        dump = program.graph.tensor(dim=dims, stride=row_major(dims), data_type=cudnn.data_type.FLOAT)
        dropout = (0.25, program.give(seed), program.give(offset))
        if forwards:
            o, stats = program.graph.sdpa(*given, generate_stats=True, dropout=dropout, rng_dump=dump)
            found = [program.take(o, (B, HQ, SQ, DV)), program.take(stats, (B, HQ, SQ, 1))]
        else:
            more = [program.give(np.ascontiguousarray(x)) for x in (found[0], d_o, found[1])]
            gradients = program.graph.sdpa_backward(*given, *more, dropout=dropout, rng_dump=dump)
            found = [program.take(x, like.shape) for x, like in zip(gradients, (q, k, v), strict=True)]
        dumps.append(program.take(dump, dims))
        program.build().run()
        keep = dumps[0] / 0.75
        s = scores(q, k)
        if forwards:
            assert set(np.unique(dumps[0])) == {0, 1} and abs(dumps[0].mean() - 0.75) < 0.02
            truth, lse, *_ = forward(s, v, keep=keep)
            near(found[0], truth)
            near(found[1], lse)
        else:
            np.testing.assert_array_equal(*dumps)
            for one, true in zip(found, backward(s, q, k, v, d_o, keep=keep)[:3], strict=True):
                near(one, true)


def test_dropout_by_a_mask(rng):
    q, k, v = operands(rng)
    mask = (rng.random((B, HQ, SQ, SKV)) < 0.6).astype(np.float32)
    scale = np.full((1, 1, 1, 1), 1 / 0.6, np.float32)
    program = Program()
    given = [program.give(x) for x in (q, k, v)]
    o, stats = program.graph.sdpa(*given, generate_stats=True, dropout=(program.give(mask), program.give(scale)))
    o, stats = program.take(o, (B, HQ, SQ, DV)), program.take(stats, (B, HQ, SQ, 1))
    program.build().run()
    keep = mask * np.float64(scale)
    near(o, forward(scores(q, k), v, keep=keep)[0])
    d_o = drawn(rng, B, HQ, SQ, DV)
    program = Program()
    given = [program.give(np.ascontiguousarray(x)) for x in (q, k, v, o, d_o, stats)]
    gradients = program.graph.sdpa_backward(*given, dropout=(program.give(mask), program.give(scale), program.give(1 / scale)))
    found = [program.take(x, like.shape) for x, like in zip(gradients, (q, k, v), strict=True)]
    program.build().run()
    for one, true in zip(found, backward(scores(q, k), q, k, v, d_o, keep=keep)[:3], strict=True):
        near(one, true)


@pytest.mark.parametrize("modified", [False, True], ids=["padding mask", "score_mod"])
def test_pages(rng, modified):
    """K and V page independently; entries past a length are never read. A score_mod may take the padding mask's place."""
    lengths_q, lengths_kv = np.array([3, 5], np.int32), np.array([41, 20], np.int32)
    q, rows = drawn(rng, B, HQ, 5, DK), (16, 8)
    containers = [drawn(rng, 16, HK, rows[0], DK), drawn(rng, 24, HV, rows[1], DV)]
    tables = [rng.permutation(len(x))[:B * (64 // n)].reshape(B, 1, 64 // n, 1).astype(np.int32)
              for x, n in zip(containers, rows, strict=True)]
    k, v = (x[table[:, 0, :, 0]].transpose(0, 2, 1, 3, 4).reshape(B, x.shape[1], 64, x.shape[3]).astype(np.float64)
            for x, table in zip(containers, tables, strict=True))
    for table, n in zip(tables, rows, strict=True):
        for b, length in enumerate(lengths_kv):
            table[b, 0, -(-length // n):, 0] = -1
    program = Program()
    q_, k_, v_ = (program.give(x) for x in (q, *containers))
    lengths = {name: program.give(x.reshape(B, 1, 1, 1)) for name, x in (("seq_len_q", lengths_q), ("seq_len_kv", lengths_kv))}
    k_table, v_table = (program.give(x) for x in tables)
    hide = None
    if modified:
        low = program.give(np.full((1, 1, 1, 1), -np.inf, np.float32), is_pass_by_value=True)

        def hide(graph, score):
            column = graph.gen_index(input=score, axis=3, compute_data_type=cudnn.data_type.INT32)
            column.set_data_type(cudnn.data_type.INT32)
            seen = graph.cmp_lt(input=column, comparison=lengths["seq_len_kv"], compute_data_type=cudnn.data_type.BOOLEAN)
            seen.set_data_type(cudnn.data_type.BOOLEAN)
            return graph.binary_select(input0=score, input1=low, mask=seen)

    o, _ = program.graph.sdpa(q_, k_, v_, attn_scale=0.25, generate_stats=False, use_padding_mask=not modified, score_mod=hide,
                              paged_attention_k_table=k_table, paged_attention_v_table=v_table,
                              paged_attention_max_seq_len_kv=64, **lengths)
    o = program.take(o, (B, HQ, 5, DV))
    program.build().run()
    hidden = np.arange(64) >= lengths_kv.reshape(B, 1, 1, 1)
    near(o, np.where(np.arange(5)[:, None] < lengths_q.reshape(B, 1, 1, 1), forward(scores(q, k, 0.25, hidden=hidden), v)[0], 0))
