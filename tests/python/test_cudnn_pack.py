"""heddle.cudnn: what a pack may hold, and what is refused before anything is written."""

import ctypes
import threading

import heddle.cudnn as cudnn
import ml_dtypes
import numpy as np
import pytest
from cudnn_program import TYPES, Program, drawn, forward, near, row_major, scores

B, H, S, D = 2, 3, 21, 16
IO = (B, H, S, D)


@pytest.fixture
def rng():
    return np.random.default_rng(20264)


class Attend(Program):
    """q, k, v, o with the uids 0 to 3, built."""

    def __init__(self, rng, dtype=np.float32, **options):
        super().__init__(dtype, **options)
        self.arrays = [drawn(rng, *IO, dtype=dtype) for _ in range(3)]
        self.tensors = [self.give(x) for x in self.arrays]
        o, _ = self.graph.sdpa(*self.tensors, attn_scale=0.25, generate_stats=False, use_causal_mask=True)
        self.tensors.append(o)
        self.take(o, IO, dtype, buffer=np.full(IO, np.nan, dtype))
        self.workspace = np.empty(self.build().graph.get_workspace_size(), np.uint8)

    def truth(self, length=S):
        q, k, v = (x[:, :, :length] for x in self.arrays)
        return forward(scores(q, k, 0.25, hidden=np.triu(np.ones((length, length), bool), 1)), v)[0]


