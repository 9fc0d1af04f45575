"""pygraph: a graph put together op by op, checked, planned and executed."""

import hashlib
import json
from collections.abc import Mapping, Sequence

from heddle import Error, Plan, _checks, version
from heddle.arrays import _memory
from heddle.cudnn import _cuda_graph, _pack, _serial
from heddle.cudnn._attention import Attention
from heddle.cudnn._declined import Declined
from heddle.cudnn._errors import cudnnGraphNotSupportedError, of, translated
from heddle.cudnn._fp8 import Fp8Attention
from heddle.cudnn._handle import DEVICES, Handle, checked, default_device
from heddle.cudnn._kernel_cache import KernelCache
from heddle.cudnn._larger_sizes import LargerSizes
from heddle.cudnn._lowering import lower
from heddle.cudnn._node import Node
from heddle.cudnn._norms import Norms
from heddle.cudnn._plans import Plans, check_index
from heddle.cudnn._pointwise import PointwiseOps
from heddle.cudnn._properties import DeviceProperties
from heddle.cudnn._rope import Rope
from heddle.cudnn._tensor import Tensor, Tensors
from heddle.cudnn._types import (
    MEMBERS,
    NAMES,
    as_data_type,
    build_plan_policy,
    data_type,
    heur_mode,
    member_of,
    tensor_reordering,
)
from heddle.cudnn._types import scalar_type as _scalar_type


