"""torch's scaled_dot_product_attention on the CPU."""

import torch
from torch.nn.functional import scaled_dot_product_attention

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def start(threads):
    torch.set_num_threads(threads)


def prepare(cell, query, key, value, gradient):
    tensors = [torch.from_numpy(array).to(DTYPES[cell.dtype]) for array in (query, key, value)]
    gradient = torch.from_numpy(gradient).to(DTYPES[cell.dtype])
    last = {}

    def forward():
        last["output"] = scaled_dot_product_attention(*tensors, is_causal=cell.causal)

    def forward_and_backward():
        forward()
        last["gradients"] = torch.autograd.grad(last["output"], tensors, gradient)

    for tensor in tensors:
        tensor.requires_grad_(cell.backward)
    return (forward_and_backward if cell.backward else forward,
            lambda: last["output"].detach().float().numpy())
