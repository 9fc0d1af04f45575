"""Attention on FP8 operands on a GPU beside Heddle's own of bf16, and cuDNN's where its frontend is installed, in one run.

    PYTHONPATH=bindings/python python bench/gpu/fp8.py

Prints TFLOP/s (4 b h s^2 d, half of it where causal) and each one's largest error against f64 on a head of the same operands.
"""

import argparse
import math

import torch

import heddle
import heddle.cudnn
from timing import gpu, interleaved_milliseconds

try:
    import cudnn
except ImportError:
    cudnn = None
SHAPES = [(8, 16, 1024), (4, 16, 2048), (2, 16, 4096), (2, 16, 8192), (1, 16, 16384)]
SCALES = {"descale_q": 0.03, "descale_k": 0.03, "descale_v": 0.05, "descale_s": 1 / 256, "scale_s": 256.0, "scale_o": 20.0}


def codes(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn)


def fp8_call(frontend, q, k, v, o, causal):
    """What runs sdpa_fp8 by a module of the frontend's names; the graph is kept by it."""
    handle = frontend.create_handle()
    frontend.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    kinds = frontend.data_type
    graph = frontend.pygraph(io_data_type=kinds.FP8_E4M3, intermediate_data_type=kinds.FLOAT,
                             compute_data_type=kinds.FLOAT, handle=handle)
    pack = {}

    def bound(x, kind):
        tensor = graph.tensor(dim=list(x.shape), stride=list(x.stride()), data_type=kind)
        pack[tensor] = x
        return tensor

    scales = {name: bound(torch.full((1, 1, 1, 1), x, device="cuda"), kinds.FLOAT) for name, x in SCALES.items()}
    made = graph.sdpa_fp8(*(bound(x, kinds.FP8_E4M3) for x in (q, k, v)), **scales, attn_scale=1 / math.sqrt(q.shape[3]),
                          use_causal_mask=causal, is_inference=True)
    amaxes = [torch.empty(1, 1, 1, 1, device="cuda") for _ in range(2)]
    for tensor, result, kind in zip((made[0], *made[2:]), (o, *amaxes), (kinds.FP8_E4M3, kinds.FLOAT, kinds.FLOAT), strict=True):
        tensor.set_output(True).set_data_type(kind).set_dim(list(result.shape)).set_stride(list(result.stride()))
        pack[tensor] = result
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([frontend.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), device="cuda", dtype=torch.uint8)
    return lambda: graph.execute(pack, workspace, handle=handle)


def bf16_call(q, k, v, o, causal):
    graph = heddle.Graph(io="bf16")
    tensors = {name: graph.tensor(name, x.shape, x.stride()) for name, x in (("q", q), ("k", k), ("v", v), ("o", o))}
    graph.node("sdpa", **tensors, attn_scale=1 / math.sqrt(q.shape[3]), right_bound=0 if causal else None)
    plan = heddle.Plan(graph, "cuda")
    workspace = torch.empty(max(1, plan.workspace_bytes), device="cuda", dtype=torch.uint8)
    addresses = {tensors[name].uid: x.data_ptr() for name, x in (("q", q), ("k", k), ("v", v), ("o", o))}
    stream = torch.cuda.current_stream().cuda_stream
    return lambda: plan.execute(addresses, workspace.data_ptr(), stream)


def truth(q, k, v, causal):
    s = q.double() @ k.double().T / math.sqrt(q.shape[1])
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
    return torch.softmax(s, -1) @ v.double()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    print(f"{gpu()}, heddle {heddle.version()}" + ("" if cudnn else "; no cudnn frontend"))
    torch.manual_seed(0)
    for d in arguments.dims:
        for b, h, s in SHAPES:
            for causal in (False, True):
                q, k, v = (codes(torch.randn(b, s, h, d, device="cuda") / scale).transpose(1, 2)
                           for scale in (SCALES["descale_q"], SCALES["descale_k"], SCALES["descale_v"]))
                wide = [(x.float() * SCALES[f"descale_{name}"]).bfloat16() for name, x in (("q", q), ("k", k), ("v", v))]
                results = {"fp8": torch.empty_like(q), "bf16": torch.empty_like(wide[0])}
                runs = {"fp8": fp8_call(heddle.cudnn, q, k, v, results["fp8"], causal),
                        "bf16": bf16_call(*wide, results["bf16"], causal)}
                if cudnn:
                    results["cuDNN fp8"] = torch.empty_like(q)
                    try:
                        runs["cuDNN fp8"] = fp8_call(cudnn, q, k, v, results["cuDNN fp8"], causal)
                    except Exception as error:  # what it does not take it says in its own words
                        print(f"cuDNN: {error}")
                for run in runs.values():
                    run()
                exact = truth(*(x[0, 0].double() * SCALES[f"descale_{name}"] for name, x in (("q", q), ("k", k), ("v", v))), causal)
                errors = {name: (results[name][0, 0].double() / (1 if name == "bf16" else SCALES["scale_o"]) - exact)
                          for name in runs}
                times = interleaved_milliseconds(runs, arguments.rounds)
                flops = 4 * b * h * s * s * d / (2 if causal else 1)
                print(f"d {d} b{b} h{h} S {s} {'causal' if causal else 'full'}: " + ", ".join(
                    f"{name} {flops / times[name] / 1e9:.0f} TFLOP/s (rms error {errors[name].square().mean().sqrt():.2e})"
                    for name in runs) + f", fp8 {times['bf16'] / times['fp8']:.2f} of bf16")


if __name__ == "__main__":
    main()
