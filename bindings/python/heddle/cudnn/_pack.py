"""A program's arrays bound to a plan: every uid found, what is visible of its memory checked, before anything runs."""

import ctypes
import sys
from collections.abc import Mapping
from operator import itemgetter

from heddle import _checks, _exchange
from heddle.arrays import _memory
from heddle.arrays._dtypes import BYTES, torch_dtype
from heddle.cudnn._handle import DEVICES
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import MEMBERS

_MISSING = object()
_LARGEST = 2**63  # of addresses that are numbers


def _getter(keys):
    """What gives a pack's values for the keys as a tuple, also of one key."""
    return itemgetter(*keys) if len(keys) > 1 else lambda pack: tuple(pack[key] for key in keys)


class Port:
    """A tensor that is bound: as the program and as the library call it, and what its memory has to be."""

    __slots__ = ("by_value", "bytes", "dtype", "elements", "name", "output", "packed", "strides", "tensor", "torch_dtype",
                 "uid")

    def __init__(self, lowered, own_uid, entry, output):
        self.uid, self.tensor = own_uid, lowered.tensors.get(entry["uid"])
        self.name, self.output = entry.get("name", ""), output
        self.dtype, self.strides = entry["dtype"], entry["strides"]
        self.torch_dtype = torch_dtype(self.dtype)
        self.by_value, self.packed = entry.get("pass_by_value", False), "ragged_offset" in entry
        # How far a packed tensor reaches is in its offsets.
        self.elements = 0 if self.packed else _memory.span(entry["dims"], entry["strides"])
        self.bytes = self.elements * BYTES[self.dtype]

    def __str__(self):
        return f"{'output' if self.output else 'input'} {self.name!r} (uid {self.uid})"


