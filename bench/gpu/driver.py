"""The CUDA driver through ctypes: modules, tensor maps, launches on torch's current stream."""

import ctypes as ct

import torch

from timing import interleaved_milliseconds  # noqa: F401

_cuda = ct.CDLL("libcuda.so.1")

_SHARED_BYTES_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_TENSOR_MAP_DTYPE = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
_SWIZZLE_128B = 3
_L2_PROMOTION_256B = 3


def check(code, what):
    if code != 0:
        text = ct.c_char_p()
        _cuda.cuGetErrorString(code, ct.byref(text))
        raise RuntimeError(f"{what}: {text.value.decode() if text.value else code}")


class Kernel:
    """One kernel of a cubin, with the launch shape the cubin itself declares."""

    def __init__(self, cubin: bytes, name: str):
        torch.cuda.current_stream()  # makes torch's context current
        torch.zeros(1, device="cuda")
        self.module = ct.c_void_p()
        self.others = {}
        check(_cuda.cuModuleLoadData(ct.byref(self.module), cubin), f"loading {name}")
        self.function = ct.c_void_p()
        check(_cuda.cuModuleGetFunction(ct.byref(self.function), self.module, name.encode()), name)
        address, size = ct.c_uint64(), ct.c_size_t()
        check(
            _cuda.cuModuleGetGlobal_v2(
                ct.byref(address), ct.byref(size), self.module, f"{name}_launch".encode()
            ),
            f"{name}_launch",
        )
        values = (ct.c_int32 * (size.value // 4))()
        check(_cuda.cuMemcpyDtoH_v2(values, address, size), f"{name}_launch")
        self.threads, self.shared_bytes, self.tile_m, self.tile_n = values[:4]
        check(
            _cuda.cuFuncSetAttribute(self.function, _SHARED_BYTES_ATTRIBUTE, self.shared_bytes),
            f"{name}: {self.shared_bytes} bytes of shared memory",
        )

    def launch(self, blocks, arguments: ct.Structure, name=None, threads=None, shared_bytes=None):
        """Runs the kernel, or another one (`name`) of its module."""
        function = self.function
        if name is not None:
            function = self.others.get(name)
            if function is None:
                function = self.others[name] = ct.c_void_p()
                check(_cuda.cuModuleGetFunction(ct.byref(function), self.module, name.encode()), name)
        parameters = (ct.c_void_p * 1)(ct.cast(ct.pointer(arguments), ct.c_void_p))
        stream = ct.c_void_p(torch.cuda.current_stream().cuda_stream)
        check(
            _cuda.cuLaunchKernel(
                function, *(blocks if isinstance(blocks, tuple) else (blocks, 1, 1)), threads or self.threads, 1, 1,
                self.shared_bytes if shared_bytes is None else shared_bytes, stream, parameters, None,
            ),
            "launch",
        )


def tensor_map(tensor: torch.Tensor, box_rows: int, box_columns: int = 64) -> bytes:
    """A (batch, head, row, column) tensor of any strides as a rank-4 map, innermost dim first."""
    assert tensor.dim() == 4 and tensor.stride(3) == 1
    size = tensor.element_size()
    dims = (ct.c_uint64 * 4)(*[tensor.shape[i] for i in (3, 2, 1, 0)])
    strides = (ct.c_uint64 * 3)(*[tensor.stride(i) * size for i in (2, 1, 0)])
    box = (ct.c_uint32 * 4)(box_columns, box_rows, 1, 1)
    ones = (ct.c_uint32 * 4)(1, 1, 1, 1)
    raw = ct.create_string_buffer(128 + 64)
    aligned = (ct.addressof(raw) + 63) & ~63
    check(
        _cuda.cuTensorMapEncodeTiled(
            ct.c_void_p(aligned), _TENSOR_MAP_DTYPE[tensor.dtype], 4,
            ct.c_void_p(tensor.data_ptr()), dims, strides, box, ones, 0, _SWIZZLE_128B,
            _L2_PROMOTION_256B, 0,
        ),
        f"tensor map of shape {tuple(tensor.shape)}, strides {tensor.stride()}",
    )
    return ct.string_at(aligned, 128)