class Capsule:
    """Nothing but DLPack, of the protocol without versions."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


KINDS = {
    "NumPy": lambda x: x,
    "addresses": lambda x: x.ctypes.data,
    "NumPy's integers": lambda x: np.int64(x.ctypes.data),
    "DLPack": Capsule,
}


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("keyed", ["uids", "tensors", "ordered", "ordered by uids"])
def test_every_kind_of_array_and_pack(rng, made, keyed):
    program = Attend(rng)
    values = [made(x) for x in (*program.arrays, program.pack[3])]
    options = {}
    pack = dict(enumerate(values)) | {None: None, 77: object(), "o": 3}
    if keyed == "tensors":
        pack = dict(zip(program.tensors, values, strict=True)) | {None: None, Program().graph.tensor(): 3}
    elif keyed == "ordered":
        pack = values
    elif keyed == "ordered by uids":
        pack, options = values[::-1], {"tensor_uids": [3, 2, 1, 0]}
    program.graph.execute(pack, made(program.workspace), **options)
    near(program.pack[3], program.truth())


def test_one_graph_takes_packs_of_each_kind_in_turn(rng):
    program = Attend(rng)
    by_tensor = dict(zip(program.tensors, program.pack.values(), strict=True))
    by_either = {program.tensors[0]: program.pack[0]} | {uid: program.pack[uid] for uid in (1, 2, 3)}
    by_address = {uid: array.ctypes.data for uid, array in program.pack.items()}
    for pack in (program.pack, by_tensor, by_either, by_address, by_tensor, list(program.pack.values()), by_address, program.pack):
        program.pack[3][...] = np.nan
        program.graph.execute(pack, program.workspace.ctypes.data)
        near(program.pack[3], program.truth())


def test_jax_arrays_are_read_and_never_written(rng):
    import jax

    program = Attend(rng)
    for uid in range(3):
        program.pack[uid] = jax.device_put(program.arrays[uid], jax.devices("cpu")[0])
    program.run()
    near(program.pack[3], program.truth())
    with pytest.raises(TypeError, match="input 't0' .uid 0. is traced by JAX"):
        jax.jit(lambda x: program.graph.execute(program.pack | {0: x}, program.workspace))(program.arrays[0])
    program.pack[3] = jax.device_put(np.zeros(IO, np.float32), jax.devices("cpu")[0])
    with pytest.raises(ValueError, match=r"output 't3|uid 3.* may not be written"):
        program.run()


def test_jax_bfloat16(rng):
    import jax

    program = Attend(rng, ml_dtypes.bfloat16)
    for uid in range(3):
        program.pack[uid] = jax.device_put(program.arrays[uid], jax.devices("cpu")[0])
    program.run()
    near(program.pack[3], program.truth(), ml_dtypes.bfloat16)


def test_the_cpu_by_arrays_alone(rng, monkeypatch):
    """A graph that was built for a GPU, and whose arrays lie on the CPU, runs there."""
    program = Attend(rng)
    assert cudnn.pygraph()._device() in ("cpu", "cuda")
    program.graph._handle = None
    program.graph._bound.device = "cuda"  # as if it had been built for one
    program.graph.execute(program.pack, None)
    near(program.pack[3], program.truth())


def bad(program, **changed):
    return program.pack | {int(uid[1:]): value for uid, value in changed.items()}


ZEROS = np.zeros(IO, np.float32)
READ_ONLY = np.zeros(IO, np.float32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize("pack, kind, sentence", [
    (lambda p: {n: p.pack[n] for n in (0, 1, 3)}, ValueError, "missing a buffer for tensor uid 2, the input 't2' (uid 2)"),
    (lambda p: {n: p.pack[n] for n in (1, 2, 3)}, ValueError, "missing a buffer for tensor uid 0, the input 't0' (uid 0)"),
    (lambda p: bad(p, _3=None), ValueError, "missing a buffer for tensor uid 3"),
    (lambda p: bad(p, _0=ZEROS.astype(np.float16)), ValueError, "input 't0' (uid 0) is bound to an array of HALF, expected"),
    (lambda p: bad(p, _1=ZEROS[:1].copy()), ValueError, "memory of 4032 bytes, expected 8064"),
    (lambda p: bad(p, _1=Capsule(ZEROS[:1].copy())), ValueError, "memory of 4032 bytes, expected 8064"),
    (lambda p: bad(p, _3=READ_ONLY), ValueError, "may not be written"),
    (lambda p: bad(p, _3=p.pack[0]), ValueError, "shares memory with the input"),
    (lambda p: bad(p, _2=np.repeat(p.pack[2], 8, 0)[1::-1]), ValueError, "with strides [-1008, 336, 16, 1], expected none below 0"),
    (lambda p: bad(p, _2=0), ValueError, "input 't2' (uid 2) is bound to a null pointer"),
    (lambda p: bad(p, _2=p.pack[2].ctypes.data + 2), ValueError, "expected a multiple of 4"),
    (lambda p: bad(p, _2=-8), ValueError, "is -8, expected an address"),
    (lambda p: bad(p, _2=True), TypeError, "is of type bool, expected an array"),
    (lambda p: bad(p, _2=np.ma.masked_less(p.pack[2], 0)), TypeError, "input 't2' (uid 2) is an array with a mask of its own"),
    (lambda p: bad(p, _2="q"), TypeError, "is of type str, expected an array (of torch, NumPy, JAX, CuPy or with DLPack)"),
    (lambda p: bad(p, _2=[1.0]), TypeError, "is of type list, expected an array"),
    (lambda p: {str(uid): array for uid, array in p.pack.items()}, ValueError, "missing a buffer for tensor uid 0"),
    (lambda p: 3, TypeError, "The pack is of type int, expected a dict"),
    (lambda p: list(p.pack.values())[:3], ValueError, "The ordered pack has 3 values, expected 4, of the uids [0, 1, 2, 3]"),
])
def test_wrong_packs_write_nothing(rng, pack, kind, sentence):
    program = Attend(rng)
    with pytest.raises(kind) as refusal:
        program.graph.execute(pack(program), program.workspace)
    assert sentence in str(refusal.value)
    assert np.isnan(program.pack[3]).all()


@pytest.mark.parametrize("workspace, kind, sentence", [
    (None, ValueError, "The workspace is null, expected"),
    (0, ValueError, "The workspace is null, expected"),
    (np.empty(1, np.uint8), ValueError, "The workspace has 1 bytes, expected"),
    (np.frombuffer(bytes(1 << 24), np.uint8), ValueError, "The workspace is an array that may not be written"),
    (np.empty(1 << 25, np.uint8)[1 << 24::-1], ValueError, "with strides [-1], expected one without gaps"),
    (np.empty(1 << 25, np.uint8)[::2], ValueError, "with strides [2], expected one without gaps"),
    (np.empty(1, object), TypeError, "workspace is an array of Python's objects"),
    ("much", TypeError, "workspace is of type str, expected an array"),
])
def test_wrong_workspaces_write_nothing(rng, workspace, kind, sentence):
    program = Attend(rng)
    assert program.graph.get_workspace_size() > 1
    with pytest.raises(kind) as refusal:
        program.graph.execute(program.pack, workspace)
    assert sentence in str(refusal.value) and np.isnan(program.pack[3]).all()


def test_smaller_sizes(rng):
    """Strides of fewer dims, those of a packed array, leave the graph's."""
    program = Attend(rng, is_override_shape_enabled=True)
    for length in (1, 9, S):
        program.pack[3][:] = np.nan
        shapes = [[B, H, length, D]] * 4
        for strides in ([row_major(IO)] * 4, [[48, 16, 1]] * 4):
            program.run(override_uids=[0, 1, 2, 3], override_shapes=shapes, override_strides=strides)
            near(program.pack[3][:, :, :length], program.truth(length))
        assert np.isnan(program.pack[3][:, :, length:]).all()