class Binding:
    """A plan with what its executions take. device: "cpu", "cuda", or an architecture, whose plan does not run."""

    def __init__(self, lowered, plan, device):
        self.runs, self.device = device in DEVICES, device if device in DEVICES else "cuda"
        self.plan, self.workspace_bytes = plan, plan.workspace_bytes
        described, outputs = lowered.described(), set(plan.outputs)
        order = sorted({*plan.inputs, *outputs}, key=lowered.own_uids.__getitem__)
        self.ports = [Port(lowered, lowered.own_uids[uid], described[uid], uid in outputs) for uid in order]
        self.library_uids = {own: uid for uid, own in lowered.own_uids.items()}
        self.dims = {uid: entry["dims"] for uid, entry in described.items()}
        uids, tensors = [port.uid for port in self.ports], [port.tensor for port in self.ports]
        # One call finds a pack's values, by uid or by tensor; which of the two it was last is tried first.
        self._getters = _getter(uids), _getter(tensors)
        self._find = self._getters[0]
        self._on_gpu = self.device == "cuda"
        self._quick = [(port.torch_dtype, port.elements, self._on_gpu and not port.by_value, port) for port in self.ports]
        self.launch = plan.launcher(order).launch
        # As the ports' types are: of a torch that is loaded by now.
        torch = sys.modules.get("torch")
        self._torch_tensor = torch and torch.Tensor
        expected = [(port.dtype, "cpu" if port.by_value else self.device, port.elements) for port in self.ports]
        self._launch_arrays = _exchange.launcher(plan, order, expected, self.device, self._torch_tensor) if self.runs else None

    def named(self, values, tensor_uids):
        """The pack of values in the order of `tensor_uids`, or of all bound uids, ascending."""
        uids = [port.uid for port in self.ports] if tensor_uids is None else [
            _checks.whole("A uid of tensor_uids", uid) for uid in tensor_uids]
        if len(values) != len(uids):
            raise ValueError(f"The ordered pack has {len(values)} values, expected {len(uids)}, of the uids {uids}.")
        return dict(zip(uids, values, strict=True))

    def launch_arrays(self, pack, workspace, stream):
        """Runs the plan if the pack and the workspace are torch's tensors as expected; else False, and nothing has been done."""
        if self._launch_arrays is None or type(workspace) is not self._torch_tensor:
            return False
        try:
            values = self._find(pack)
        except KeyError:
            return False
        try:
            # The library reads numbers as they lie there.
            if any(map(self._torch_tensor.is_neg, values)):
                return False
        except TypeError:
            return False
        return self._launch_arrays(values, workspace, stream)

    def addresses(self, pack, reaches=None):
        """The addresses in order, and the device that their arrays lie on, None if only addresses are given.

        reaches: where this execution has sizes of its own, uid -> bytes that the tensor reaches over.
        """
        torch_tensor = self._torch_tensor if reaches is None else None
        found, device, elsewhere = [], None, False
        for value, (dtype, elements, on_gpu, port) in zip(self._values(pack), self._quick, strict=True):
            # Torch's tensors are most of all packs; what is not as expected goes the long way to its sentence.
            if (type(value) is torch_tensor and value.dtype is dtype and value.is_cuda is on_gpu
                    and not value.is_neg() and value.numel() >= elements and (value.is_contiguous() or 0 not in value.stride())):
                found.append(value.data_ptr())
                device = self.device
                continue
            if type(value) is int and 0 < value < _LARGEST:
                found.append(value)
                continue
            memory = self._memory(port, value, reaches)
            if memory.device is not None and not port.by_value:
                elsewhere = elsewhere or memory.device != self.device
                if device is None:
                    device = memory.device
                elif device != memory.device:
                    elsewhere = True
            found.append(memory.address)
        return found, self._one_device(pack) if elsewhere else device

    def _values(self, pack):
        """What the pack has for each port, _MISSING for what it lacks."""
        try:
            return self._find(pack)
        except KeyError:
            pass
        for getter in self._getters:
            try:
                values = getter(pack)
            except KeyError:
                continue
            self._find = getter
            return values
        by_uid = (pack.get(port.uid, _MISSING) for port in self.ports)
        return [pack.get(port.tensor, _MISSING) if value is _MISSING else value
                for value, port in zip(by_uid, self.ports, strict=True)]

    def is_exceeded_by(self, shapes):
        """Whether a tensor has a larger dim there than it was planned with."""
        return any(len(dims) == len(self.dims[uid]) and any(n > most for n, most in zip(dims, self.dims[uid], strict=True))
                   for uid, dims in shapes.items())

    def workspace(self, given, least):
        """The address of the program's workspace; of one whose size cannot be seen, that has `least` bytes."""
        if type(given) is self._torch_tensor and (self.workspace_bytes == 0 or (
                given.is_cuda is self._on_gpu and given.nbytes >= self.workspace_bytes and given.is_contiguous())):
            return given.data_ptr() or None
        if type(given) is int and 0 < given < _LARGEST and least >= self.workspace_bytes:
            return given
        memory = _memory.Memory(0) if given is None else _memory.memory_of("workspace", given)
        if self.workspace_bytes == 0:
            return memory.address or None
        if memory.bytes_there is not None and memory.bytes_there < self.workspace_bytes:
            raise ValueError(f"The workspace has {memory.bytes_there} bytes, expected {self.workspace_bytes}.")
        if memory.dims is not None and not _memory.is_packed(memory.dims, memory.strides):
            raise ValueError(f"The workspace is an array of shape {list(memory.dims)} with strides {list(memory.strides)}, "
                             "expected one without gaps.")
        if memory.address == 0:
            raise ValueError(f"The workspace is null, expected {self.workspace_bytes} bytes.")
        if not memory.writable:
            raise ValueError("The workspace is an array that may not be written, expected one that may.")
        if memory.bytes_there is None and least < self.workspace_bytes:
            raise ValueError(f"These sizes take a workspace of {self.workspace_bytes} bytes, which an address does not show it to "
                             f"have: get_workspace_size says {least}; expected an array, or a graph of the largest sizes.")
        if memory.device not in (None, self.device):
            raise ValueError(f"The workspace lies on the device {memory.device}, the pack's tensors on {self.device}, "
                             "expected one device.")
        return memory.address

    def _memory(self, port, value, reaches):
        if value is _MISSING or value is None:
            raise ValueError(f"The pack is missing a buffer for tensor uid {port.uid}, the {port}.")
        memory = _memory.memory_in_place(f"The {port}", value)
        if memory.dtype is not None and memory.dtype != port.dtype:
            given = MEMBERS[memory.dtype].name if memory.dtype in MEMBERS else memory.dtype
            raise ValueError(f"The {port} is bound to an array of {given}, expected {MEMBERS[port.dtype].name}.")
        if port.output and not memory.writable:
            raise ValueError(f"The {port} is bound to an array that may not be written, expected one that may.")
        if memory.strides is not None and min(memory.strides, default=0) < 0:
            raise ValueError(f"The {port} is bound to an array with strides {list(memory.strides)}, expected none below 0.")
        if port.by_value and memory.device == "cuda":
            raise ValueError(f"The {port} is passed by value and bound to an array on a GPU, expected the host's memory.")
        # Sizes of outputs that are not given follow from the inputs'.
        reach = port.bytes if reaches is None else reaches.get(port.uid, 0 if port.output else port.bytes)
        if memory.bytes_there is not None and memory.bytes_there < reach:
            raise ValueError(f"The {port} is bound to memory of {memory.bytes_there} bytes, expected {reach}, which its dims "
                             "and strides reach over.")
        if memory.address == 0:
            raise ValueError(f"The {port} is bound to a null pointer, expected its memory.")
        return memory

    def _one_device(self, pack):
        """Where all arrays of a pack lie."""
        places = {}
        for port in self.ports:
            if port.by_value:
                continue
            value = pack.get(port.uid, _MISSING)
            memory = _memory.memory_of(f"The {port}", pack[port.tensor] if value is _MISSING else value)
            places.setdefault(memory.device, port)
        places.pop(None, None)
        if len(places) > 1:
            (one, first), (other, second) = list(places.items())[:2]
            raise ValueError(f"The {first} lies on the device {one} and the {second} on {other}, expected one device.")
        return next(iter(places))