class pygraph(Attention, Fp8Attention, Norms, Rope, PointwiseOps, Declined, Plans):
    """A graph, empty at first: its tensors and ops are made by its methods, whose results begin virtual.

    io_data_type, intermediate_data_type, compute_data_type: of bound tensors and of virtual ones that have none, and of
    arithmetic. handle: where it runs; without one on a GPU if there is one, else on the CPU, and on the CPU where the arrays
    of a pack lie there. sm_version (90), or device_property without a handle: the graph is planned, or declined, for such a
    GPU, which need not be here; what executes it is planned again for the device that is. Executions may
    have other sizes whether or not override shapes are asked for.
    """

    def __init__(self, name: str = "", io_data_type: object = None, intermediate_data_type: object = None,
                 compute_data_type: object = None, handle: Handle | None = None, sm_count: int | None = None,
                 sm_version: int | None = None, kernel_cache: object = None, device_property: object = None,
                 is_dynamic_shape_enabled: bool = False, is_override_shape_enabled: bool = False, *,
                 is_cuda_graph_replay_expected: bool = False) -> None:
        super().__init__()
        self._name = _checks.text("name", name)
        self._io, self._intermediate, self._compute = (
            _graphs_type(what, given) for what, given in (
                ("io_data_type", io_data_type), ("intermediate_data_type", intermediate_data_type),
                ("compute_data_type", compute_data_type)))
        self._handle = None if handle is None else checked(handle)
        for what, given in (("sm_count", sm_count), ("sm_version", sm_version)):
            if given is not None and _checks.whole(what, given) < 0:
                raise ValueError(f"{what} is {given}, expected none below 0.")
        for what, given in (("is_dynamic_shape_enabled", is_dynamic_shape_enabled),
                            ("is_override_shape_enabled", is_override_shape_enabled),
                            ("is_cuda_graph_replay_expected", is_cuda_graph_replay_expected)):
            _checks.flag(what, given)
        if kernel_cache is not None and not isinstance(kernel_cache, KernelCache):
            raise TypeError(f"kernel_cache is of type {type(kernel_cache).__name__}, expected what cudnn.create_kernel_cache "
                            "gives.")
        if device_property is not None and not isinstance(device_property, DeviceProperties):
            raise TypeError(f"device_property is of type {type(device_property).__name__}, expected what "
                            "cudnn.create_device_properties gives.")
        self._sm_version = sm_version or (device_property.sm_version if device_property is not None else 0)
        self._tensors, self._nodes = Tensors(), []
        self._lowered = self._bound = self._modes = None
        self._bindings = {}  # device -> Binding
        self._larger = LargerSizes()

    def __repr__(self):
        """The text form, once it is validated."""
        if self._lowered is None:
            return f"<cudnn graph {self._name!r} of {len(self._nodes)} ops, not validated>"
        return self._lowered.graph.text

    # ---- Tensors

    def tensor(self, dim: Sequence[int] | None = None, stride: Sequence[int] | None = None, data_type: object = None,
               is_virtual: bool = False, is_pass_by_value: bool = False, ragged_offset: Tensor | None = None,
               reordering_type: tensor_reordering = tensor_reordering.NONE, name: str = "", uid: int | None = None,
               ragged_offset_multiplier: int = 1) -> Tensor:
        """A tensor that is bound at an execution. Strides, in elements, are row major if left out.

        uid: how packs call it, 0 too; the lowest that is free if none is given, or -1. Raises ValueError for one that is taken.
        """
        made = self._tensors.new(_checks.text("name", name))
        made.set_dim(dim).set_stride(stride).set_data_type(data_type).set_is_virtual(is_virtual)
        made.set_is_pass_by_value(is_pass_by_value).set_ragged_offset(ragged_offset).set_reordering_type(reordering_type)
        made.set_ragged_offset_multiplier(ragged_offset_multiplier)
        if made._dim and made._stride and len(made._dim) != len(made._stride):
            raise ValueError(f"The tensor {name!r} has dim {list(made._dim)} and stride {list(made._stride)}, expected as many "
                             "numbers of each.")
        return made if uid is None or (type(uid) is int and uid == -1) else made.set_uid(uid)

    def tensor_like(self, input: object, name: str = "") -> Tensor:
        """A tensor with the dims, strides and data type of an array, or of another tensor of the graph.

        One number in the host's memory is passed by value.
        """
        made = self._tensors.new(_checks.text("name", name))
        if isinstance(input, Tensor):
            self._tensors.own("input", input)
            made._data_type, made._dim, made._stride = input._data_type, input._dim, input._stride
            made._pass_by_value, made._reordering = input._pass_by_value, input._reordering
            made._ragged_offset, made._multiplier = input._ragged_offset, input._multiplier
            return made
        memory = _memory.memory_of("input", input)
        if memory.dims is None:
            raise TypeError("input is an address, expected an array or a tensor of the graph.")
        if memory.dtype is None or memory.dtype not in MEMBERS:
            raise TypeError("input has a data type that the graph has none for, expected one of "
                            f"{', '.join(kind.name for kind in NAMES)}.")
        made.set_dim(memory.dims or (1,)).set_stride(memory.strides or (1,))
        made._data_type = MEMBERS[memory.dtype]
        made._pass_by_value = memory.device == "cpu" and made._dim is not None and set(made._dim) == {1}
        return made

    def tensor_scalar(self, value: float, scalar_type: object = data_type.FLOAT) -> Tensor:
        """A number that is part of the graph, and in no pack.

        scalar_type: either of cudnn.scalar_type, which leaves FLOAT, or INT32 of an int (INT64 where that needs it); or a
        data type.
        """
        made = self._tensors.new()
        made._constant = _checks.number("value", value)
        if not isinstance(scalar_type, _scalar_type):
            made._data_type = as_data_type("scalar_type", scalar_type)
        elif isinstance(value, int):
            made._data_type = data_type.INT32 if -2**31 <= value < 2**31 else data_type.INT64
        else:
            made._data_type = data_type.FLOAT
        return made

    # ---- From graph to plan

    def validate(self) -> None:
        """Checks every rule and infers what is unset, into the tensors.

        Attention that no engine of the device runs is declined here, by cudnnGraphNotSupportedError, and norms by
        create_execution_plans, as programs expect it of each. What is wrong with an argument is a ValueError.
        """
        if self._lowered is None or self._nodes:
            self._bindings.clear()
            self._bound = None
            self._larger = LargerSizes()
            if self._has_only_other_ops():
                return
            with translated():
                lowered = lower(self)
                lowered.graph.validate()
            lowered.adopt()
            self._lowered = lowered
        if any(node.op.startswith("sdpa") for node in self._nodes):
            self._binding(self._device())

    def build_operation_graph(self, handle: Handle | None = None) -> None:
        """Checks the graph if that has not been done."""
        self._handle = self._handle if handle is None else checked(handle)
        if self._lowered is None:
            self.validate()

    def create_execution_plans(self, modes: Sequence[heur_mode]) -> None:
        """Finds the plan. Any modes are taken: Heddle makes one plan."""
        modes = [modes] if isinstance(modes, heur_mode) else modes
        if not isinstance(modes, (list, tuple)):
            raise TypeError(f"modes is of type {type(modes).__name__}, expected a list of cudnn.heur_mode.")
        for mode in modes:
            member_of(heur_mode, "A mode", mode)
        if not modes:
            raise ValueError("No heuristic mode is given, expected at least one of A, B, FALLBACK and OPENSOURCE.")
        self._refuse_other_ops()
        self._binding(self._device())
        self._modes = list(modes)

    def check_support(self) -> None:
        """Raises cudnnGraphNotSupportedError, with each engine's reason, if no plan is there or a filter is against it."""
        self._refuse_other_ops()
        if self._modes is None:
            raise ValueError("No execution plans were asked for, expected create_execution_plans before.")
        found = self._binding(self._device())
        self._filters.check(found.device, found.workspace_bytes)

    def build_plans(self, policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE) -> None:
        """Makes the plan ready to be executed."""
        member_of(build_plan_policy, "policy", policy)
        self.check_support()
        self._bound = self._binding(self._device())

    def build(self, modes: Sequence[heur_mode] = (heur_mode.A,),
              policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE) -> None:
        """validate, build_operation_graph, create_execution_plans, check_support and build_plans."""
        self.validate()
        self.build_operation_graph()
        self.create_execution_plans(modes)
        self.build_plans(policy)

    def get_execution_plan_count(self) -> int:
        """1 once the plan is found, else 0."""
        return int(self._bound is not None or self._modes is not None)

    def get_workspace_size(self, handle: Handle | None = None, override_uids: Sequence[int] | None = None,
                           override_shapes: Sequence[Sequence[int]] | None = None,
                           override_strides: Sequence[Sequence[int]] | None = None) -> int:
        """Bytes of workspace that execute needs, at these sizes if some are given."""
        binding = self._built()
        if handle is not None:
            binding = self._binding(checked(handle).device)
        if override_uids is None and override_shapes is None and override_strides is None:
            return binding.workspace_bytes
        shapes, strides, _ = _pack.overrides(binding, override_uids, override_shapes, override_strides)
        if not binding.is_exceeded_by(shapes):
            return binding.workspace_bytes
        return self._larger.find_or_make(self._lowered, binding, shapes, strides).workspace_bytes

    def get_workspace_size_plan_at_index(self, index: int, handle: Handle | None = None,
                                         override_uids: Sequence[int] | None = None,
                                         override_shapes: Sequence[Sequence[int]] | None = None,
                                         override_strides: Sequence[Sequence[int]] | None = None) -> int:
        """As get_workspace_size, of index 0."""
        check_index(index)
        return self.get_workspace_size(handle, override_uids, override_shapes, override_strides)

    def query_tensor_attributes_of_uid(self, uid: int) -> Tensor:
        """The tensor of a uid: the program's own, or of a graph that was read one that says what is known of it."""
        uid = _checks.whole("uid", uid)
        if self._lowered is None:
            raise ValueError("The graph has not been validated yet, expected validate before.")
        for ours, own in self._lowered.own_uids.items():
            if own != uid:
                continue
            if ours in self._lowered.tensors:
                return self._lowered.tensors[ours]
            entry = self._lowered.described()[ours]
            found = Tensors().new(entry.get("name", ""), entry.get("virtual", False))
            found._data_type, found._uid = MEMBERS[entry["dtype"]], own
            found._dim, found._stride = tuple(entry["dims"]), tuple(entry["strides"])
            found._pass_by_value = entry.get("pass_by_value", False)
            return found
        raise ValueError(f"The graph has no tensor with uid {uid}.")

    # ---- Executions

    def execute(self, variant_pack: Mapping | Sequence, workspace: object = None, handle: Handle | None = None,
                override_uids: Sequence[int] | None = None, override_shapes: Sequence[Sequence[int]] | None = None,
                override_strides: Sequence[Sequence[int]] | None = None,
                tensor_uids: Sequence[int] | None = None) -> None:
        """Runs the plan on the pack's memory; on a GPU it returns when the work is queued on the handle's stream.

        variant_pack: uids or tensors to arrays (of torch, NumPy, JAX, CuPy, with DLPack) or addresses; what the graph does not
        know is passed over. Or a list of them, in the order of `tensor_uids`, else of all bound uids, ascending. workspace:
        an array of get_workspace_size bytes, or its address. override_...: dims and strides that tensors have this time; outputs
        follow. No larger than the graph's they compile nothing; larger ones take a plan, and perhaps a workspace, of their own.

        Raises ValueError, before anything is written, for a uid that the pack lacks and for memory that is visibly wrong.
        """
        binding = self._bound or self._built()
        if handle is None:
            handle = self._handle
        elif type(handle) is not Handle or handle.destroyed:
            checked(handle)
        if type(variant_pack) is dict and override_uids is override_shapes is override_strides is tensor_uids is None:
            # Most executions: the sizes and the device that were planned for.
            if binding.runs and (handle is None or handle.device == binding.device):
                stream = None if handle is None else handle.stream or None
                try:
                    if binding.launch_arrays(variant_pack, workspace, stream):
                        return
                    addresses, device = binding.addresses(variant_pack)
                    if device is None or device == binding.device:
                        binding.launch(addresses, binding.workspace(workspace, binding.workspace_bytes), stream)
                        return
                except Error as error:
                    raise of(error) from None
        if isinstance(variant_pack, (list, tuple)):
            variant_pack = binding.named(variant_pack, tensor_uids)
        elif tensor_uids is not None:
            raise TypeError("tensor_uids is given beside a pack with uids of its own, expected a list of arrays.")
        pack, shapes, strides, reaches = variant_pack, None, None, None
        if type(pack) is not dict:
            _pack.check(pack)
        if not (override_uids is None and override_shapes is None and override_strides is None):
            shapes, strides, reaches = _pack.overrides(binding, override_uids, override_shapes, override_strides)
        addresses, device = binding.addresses(pack, reaches)
        if device is None:
            device = binding.device if handle is None else handle.device
        if handle is not None and device != handle.device:
            if device == "cuda":
                raise ValueError("The pack's arrays lie on a GPU and the handle is of the CPU, expected one device.")
            handle = None
        own_memory, planned = None, binding
        if device != planned.device or not planned.runs:
            binding = self._binding(device)
            addresses, _ = binding.addresses(pack, reaches)
        if shapes and binding.is_exceeded_by(shapes):
            binding = self._larger.find_or_make(self._lowered, binding, shapes, strides)
            shapes = strides = None
            addresses, _ = binding.addresses(pack)
        larger = binding.workspace_bytes > planned.workspace_bytes
        if device == planned.device and not (device == "cpu" and larger):
            scratch = binding.workspace(workspace, planned.workspace_bytes)
        else:
            # The program's workspace is that of the graph's own sizes, or a GPU's, and the arrays lie on the CPU.
            if device == planned.device:
                planned.workspace(workspace, planned.workspace_bytes)
            own_memory, scratch = _pack.own_workspace(binding.workspace_bytes)
        try:
            binding.launch(addresses, scratch, handle.stream or None if handle is not None else None, shapes, strides)
        except Error as error:
            raise of(error) from None
        del own_memory

    def execute_plan_at_index(self, variant_pack: Mapping | Sequence, workspace: object, index: int,
                              handle: Handle | None = None, override_uids: Sequence[int] | None = None,
                              override_shapes: Sequence[Sequence[int]] | None = None,
                              override_strides: Sequence[Sequence[int]] | None = None) -> None:
        """As execute, of index 0."""
        check_index(index)
        self.execute(variant_pack, workspace, handle, override_uids, override_shapes, override_strides)

    def populate_cuda_graph(self, handle: Handle, variant_pack: Mapping | Sequence, workspace: object,
                            cuda_graph: int) -> None:
        """Adds the launches of an execution to a CUgraph of the program's, given by its number, in place of running them.

        The pack's memory and the workspace have to be there when the CUDA graph runs.
        """
        self._queue_into(_cuda_graph.populate, handle, variant_pack, workspace, cuda_graph)

    def update_cuda_graph(self, handle: Handle, variant_pack: Mapping | Sequence, workspace: object, cuda_graph: int) -> None:
        """Gives a CUgraph that populate_cuda_graph filled this pack's memory and this workspace."""
        self._queue_into(_cuda_graph.update, handle, variant_pack, workspace, cuda_graph)

    # ---- As bytes

    def serialize(self) -> bytes:
        """The graph, for deserialize: plans are made again where it is read, of kernels that are kept."""
        if self._lowered is None:
            self.validate()
        self._refuse_other_ops()
        return _serial.write(self._lowered)

    def deserialize(self, *arguments: object, handle: Handle | None = None, data: object = None,
                    handle_: Handle | None = None, pyobj: object = None, enforce_precompiled: bool = False) -> None:
        """deserialize(data) or deserialize(handle, data): becomes the graph that serialize gave, and builds its plan.

        handle_ and pyobj are other names of handle and data. enforce_precompiled is declined: plans are made again.
        """
        handle, data = handle if handle_ is None else handle_, data if pyobj is None else pyobj
        if len(arguments) > 2 or (len(arguments) == 2 and handle is not None) or (arguments and data is not None):
            raise TypeError("deserialize takes a handle, which may be left out, and the bytes that serialize gave.")
        if _checks.flag("enforce_precompiled", enforce_precompiled):
            raise cudnnGraphNotSupportedError("enforce_precompiled is True, expected False: a serialized graph holds no kernels, "
                                              "its plan is made where it is read.")
        if arguments:
            data = arguments[-1]
            handle = arguments[0] if len(arguments) == 2 else handle
        self._handle = self._handle if handle is None else checked(handle)
        if self._nodes:
            raise ValueError("The graph has ops already, expected an empty one to read another into.")
        with translated():
            self._lowered = _serial.read(data)
        self._bindings.clear()
        self.create_execution_plans([heur_mode.A])
        self.build_plans()

    def key(self) -> int:
        """Equal for graphs that compute the same by the same plan, whatever the names of their tensors."""
        if self._lowered is None:
            self.validate()
        self._refuse_other_ops()
        form = json.loads(self._lowered.graph.text)
        for named in (form, *form["tensors"], *form["nodes"]):
            named.pop("name", None)
        told = form, sorted(self._lowered.own_uids.items()), version(), self._device(), str(self._filters)
        return int.from_bytes(hashlib.sha256(json.dumps(told).encode()).digest()[:8], "little", signed=True)

    # ---- Inside

    def _queue_into(self, action, handle, variant_pack, workspace, cuda_graph):
        if checked(handle).device != "cuda":
            raise ValueError("The handle is of the CPU, expected one of a GPU, whose launches a CUDA graph holds.")
        cuda_graph = _checks.whole("cuda_graph", cuda_graph)
        if cuda_graph <= 0:
            raise ValueError(f"cuda_graph is {cuda_graph}, expected a CUgraph's number.")

        def queue(stream):
            capturing = Handle("cuda")
            capturing.stream = stream
            self.execute(variant_pack, workspace, capturing)

        action(cuda_graph, queue)

    def _add(self, node):
        self._nodes.append(node)
        self._lowered = self._bound = self._modes = None
        self._bindings.clear()

    def _pointwise(self, op):
        self._add(Node("pointwise", op.name, {"mode": op.mode, **dict(zip("abc", op.inputs, strict=False)), "y": op.output,
                                              "axis": op.axis, **op.numbers}))

    def _device(self):
        """Where it is planned for, an architecture if one is named and no handle is given."""
        if self._handle is not None:
            return self._handle.device
        if not self._sm_version:
            return default_device()
        return "sm_90a" if self._sm_version == 90 else f"sm_{self._sm_version}"

    def _has_only_other_ops(self):
        """Whether it has ops that are declined, and no attention among them: create_execution_plans says so."""
        return any(node.declined for node in self._nodes) and not any(
            node.declined and node.op.startswith("sdpa") for node in self._nodes)

    def _refuse_other_ops(self):
        for node in self._nodes:
            if node.declined:
                raise cudnnGraphNotSupportedError(node.declined)

    def _binding(self, device):
        if self._lowered is None:
            raise ValueError("The graph has not been validated, expected validate and build_operation_graph before.")
        if device not in self._bindings:
            try:
                plan = Plan(self._lowered.graph, device)
            except Error as error:
                # The graph is valid: the name of an architecture is not one that kernels run on.
                invalid = device not in DEVICES and error.status == "INVALID_VALUE"
                raise cudnnGraphNotSupportedError(str(error)) if invalid else of(error) from None
            self._bindings[device] = _pack.Binding(self._lowered, plan, device)
        return self._bindings[device]

    def _built(self):
        if self._bound is None:
            raise ValueError("The graph has no plan yet, expected build_plans before.")
        return self._bound


def _graphs_type(what, given):
    kind = as_data_type(what, given)
    if kind not in NAMES:
        raise cudnnGraphNotSupportedError(f"{what} is {kind.name}, expected one of {', '.join(one.name for one in NAMES)}.")
    return kind