def test_larger_sizes(rng):
    """More batch entries and longer sequences than the graph's, in the memory that these take."""
    program = Attend(rng, is_override_shape_enabled=True)
    for batch, length in ((B + 1, S), (B, S + 20), (1, S + 3), (B + 1, S)):
        dims = [batch, H, length, D]
        arrays = [drawn(rng, *dims) for _ in range(3)]
        o = np.full(dims, np.nan, np.float32)
        overrides = {"override_uids": [0, 1, 2, 3], "override_shapes": [dims] * 4, "override_strides": [row_major(dims)] * 4}
        pack = dict(enumerate((*arrays, o)))
        workspace = np.empty(2 * program.workspace.size, np.uint8)
        program.graph.execute(pack, workspace, **overrides)
        hidden = np.triu(np.ones((length, length), bool), 1)
        near(o, forward(scores(*arrays[:2], 0.25, hidden=hidden), arrays[2])[0])
    overrides["override_shapes"] = [[40 * B, H, 40 * S, D]] * 4
    with pytest.raises(ValueError, match="memory of .* bytes, expected"):
        program.graph.execute(pack, workspace, **overrides)


class AttendPacked(Program):
    """Packed Q and O over dense K and V, of at most `rows` rows a sequence; Stats [H, tokens], if wanted."""

    def __init__(self, rng, lengths, rows, tokens=None):
        super().__init__(is_override_shape_enabled=True)
        starts, self.lengths = np.cumsum([0, *lengths]), lengths
        tokens = tokens or starts[-1]
        self.q, self.kv = drawn(rng, tokens, H, D), [drawn(rng, len(lengths), H, S, D) for _ in range(2)]
        self.o = np.full((tokens, H, D), np.nan, np.float32)
        self.stats = np.full((H, tokens), np.nan, np.float32)
        dims, strides = [len(lengths), H, rows, D], [rows * H * D, D, H * D, 1]

        def packed(tensor, times):
            return tensor.set_ragged_offset(self.give((starts * times).reshape(-1, 1, 1, 1)))

        q = packed(self.give(self.q, dim=dims, stride=strides), H * D)
        count = np.array(lengths, np.int32).reshape(-1, 1, 1, 1)
        o, stats = self.graph.sdpa(q, *(self.give(x) for x in self.kv), attn_scale=0.25, generate_stats=True, use_padding_mask=True,
                                   seq_len_q=self.give(count), seq_len_kv=self.give(np.full_like(count, S)))
        self.take(packed(o, H * D), dims, strides=strides, buffer=self.o)
        self.take(packed(stats, 1), [len(lengths), H, rows, 1], strides=[H * tokens, tokens, 1, 1], buffer=self.stats)
        self.packed = [q, o]
        self.build()

    def check(self):
        at = 0
        for n, length in enumerate(self.lengths):
            raw = scores(self.q[at:at + length].transpose(1, 0, 2)[None], self.kv[0][n:n + 1], 0.25)
            near(self.o[at:at + length].transpose(1, 0, 2)[None], forward(raw, self.kv[1][n:n + 1])[0])
            most = raw.max(-1)
            near(self.stats[None, :, at:at + length], most + np.log(np.exp(raw - most[..., None]).sum(-1)))
            at += length
        assert np.isnan(self.o[at:]).all() and np.isnan(self.stats[:, at:]).all()


def test_statistics_by_heads_of_fewer_tokens_than_a_sequence_may_have(rng):
    """Stats [H, tokens] of packed rows: S rows need not fit between two heads."""
    program = AttendPacked(rng, [3, 0, 5], rows=40, tokens=11)
    program.run()
    program.check()


