"""heddle.cudnn on torch's tensors: read in C, by the functions that torch has for that, or asked in Python; alike."""

import threading
import time

import pytest
import torch
from heddle import cudnn
from torch.nn.functional import scaled_dot_product_attention

DEVICE = torch.get_default_device().type
TYPES = {torch.float32: cudnn.data_type.FLOAT, torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}
WAYS = ["in C", "in Python"]


@pytest.fixture(params=WAYS)
def way(request):
    if request.param == "in C" and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("torch has no such functions")
    return request.param


class Attend:
    """q, k, v and o of the uids 0 to 3, rows by their heads; the scale is read from a scalar of the host."""

    def __init__(self, way, length=7, dtype=torch.float32, heads=3):
        q, k, v = (torch.randn(2, length + extra, heads, 16, dtype=dtype).transpose(1, 2) for extra in (0, 4, 4))
        scale = torch.full((1, 1, 1, 1), 0.3, device="cpu")
        o = torch.full_like(q, torch.nan)
        self.graph = cudnn.pygraph(io_data_type=TYPES[dtype], intermediate_data_type=cudnn.data_type.FLOAT,
                                   compute_data_type=cudnn.data_type.FLOAT, handle=cudnn.create_handle(device=DEVICE))
        tensors = [self.graph.tensor(dim=x.shape, stride=x.stride(), data_type=x.dtype, uid=uid) for uid, x in enumerate((q, k, v))]
        factor = self.graph.tensor(dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=scale.dtype, uid=4, is_pass_by_value=True)
        result, _ = self.graph.sdpa(*tensors, attn_scale=factor, generate_stats=False)
        result.set_output(True).set_uid(3).set_dim(o.shape).set_stride(o.stride())
        self.graph.build([cudnn.heur_mode.A])
        self.workspace = torch.empty(self.graph.get_workspace_size(), dtype=torch.uint8)
        self.pack = {0: q, 1: k, 2: v, 3: o, 4: scale}
        self.by_tensor = dict(zip((*tensors, result, factor), self.pack.values(), strict=True))
        self.read_in_c = way == "in C"
        if not self.read_in_c:
            self.graph._bound._launch_arrays = None

    def run(self, pack=None, workspace=None):
        self.graph.execute(self.pack if pack is None else pack, self.workspace if workspace is None else workspace)
        return self.pack[3].double()

    def is_read_in_c(self, **changed):
        """Whether the pack with tensors changed ("_0" is that of the uid 0) is one that is executed without Python."""
        self.run()
        pack = self.pack | {int(name[1:]): value for name, value in changed.items() if name[1:].isdigit()}
        return self.graph._bound.launch_arrays(pack, changed.get("workspace", self.workspace), None)

    def truth(self):
        q, k, v, _, scale = (x.double() for x in self.pack.values())
        return scaled_dot_product_attention(q, k, v, scale=scale.item())


@pytest.mark.parametrize("dtype", TYPES)
def test_packs_by_uids_and_by_tensors_in_turn(way, dtype):
    attend = Attend(way, dtype=dtype)
    within = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    addresses = {uid: x.data_ptr() for uid, x in attend.pack.items()}
    for pack in (attend.pack, attend.by_tensor, attend.by_tensor, attend.pack | {None: None, 77: object()}, addresses, attend.pack):
        attend.pack[3].fill_(torch.nan)
        attend.pack[0].copy_(torch.randn_like(attend.pack[0]))
        attend.pack[4].uniform_(0.1, 0.9)
        torch.testing.assert_close(attend.run(pack), attend.truth(), rtol=within, atol=within)
    assert attend.is_read_in_c() is attend.read_in_c


