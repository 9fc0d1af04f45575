defmodule Heddle.FlashAttention do
  @moduledoc """
  Attention as one fused kernel, forward and backward, linear in memory (Dao, "FlashAttention-2", 2023).

  `q` is `{batch, length, heads, dim}`, `k` `{batch, kv_length, kv_heads, dim}` and `v`
  `{batch, kv_length, kv_heads, v_dim}`, all of one type, f32, bf16 or f16; `heads` is a multiple of `kv_heads`, whose
  keys so many heads of queries share. The result is `{batch, length, heads, v_dim}` of the same type, the natural
  log-sum-exp of each row's scores f32 `{batch, heads, length}`. Sums are taken in f32.

      iex> x = Heddle.Tensor.from_list!(Enum.map(1..12, &(&1 / 10)), {1, 3, 1, 4}, :f32)
      iex> {:ok, output, logsumexp} = Heddle.FlashAttention.forward_with_states(x, x, x)
      iex> {output.shape, logsumexp.shape}
      {{1, 3, 1, 4}, {1, 1, 3}}
      iex> output |> Heddle.Tensor.to_list() |> Enum.take(4) |> Enum.map(&Float.round(&1, 4))
      [0.1, 0.2, 0.3, 0.4]

  A score is `scale` times the dot of a query and a key; then come `soft_cap`, `mask`, `bias` and `alibi` in this order.

  ## Options

    * `causal` - `true`, the default, or `:top_left`: query i sees keys up to i. `:bottom_right`: up to
      i + kv_length - length, or with lengths of an entry up to i + its kv_length - its length. `false`: every key.
    * `window` - query i sees keys i - left to i + right, both shifted as causal is; `{left, right}`, nil no limit, or
      one integer for both.
    * `scale` - a number, 1 / sqrt(dim) by default.
    * `kv_heads` - how many heads k is to have; another number is refused.
    * `mask` - boolean or u8 `{batch, heads, length, kv_length}`, or 1 in place of any of these: 0 hides a key.
    * `bias` - f32 or q's type, of such a shape: added.
    * `q_lengths`, `kv_lengths` - a list of integers, or an i32 tensor `{batch}`: rows from the length on are absent. Their
      results are 0.
    * `offsets` - sequences of many lengths, packed: q is `{tokens, heads, dim}`, k and v likewise, and entry i has the
      tokens from `offsets[i]` to before `offsets[i + 1]`; a list or an integer tensor, or `{q's, k's}`. Everything else is
      as for a batch of these entries, `length` and `kv_length` the longest. The log-sum-exp is `{tokens, heads}`.
    * `soft_cap` - c makes of a score x c * tanh(x / c).
    * `sinks` - f32 `{heads}`: one more logit in each row's denominator, without a value.
    * `alibi` - `true` adds slope * (key - query), the slopes those of Press et al., 2022; with a causal mask only.
    * `dropout`, `seed`, `offset` - each weight is dropped with the probability `dropout`, the rest scaled by
      1 / (1 - dropout). `seed` and `offset` (0 by default) are integers; equal ones drop the same. Forward and backward
      have to be given the same.
    * `rope` - a `Heddle.Rope`: q and k are rotated, row p of each by row p of the table. Gradients are those of q and k
      as they are given.
    * `device` - where the call runs, `:cpu` or `:cuda`; by default where resident tensors (`Heddle.Tensor.upload/2`) are,
      else `:cpu`. Resident tensors have to be there; those that are not resident are brought, at each call.

  A row that sees no key has an output of 0 and no gradients; its log-sum-exp is minus infinity, or that of its sink alone. One
  past its entry's length has minus infinity.

  Everything that is wrong is `{:error, %Heddle.Error{}}`; the bang forms raise it. Where q is an `Nx.Tensor` or a resident
  tensor, results are such. Several processes may call at once; a call of more than some microseconds runs on a dirty
  scheduler and uses all cores.
  """

  alias Heddle.{Call, Error, Tensor}
  alias Heddle.FlashAttention.{Graphs, Options, Packing, Sizes}

  @type offsets :: [non_neg_integer] | Tensor.like()
  @type option ::
          {:causal, boolean | :top_left | :bottom_right}
          | {:window, non_neg_integer | {non_neg_integer | nil, non_neg_integer | nil} | nil}
          | {:scale, number | nil}
          | {:kv_heads, pos_integer | nil}
          | {:mask, Tensor.like() | nil}
          | {:bias, Tensor.like() | nil}
          | {:q_lengths, [non_neg_integer] | Tensor.like() | nil}
          | {:kv_lengths, [non_neg_integer] | Tensor.like() | nil}
          | {:offsets, offsets | {offsets, offsets} | nil}
          | {:soft_cap, number | nil}
          | {:sinks, Tensor.like() | nil}
          | {:alibi, boolean}
          | {:dropout, number | nil}
          | {:seed, integer | nil}
          | {:offset, integer | nil}
          | {:rope, Heddle.Rope.t() | nil}
          | {:device, Tensor.device() | nil}
  @type backward_option :: option | {:gradients, [:bias | :sinks]} | {:whole_rows, boolean}

  @doc "The output of attention."
  @spec forward(Tensor.like(), Tensor.like(), Tensor.like(), [option]) ::
          {:ok, Tensor.like()} | {:error, Error.t()}
  def forward(q, k, v, options \\ []) do
    with {:ok, output, _logsumexp} <- forward_with_states(q, k, v, options), do: {:ok, output}
  end

  @doc "The output of attention and the log-sum-exp of its rows, sinks included, which `backward/7` takes."
  @spec forward_with_states(Tensor.like(), Tensor.like(), Tensor.like(), [option]) ::
          {:ok, Tensor.like(), Tensor.like()} | {:error, Error.t()}
  def forward_with_states(q, k, v, options \\ []) do
    with {:ok, rows, sizes} <- rows(q, k, v, options),
         {:ok, options} <- Options.new(options, sizes, :forward),
         {:ok, made} <- Call.run(Graphs.forward(rows, sizes, options), q, options.device) do
      [output, logsumexp] = made
      {:ok, output, logsumexp}
    end
  end

  @doc """
  The gradients `{:ok, dq, dk, dv}`, of the shapes and the type of q, k and v.

  `d_out` is the gradient by the output; `output` and `logsumexp` are what `forward_with_states/4` gave for the same q, k,
  v and options. Two more options:

    * `gradients` - a list of `:bias` and `:sinks`: the result is `{:ok, dq, dk, dv, more}` then, `more` a map with the
      gradient of each, f32 of its shape.
    * `whole_rows` - `true`, the default, says that the log-sum-exp is of these keys and no others, as the forward pass
      leaves it; what rounding of the output leaves in dq beside the truth is then taken off. `false` where k and v
      are a part of the keys whose log-sum-exp is given.

  The log-sum-exp is an f32: of scores of a thousand it holds four digits, and so do gradients.
  """
  @spec backward(
          Tensor.like(),
          Tensor.like(),
          Tensor.like(),
          Tensor.like(),
          Tensor.like(),
          Tensor.like(),
          [backward_option]
        ) ::
          {:ok, Tensor.like(), Tensor.like(), Tensor.like()}
          | {:ok, Tensor.like(), Tensor.like(), Tensor.like(), %{(:bias | :sinks) => Tensor.like()}}
          | {:error, Error.t()}
  def backward(d_out, q, k, v, output, logsumexp, options \\ []) do
    with {:ok, rows, sizes} <- rows(q, k, v, options),
         {:ok, d_o} <- result(d_out, "d_out", Graphs.out_shape(rows), sizes.type, sizes.packing),
         {:ok, o} <- result(output, "output", Graphs.out_shape(rows), sizes.type, sizes.packing),
         {:ok, lse} <- statistics(logsumexp, sizes),
         {:ok, options} <- Options.new(options, sizes, :backward),
         call = Graphs.backward(Map.merge(rows, %{o: o, d_o: d_o}), sizes, lse, options),
         {:ok, made} <- Call.run(call, q, options.device) do
      [dq, dk, dv | more] = made

      # Of results the bias's comes first.
      case Enum.filter([:bias, :sinks], &(&1 in options.gradients)) do
        [] -> {:ok, dq, dk, dv}
        names -> {:ok, dq, dk, dv, Map.new(Enum.zip(names, more))}
      end
    end
  end

  @doc "As `forward/4`; raises the error."
  @spec forward!(Tensor.like(), Tensor.like(), Tensor.like(), [option]) :: Tensor.like()
  def forward!(q, k, v, options \\ []), do: Error.bang(forward(q, k, v, options))

  @doc "As `forward_with_states/4`, `{output, logsumexp}`; raises the error."
  @spec forward_with_states!(Tensor.like(), Tensor.like(), Tensor.like(), [option]) ::
          {Tensor.like(), Tensor.like()}
  def forward_with_states!(q, k, v, options \\ []) do
    case forward_with_states(q, k, v, options) do
      {:ok, output, logsumexp} -> {output, logsumexp}
      {:error, error} -> raise error
    end
  end

  @doc "As `backward/7`, `{dq, dk, dv}` or `{dq, dk, dv, more}`; raises the error."
  @spec backward!(
          Tensor.like(),
          Tensor.like(),
          Tensor.like(),
          Tensor.like(),
          Tensor.like(),
          Tensor.like(),
          [backward_option]
        ) ::
          {Tensor.like(), Tensor.like(), Tensor.like()}
          | {Tensor.like(), Tensor.like(), Tensor.like(), %{(:bias | :sinks) => Tensor.like()}}
  def backward!(d_out, q, k, v, output, logsumexp, options \\ []) do
    case backward(d_out, q, k, v, output, logsumexp, options) do
      {:ok, dq, dk, dv} -> {dq, dk, dv}
      {:ok, dq, dk, dv, more} -> {dq, dk, dv, more}
      {:error, error} -> raise error
    end
  end

  defp rows(q, k, v, options) do
    with {:ok, packing} <- Packing.new(options),
         {:ok, q} <- row(q, "q", packing),
         {:ok, k} <- row(k, "k", packing),
         {:ok, v} <- row(v, "v", packing),
         {:ok, sizes} <- Sizes.new(q, k, v),
         {:ok, sizes} <- Packing.sizes(sizes, packing) do
      {:ok, %{q: q, k: k, v: v}, sizes}
    end
  end

  defp row(given, name, packing) do
    with {:ok, tensor} <- Tensor.from(given, name), do: Packing.as_batch(tensor, name, packing)
  end

  # A gradient or a result of the forward pass.
  defp result(given, name, shape, type, packing) do
    with {:ok, tensor} <- row(given, name, packing),
         :ok <- Sizes.shaped(tensor, name, shape, type),
         do: {:ok, tensor}
  end

  defp statistics(given, sizes) do
    with {:ok, tensor} <- Tensor.from(given, "logsumexp"),
         :ok <- Sizes.shaped(tensor, "logsumexp", Graphs.statistics_shape(sizes), :f32),
         do: {:ok, tensor}
  end
end