@pytest.mark.parametrize("lengths", [[4, 8, 1], [17, 2, 30], [0, 3, 0]], ids=str)
def test_sizes_of_packed_arrays(rng, lengths):
    """A packed tensor is given its array's [tokens, H, D]; its sequences may be longer than the graph's rows."""
    program = AttendPacked(rng, lengths, rows=8)
    arrays = [program.q, program.o]
    program.run(override_uids=[one.get_uid() for one in program.packed], override_shapes=[x.shape for x in arrays],
                override_strides=[[H * D, D, 1]] * 2)
    program.check()


def test_a_packed_array_of_other_heads_is_refused(rng):
    program = AttendPacked(rng, [2, 3], rows=8)
    with pytest.raises(ValueError, match=r"The shape \[5, 4, 16\] of override_shapes .* expected \[tokens, 3, 16\]"):
        program.run(override_uids=[program.packed[0].get_uid()], override_shapes=[[5, 4, 16]], override_strides=[[64, 16, 1]])
    assert np.isnan(program.o).all()


@pytest.mark.parametrize("overrides, kind, sentence", [
    (([0], [[B, H, 5, D]], None), TypeError, "override_strides is of type NoneType, expected a list"),
    (([0, 1], [[B, H, 5, D]], [[]]), ValueError, "2 uids, 1 shapes and 1 strides, expected as many of each"),
    (([9], [[B, H, 5, D]], [[]]), ValueError, "override_uids has the uid 9, expected those of tensors of the graph"),
    (([0, 0], [[B, H, 5, D]] * 2, [[]] * 2), ValueError, "override_uids has the uid 0 twice"),
    (([0.5], [[B, H, 5, D]], [[]]), TypeError, "A uid of override_uids is of type float"),
    (([0], [[B, H, "5", D]], [[]]), TypeError, "A shape of override_shapes is of type str"),
    (([0, 1, 2], [[B, H, S + 1, D]] * 3, [[]] * 3), ValueError, "expected 8128, which its dims and strides reach over"),
    (([0], [[B, H, S, D + 8]], [[]]), ValueError, "which its dims and strides reach over"),
    (([1], [[B, H, 5, D]], [[]]), ValueError, "length"),
])
def test_wrong_sizes_write_nothing(rng, overrides, kind, sentence):
    program = Attend(rng)
    with pytest.raises(kind) as refusal:
        program.run(**dict(zip(("override_uids", "override_shapes", "override_strides"), overrides, strict=True)))
    assert sentence in str(refusal.value) and np.isnan(program.pack[3]).all()


def test_many_threads_on_one_graph(rng):
    program = Attend(rng)
    outputs = [np.full(IO, np.nan, np.float32) for _ in range(6)]

    def run(o):
        program.graph.execute(program.pack | {3: o}, np.empty_like(program.workspace))

    threads = [threading.Thread(target=run, args=(o,)) for o in outputs]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    for o in outputs:
        near(o, program.truth())


def test_views_reach_as_far_as_what_they_are_views_of(rng):
    """A graph may declare more of a buffer than the view that is bound."""
    program = Attend(rng)
    whole = program.arrays[0].copy()
    program.pack[0] = whole[:1, :1]
    program.run()
    near(program.pack[3], program.truth())


def test_numbers_passed_by_value(rng):
    program = Program()
    arrays = [drawn(rng, *IO) for _ in range(3)]
    scale = program.graph.tensor_like(np.full((1, 1, 1, 1), 0.5, np.float32)).set_uid(50)
    assert scale.get_is_pass_by_value()
    like = program.graph.tensor_like(arrays[0], name="q")
    assert (like.get_dim(), like.get_stride(), like.get_data_type(), like.get_name()) == (
        list(IO), row_major(IO), TYPES[np.dtype(np.float32)], "q") and not like.get_is_pass_by_value()
    o, _ = program.graph.sdpa(*(program.give(x) for x in arrays), attn_scale=scale, generate_stats=False)
    o = program.take(o, IO)
    program.build()
    for value in (0.5, -2.0):
        number = ctypes.c_float(value)
        program.pack[50] = ctypes.addressof(number)
        program.run()
        near(o, forward(scores(*arrays[:2], value), arrays[2])[0])