def test_which_tensors_are_read_in_c():
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("torch has no such functions")
    attend = Attend("in C")
    q, k = attend.pack[0], attend.pack[1]
    assert attend.is_read_in_c(_0=q.clone().requires_grad_())
    assert attend.is_read_in_c(_1=torch.cat([k, k]))
    others = [q.double(), q[:1], q[..., :1].expand(q.shape), q.to_sparse(), q.to("meta"), torch.nn.Parameter(q), q.data_ptr(),
              q.view(torch.int32), None, "q", 1.5, torch.empty(0)]
    assert not any(attend.is_read_in_c(_0=other) for other in others)
    large = torch.empty(2 * attend.workspace.numel() + 8, dtype=torch.uint8)
    assert attend.is_read_in_c(workspace=large) and attend.is_read_in_c(workspace=large[3:])
    if attend.workspace.numel() > 0:  # too small, with gaps
        assert not attend.is_read_in_c(workspace=attend.workspace[1:]) and not attend.is_read_in_c(workspace=large[::2])
    # No exception is left of what could not be read.
    assert torch.isfinite(attend.run()).all()


@pytest.mark.parametrize(("changed", "sentence"), [
    ({0: torch.float64}, "input '.*' .uid 0. is bound to an array of DOUBLE, expected FLOAT"),
    ({1: slice(1)}, r"input '.*' .uid 1. is bound to memory of \d+ bytes, expected"),
    ({2: None}, "The pack is missing a buffer for tensor uid 2, the input"),
    ({3: "o"}, "The output '.*' .uid 3. is of type str, expected an array"),
    ({3: 0}, "The output '.*' .uid 3. is bound to a null pointer"),
    ({0: "overlap"}, "The tensors with uids 0 and 3 share memory|share"),
])
def test_the_same_sentences(way, changed, sentence):
    attend = Attend(way)
    attend.run()
    ((uid, change),) = changed.items()
    given = attend.pack[uid]
    if isinstance(change, torch.dtype):
        change = given.to(change)
    elif isinstance(change, slice):
        change = given[change].clone()
    elif change == "overlap":
        change = attend.pack[3]
    before = attend.pack[3].clone()
    with pytest.raises((ValueError, TypeError), match=sentence):
        attend.run(attend.pack | {uid: change})
    torch.testing.assert_close(attend.pack[3], before, rtol=0, atol=0)
    attend.run()


def test_a_negated_view_is_refused(way):
    """Of x.conj().imag torch gives out the memory of x.imag."""
    attend = Attend(way)
    negated = torch._neg_view(attend.pack[1])
    assert negated.is_neg()
    for pack in ({**attend.pack, 1: negated}, {**attend.by_tensor, list(attend.by_tensor)[1]: negated}):
        with pytest.raises(ValueError, match="with the other sign, expected one without"):
            attend.graph.execute(pack, attend.workspace)
    plan = attend.graph._bound.plan
    with pytest.raises(ValueError, match="with the other sign, expected one without"):
        plan.execute(dict(zip((*plan.inputs, *plan.outputs), 5 * [negated], strict=True)), attend.workspace)
    assert attend.pack[3].isnan().all()


def test_an_emptied_tensor_is_refused(way):
    attend = Attend(way)
    emptied = attend.pack[1].clone()
    emptied.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="null pointer|memory of 0 bytes"):
        attend.run(attend.pack | {1: emptied})


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU runs it after the call")
def test_other_threads_run_while_a_plan_does(way):
    attend = Attend(way, length=2500, heads=8)
    attend.run()
    turns, over = 0, threading.Event()

    def count():
        nonlocal turns
        while not over.is_set():
            time.sleep(1e-3)
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = turns
        attend.run()
        assert turns - before >= 5
    finally:
        over.set()
        thread.join()


def test_threads_with_packs_of_their_own(way):
    attend = Attend(way)
    packs = []
    for _ in range(4):
        q = torch.randn_like(attend.pack[0])
        packs.append(attend.pack | {0: q, 3: torch.full_like(q, torch.nan)})
    failures = []

    def work(pack):
        workspace = torch.empty_like(attend.workspace)
        try:
            for _ in range(500):
                attend.graph.execute(pack, workspace)
        except Exception as failure:  # noqa: BLE001, in a thread
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(pack,)) for pack in packs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for pack in packs:
        expected = scaled_dot_product_attention(*(pack[uid].double() for uid in range(3)), scale=pack[4].item())
        torch.testing.assert_close(pack[3].double(), expected, rtol=1e-5, atol=1e-5)