def check(pack):
    """Raises TypeError for what is no pack by uids or tensors. Keys that the graph does not know are passed over."""
    if not isinstance(pack, Mapping):
        raise TypeError(f"The pack is of type {type(pack).__name__}, expected a dict of uids or tensors to arrays, or a "
                        "list of arrays.")


def own_workspace(size):
    """Memory of the host, and its address."""
    memory = ctypes.create_string_buffer(max(size, 1))
    return memory, ctypes.addressof(memory)


def overrides(binding, uids, shapes, strides):
    """Dims and strides by the library's uids, and bytes that they reach over by the program's.

    A packed tensor may be given the dims and strides of its array, [tokens, heads, columns]. Strides of another rank than
    the dims are those of the array it was made of: the graph's stay.
    """
    lists = []
    for what, given in (("override_uids", uids), ("override_shapes", shapes), ("override_strides", strides)):
        if not isinstance(given, (list, tuple)):
            raise TypeError(f"{what} is of type {type(given).__name__}, expected a list, as override_uids, override_shapes "
                            "and override_strides are given together.")
        lists.append(given)
    if len({len(one) for one in lists}) > 1:
        raise ValueError(f"The overrides have {len(uids)} uids, {len(shapes)} shapes and {len(strides)} strides, expected as "
                         "many of each.")
    made_shapes, made_strides, reaches = {}, {}, {}
    ports = {port.uid: port for port in binding.ports}
    for own, shape, stride in zip(*lists, strict=True):
        own = own._uid if isinstance(own, Tensor) else _checks.whole("A uid of override_uids", own)
        uid = binding.library_uids.get(own)
        if uid is None:
            raise ValueError(f"override_uids has the uid {own}, expected those of tensors of the graph.")
        if uid in made_shapes:
            raise ValueError(f"override_uids has the uid {own} twice, expected it once.")
        shape = _checks.dims("A shape of override_shapes", shape) or ()
        stride = _checks.dims("Strides of override_strides", stride) or ()
        if own in ports and ports[own].packed and len(shape) == 3 == len(binding.dims[uid]) - 1:
            shape, stride = _of_packed_array(own, binding.dims[uid], ports[own].strides, shape, stride)
        made_shapes[uid] = shape
        if len(stride) == len(binding.dims[uid]):
            made_strides[uid] = stride
        port = ports.get(own)
        if port is not None and not port.packed and len(made_shapes[uid]) == len(port.strides):
            reaches[own] = _memory.span(made_shapes[uid], made_strides.get(uid, port.strides)) * BYTES[port.dtype]
        elif port is not None:
            reaches[own] = 0
    return made_shapes, made_strides, reaches


def _of_packed_array(uid, planned, planned_strides, shape, stride):
    """[B, H, S, D] and strides of a packed tensor whose array is [tokens, H, D].

    No sequence has more than all tokens: where those are more than the graph's S, a power of two, so that few plans are made.
    """
    batch, heads, rows, columns = planned
    tokens = shape[0]
    if list(shape[1:]) != [heads, columns]:
        raise ValueError(f"The shape {list(shape)} of override_shapes is that of the packed tensor with uid {uid}, expected "
                         f"[tokens, {heads}, {columns}], of its array, or four dims.")
    if tokens > rows:
        rows = 1 << (tokens - 1).bit_length()
    if len(stride) == 3:
        stride = [planned_strides[0], stride[1], stride[0], stride[2]]
    return [batch, heads, rows, columns], stride
