"""Attention on FP8 operands on a GPU beside Heddle's own of bf16, and cuDNN's where its frontend is installed, in one run.

    PYTHONPATH=bindings/python python bench/gpu/fp8.py
    PYTHONPATH=bindings/python python bench/gpu/fp8.py --backward

Prints TFLOP/s (4 b h s^2 d, of a backward 10, half of it where causal) and, of forwards, each one's error against f64 on a head of the
same operands.
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


class Fp8:
    """A graph by a module of the frontend's names, whose inputs and outputs are of FP8, or of f32 where they are one number or
    statistics."""

    def __init__(self, frontend):
        self.frontend, self.handle, self.pack = frontend, frontend.create_handle(), {}
        frontend.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        kinds = frontend.data_type
        self.graph = frontend.pygraph(io_data_type=kinds.FP8_E4M3, intermediate_data_type=kinds.FLOAT,
                                      compute_data_type=kinds.FLOAT, handle=self.handle)

    def bound(self, x):
        tensor = self.graph.tensor(dim=list(x.shape), stride=list(x.stride()), data_type=self.kind_of(x))
        self.pack[tensor] = x
        return tensor

    def number(self, x):
        return self.bound(torch.full((1, 1, 1, 1), x, device="cuda"))

    def kind_of(self, x):
        kinds = self.frontend.data_type
        return kinds.FLOAT if x.dtype == torch.float32 else kinds.FP8_E4M3

    def call(self, tensors, results):
        for tensor, result in zip(tensors, results, strict=True):
            tensor.set_output(True).set_data_type(self.kind_of(result)).set_dim(list(result.shape))
            tensor.set_stride(list(result.stride()))
            self.pack[tensor] = result
        graph = self.graph
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.frontend.heur_mode.A])
        graph.check_support()
        graph.build_plans()
        workspace = torch.empty(max(1, graph.get_workspace_size()), device="cuda", dtype=torch.uint8)
        return lambda: graph.execute(self.pack, workspace, handle=self.handle)


def numbers(count):
    return [torch.empty(1, 1, 1, 1, device="cuda") for _ in range(count)]


def fp8_call(frontend, q, k, v, o, causal):
    """What runs sdpa_fp8; the graph is kept by it."""
    fp8 = Fp8(frontend)
    made = fp8.graph.sdpa_fp8(*(fp8.bound(x) for x in (q, k, v)), **{name: fp8.number(x) for name, x in SCALES.items()},
                              attn_scale=1 / math.sqrt(q.shape[3]), use_causal_mask=causal, is_inference=True)
    return fp8.call((made[0], *made[2:]), (o, *numbers(2)))


def fp8_backward_call(frontend, tensors, stats, gradients, causal):
    """What runs sdpa_fp8_backward on q, k, v, o and dO."""
    fp8 = Fp8(frontend)
    scales = {name: SCALES.get(name, 1.0) for name in (
        "descale_q", "descale_k", "descale_v", "descale_o", "descale_dO", "descale_s", "descale_dP", "scale_s", "scale_dQ", "scale_dK",
        "scale_dV", "scale_dP")}
    made = fp8.graph.sdpa_fp8_backward(*(fp8.bound(x) for x in tensors), fp8.bound(stats),
                                       **{name: fp8.number(x) for name, x in scales.items()},
                                       attn_scale=1 / math.sqrt(tensors[0].shape[3]), use_causal_mask=causal)
    return fp8.call(made, (*gradients, *numbers(4)))


def bf16_call(op, arrays, causal):
    """What runs "sdpa" or "sdpa_backward" on arrays by the names of its ports."""
    graph = heddle.Graph(io="bf16")
    tensors = {name: graph.tensor(name, x.shape, x.stride(), **({"dtype": "f32"} if name == "stats" else {}))
               for name, x in arrays.items()}
    graph.node(op, **tensors, attn_scale=1 / math.sqrt(arrays["q"].shape[3]), right_bound=0 if causal else None)
    plan = heddle.Plan(graph, "cuda")
    workspace = torch.empty(max(1, plan.workspace_bytes), device="cuda", dtype=torch.uint8)
    addresses = {tensors[name].uid: x.data_ptr() for name, x in arrays.items()}
    stream = torch.cuda.current_stream().cuda_stream
    return lambda: plan.execute(addresses, workspace.data_ptr(), stream)


def truth(q, k, v, causal):
    s = q.double() @ k.double().T / math.sqrt(q.shape[1])
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
    return torch.softmax(s, -1) @ v.double()


def time_backward(b, h, s, d, causal, rounds):
    """TFLOP/s and what is fp8's of bf16's. Statistics are those of the bf16 forward."""
    names = ("q", "k", "v", "o", "d_o")
    tensors = [codes(torch.randn(b, s, h, d, device="cuda") * 10).transpose(1, 2) for _ in names]
    wide = {name: (x.float() * SCALES.get(f"descale_{name}", 1.0)).bfloat16() for name, x in zip(names, tensors, strict=True)}
    wide["stats"] = torch.empty(b, h, s, 1, device="cuda")
    forward = {name: wide[name] for name in ("q", "k", "v", "o", "stats")}
    bf16_call("sdpa", forward, causal)()
    wide |= {f"d_{name}": torch.empty_like(wide[name]) for name in "qkv"}
    runs = {"fp8": fp8_backward_call(heddle.cudnn, tensors, wide["stats"], [torch.empty_like(tensors[0]) for _ in range(3)], causal),
            "bf16": bf16_call("sdpa_backward", wide, causal)}
    times = interleaved_milliseconds(runs, rounds)
    flops = 10 * b * h * s * s * d / (2 if causal else 1)
    print(f"backward d {d} b{b} h{h} S {s} {'causal' if causal else 'full'}: " + ", ".join(
        f"{name} {flops / times[name] / 1e9:.0f} TFLOP/s" for name in runs) + f", fp8 {times['bf16'] / times['fp8']:.2f} of bf16")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--backward", action="store_true", help="time backwards")
    arguments = parser.parse_args()
    print(f"{gpu()}, heddle {heddle.version()}" + ("" if cudnn else "; no cudnn frontend"))
    torch.manual_seed(0)
    for d in arguments.dims:
        for b, h, s in SHAPES:
            for causal in (False, True):
                if arguments.backward:
                    time_backward(b, h, s, d, causal, arguments.rounds)
                    continue
                q, k, v = (codes(torch.randn(b, s, h, d, device="cuda") / scale).transpose(1, 2)
                           for scale in (SCALES["descale_q"], SCALES["descale_k"], SCALES["descale_v"]))
                wide = [(x.float() * SCALES[f"descale_{name}"]).bfloat16() for name, x in (("q", q), ("k", k), ("v", v))]
                results = {"fp8": torch.empty_like(q), "bf16": torch.empty_like(wide[0])}
                runs = {"fp8": fp8_call(heddle.cudnn, q, k, v, results["fp8"], causal),
                        "bf16": bf16_call("sdpa", dict(zip("qkvo", (*wide, results["bf16"]), strict=True)), causal)}
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
