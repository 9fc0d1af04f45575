"""A program for NVIDIA's `cudnn` Python package, but for its import: gradient descent on Q, K and V until attention gives a target.

PYTHONPATH=bindings/python .venv/bin/python examples/cudnn/fit_attention.py
"""

import heddle.cudnn as cudnn
import numpy as np

BATCH, HEADS, LENGTH, DEPTH = 2, 4, 64, 32
DIMS = (BATCH, HEADS, LENGTH, DEPTH)
STRIDES = (LENGTH * HEADS * DEPTH, DEPTH, HEADS * DEPTH, 1)  # in memory [batch, length, heads, depth]
FLOAT, SCALE = cudnn.data_type.FLOAT, DEPTH**-0.5


def array(draw):
    """An array of DIMS, laid out by STRIDES."""
    return draw((BATCH, LENGTH, HEADS, DEPTH)).astype(np.float32).transpose(0, 2, 1, 3)


def built(handle, make):
    """The graph of a function that gives its outputs, tensors with uids of their own."""
    graph = cudnn.pygraph(io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT, handle=handle)
    for uid, tensor in make(graph).items():
        tensor.set_output(True).set_uid(uid)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return graph, np.empty(graph.get_workspace_size(), np.uint8)


def tensor(graph, uid):
    return graph.tensor(dim=DIMS, stride=STRIDES, uid=uid)


# Uids of all tensors.
Q, K, V, O, STATS, D_O, D_Q, D_K, D_V = range(9)


def forward(graph):
    o, stats = graph.sdpa(*(tensor(graph, uid) for uid in (Q, K, V)), attn_scale=SCALE, use_causal_mask=True,
                          generate_stats=True)
    return {O: o.set_dim(DIMS).set_stride(STRIDES), STATS: stats.set_data_type(FLOAT)}


def backward(graph):
    stats = graph.tensor(dim=(*DIMS[:3], 1), uid=STATS, data_type=FLOAT)
    gradients = graph.sdpa_backward(*(tensor(graph, uid) for uid in (Q, K, V, O, D_O)), stats, attn_scale=SCALE,
                                    use_causal_mask=True)
    return dict(zip((D_Q, D_K, D_V), gradients, strict=True))


def main(steps=200, rate=200.0):
    """Prints and returns the losses."""
    rng = np.random.default_rng(0)
    handle = cudnn.create_handle(device="cpu")  # where NumPy's arrays are; of a GPU for torch's or CuPy's
    pack = {uid: array(rng.standard_normal) for uid in (Q, K, V)} | {uid: array(np.empty) for uid in (O, D_O, D_Q, D_K, D_V)}
    pack[STATS] = np.empty((*DIMS[:3], 1), np.float32)
    target = 0.3 * array(rng.standard_normal)
    passes = [built(handle, make) for make in (forward, backward)]
    losses = []
    for step in range(steps):
        passes[0][0].execute(pack, passes[0][1], handle=handle)
        pack[D_O][:] = (pack[O] - target) * (2 / target.size)
        losses.append(float(((pack[O] - target)**2).mean()))
        passes[1][0].execute(pack, passes[1][1], handle=handle)
        for uid, gradient in ((Q, D_Q), (K, D_K), (V, D_V)):
            pack[uid] -= rate * pack[gradient]
        if step % 40 == 0:
            print(f"step {step:4}  loss {losses[-1]:.5f}")
    print(f"step {steps:4}  loss {losses[-1]:.5f}")
    return losses


if __name__ == "__main__":
    main()
