defmodule Heddle.Native do
  @moduledoc """
  The functions of the native library on plain binaries, in the machine's byte order.

  `forward_with_logsumexp/8` and `backward_f32/11`, also by the names `forward_with_logsumexp_nif/8` and
  `backward_f32_nif/11`, are attention of f32 where queries and keys have as many heads and one length:
  `q`, `k`, `v`, `output` and their gradients are `[batch, seq_len, num_heads, head_dim]`, the natural
  log-sum-exp of each row's scores is `[batch, num_heads, seq_len]`, the scale is `1 / sqrt(head_dim)`.
  `Heddle.FlashAttention` has everything else.

  What plans, or computes for more than some microseconds, runs on dirty schedulers. Binaries are read where they lie;
  every failure is `{:error, %Heddle.Error{}}`.
  """

  @on_load :load

  @type failure :: {:error, Heddle.Error.t()}
  @typedoc "A plan, freed when nothing holds it."
  @type plan :: reference
  @typedoc "A tensor's elements in memory of a device, freed when nothing holds them."
  @type memory :: reference
  @type device :: :cpu | :cuda
  @typedoc "Where results are made: as binaries, or as memory of the plan's device."
  @type place :: :binaries | :memory
  @typedoc "A tensor that a plan binds: its uid, name, type and dims."
  @type port_tensor :: {integer, String.t(), Heddle.Tensor.type(), tuple}

  @doc false
  def load do
    path = :filename.join(:code.priv_dir(:heddle), ~c"heddle_nif")
    :erlang.load_nif(path, 0)
  end

  @doc "The library's version."
  @spec version() :: String.t()
  def version, do: :erlang.nif_error(:not_loaded)

  @doc "How many plans there are: those that are kept by their text, 1024 at most, and those that a term holds."
  @spec live_plans() :: non_neg_integer
  def live_plans, do: :erlang.nif_error(:not_loaded)

  @doc "How much memory of devices terms hold: the number of tensors, and their bytes."
  @spec live_memory() :: {non_neg_integer, non_neg_integer}
  def live_memory, do: :erlang.nif_error(:not_loaded)

  @doc "A copy of a binary on a device."
  @spec upload(binary, device) :: {:ok, memory} | failure
  def upload(_data, _device), do: :erlang.nif_error(:not_loaded)

  @doc "A copy of a device's memory as a binary; waits for what computes it."
  @spec download(memory) :: {:ok, binary} | failure
  def download(_memory), do: :erlang.nif_error(:not_loaded)

  @doc "Where the memory is, and its bytes; `:host` is another library's that `borrow/4` gave, which stands for a binary."
  @spec memory(memory) :: {:ok, {device | :host, non_neg_integer}} | failure
  def memory(_memory), do: :erlang.nif_error(:not_loaded)

  @doc "The memory's address, for a library that is to read it; whoever has it holds the memory as well."
  @spec address(memory) :: {:ok, pos_integer} | failure
  def address(_memory), do: :erlang.nif_error(:not_loaded)

  @doc """
  Memory of another library as an input, where it lies. `owner`, a term that keeps it there, is held as long. That so many
  bytes lie at the address is taken at its word: a wrong one ends the virtual machine.
  """
  @spec borrow(pos_integer, pos_integer, device, term) :: {:ok, memory} | failure
  def borrow(_address, _bytes, _device, _owner), do: :erlang.nif_error(:not_loaded)

  @doc "The plan of a graph's text, kept for the next call with the same one."
  @spec plan(String.t(), device) :: {:ok, plan} | failure
  def plan(_text, _device), do: :erlang.nif_error(:not_loaded)

  @doc "What the plan reads and what it writes, each by ascending uid; the dims of an output as they lie in memory."
  @spec plan_ports(plan) :: {:ok, {[port_tensor], [port_tensor]}} | failure
  def plan_ports(_plan), do: :erlang.nif_error(:not_loaded)

  @doc "The bytes of memory that an execution works in."
  @spec plan_workspace(plan) :: {:ok, non_neg_integer} | failure
  def plan_workspace(_plan), do: :erlang.nif_error(:not_loaded)

  @doc """
  Registers the custom call `heddle` for CPUs and CUDA with the XLA of a library that the process has loaded, by its name or
  path; `Heddle.Defn` does so with EXLA's. Once is enough.
  """
  @spec register_xla(String.t()) :: :ok | failure
  def register_xla(_library), do: :erlang.nif_error(:not_loaded)

  @doc "The plan for people: a line for each step."
  @spec plan_description(plan) :: {:ok, String.t()} | failure
  def plan_description(_plan), do: :erlang.nif_error(:not_loaded)

  @doc """
  Runs the plan on tensors by their uids, each a binary or memory of the plan's device; gives its outputs by ascending
  uid. Uids that it does not bind are ignored.
  """
  @spec execute(plan, [{integer, binary | memory}], place) :: {:ok, [binary] | [memory]} | failure
  def execute(_plan, _inputs, _place), do: :erlang.nif_error(:not_loaded)

  @doc "`plan/2` and `execute/3` in one call."
  @spec run(String.t(), device, [{integer, binary | memory}], place) :: {:ok, [binary] | [memory]} | failure
  def run(_text, _device, _inputs, _place), do: :erlang.nif_error(:not_loaded)

  @doc "Attention: `{:ok, output, logsumexp}`."
  @spec forward_with_logsumexp(
          binary,
          binary,
          binary,
          pos_integer,
          pos_integer,
          pos_integer,
          pos_integer,
          boolean
        ) ::
          {:ok, binary, binary} | failure
  def forward_with_logsumexp(_q, _k, _v, _batch, _seq_len, _num_heads, _head_dim, _causal),
    do: :erlang.nif_error(:not_loaded)

  @doc "See `forward_with_logsumexp/8`."
  @spec forward_with_logsumexp_nif(
          binary,
          binary,
          binary,
          pos_integer,
          pos_integer,
          pos_integer,
          pos_integer,
          boolean
        ) ::
          {:ok, binary, binary} | failure
  def forward_with_logsumexp_nif(_q, _k, _v, _batch, _seq_len, _num_heads, _head_dim, _causal),
    do: :erlang.nif_error(:not_loaded)

  @doc "The gradients of attention: `{:ok, dq, dk, dv}`."
  @spec backward_f32(
          binary,
          binary,
          binary,
          binary,
          binary,
          binary,
          pos_integer,
          pos_integer,
          pos_integer,
          pos_integer,
          boolean
        ) :: {:ok, binary, binary, binary} | failure
  def backward_f32(
        _d_out,
        _q,
        _k,
        _v,
        _output,
        _logsumexp,
        _batch,
        _seq_len,
        _num_heads,
        _head_dim,
        _causal
      ),
      do: :erlang.nif_error(:not_loaded)

  @doc "See `backward_f32/11`."
  @spec backward_f32_nif(
          binary,
          binary,
          binary,
          binary,
          binary,
          binary,
          pos_integer,
          pos_integer,
          pos_integer,
          pos_integer,
          boolean
        ) :: {:ok, binary, binary, binary} | failure
  def backward_f32_nif(
        _d_out,
        _q,
        _k,
        _v,
        _output,
        _logsumexp,
        _batch,
        _seq_len,
        _num_heads,
        _head_dim,
        _causal
      ),
      do: :erlang.nif_error(:not_loaded)
end
