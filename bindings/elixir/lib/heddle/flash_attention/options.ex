defmodule Heddle.FlashAttention.Options do
  @moduledoc false
  # The options of a call, checked against the shapes of q, k and v.

  alias Heddle.FlashAttention.Packing
  alias Heddle.{Error, Rope, Tensor}

  @names [
    :causal,
    :window,
    :scale,
    :kv_heads,
    :mask,
    :bias,
    :q_lengths,
    :kv_lengths,
    :offsets,
    :soft_cap,
    :sinks,
    :alibi,
    :dropout,
    :seed,
    :offset,
    :rope,
    :device
  ]
  @of_backward [:gradients, :whole_rows]
  # Further than any two rows are apart, and within what a graph takes.
  @furthest 0x7FFFFFFE

  defstruct causal: true,
            window: {nil, nil},
            scale: nil,
            mask: nil,
            bias: nil,
            q_lengths: nil,
            kv_lengths: nil,
            offsets: nil,
            soft_cap: nil,
            sinks: nil,
            alibi: false,
            dropout: nil,
            seed: nil,
            offset: nil,
            rope: nil,
            device: nil,
            gradients: [],
            whole_rows: true

  @type t :: %__MODULE__{
          causal: boolean | :top_left | :bottom_right,
          window: {non_neg_integer | nil, non_neg_integer | nil},
          scale: float | nil,
          mask: Tensor.t() | nil,
          bias: Tensor.t() | nil,
          q_lengths: Tensor.t() | nil,
          kv_lengths: Tensor.t() | nil,
          offsets: %{q: Tensor.t(), kv: Tensor.t()} | nil,
          soft_cap: float | nil,
          sinks: Tensor.t() | nil,
          alibi: boolean,
          dropout: float | nil,
          seed: Tensor.t() | nil,
          offset: Tensor.t() | nil,
          rope: Rope.t() | nil,
          device: Tensor.device() | nil,
          gradients: [:bias | :sinks],
          whole_rows: boolean
        }

  @doc "`sizes` has `batch`, `length`, `kv_length`, `heads`, `kv_heads`, `dim` and `type`."
  @spec new(keyword, map, :forward | :backward) :: {:ok, t} | {:error, Error.t()}
  def new(options, sizes, pass) do
    allowed = if pass == :backward, do: @names ++ @of_backward, else: @names

    with :ok <- Heddle.Options.known(options, allowed),
         {:ok, checked} <- check_each(options, sizes),
         :ok <- together(checked) do
      {:ok, complete(checked, sizes)}
    end
  end

  defp check_each(options, sizes) do
    Enum.reduce_while(options, {:ok, %__MODULE__{}}, fn {name, value}, {:ok, checked} ->
      case check(name, value, sizes) do
        {:ok, value} -> {:cont, {:ok, Map.replace(checked, name, value)}}
        {:error, error} -> {:halt, {:error, error}}
      end
    end)
  end

  # An option of nil is not given.
  defp check(name, nil, _sizes) when name in [:causal, :alibi, :whole_rows],
    do: refuse(name, nil, "true or false")

  defp check(:gradients, nil, _sizes), do: {:ok, []}
  defp check(:window, nil, _sizes), do: {:ok, {nil, nil}}
  defp check(_name, nil, _sizes), do: {:ok, nil}

  defp check(:causal, value, _sizes) when is_boolean(value) or value in [:top_left, :bottom_right],
    do: {:ok, value}

  defp check(:causal, value, _sizes), do: refuse(:causal, value, "true, false, :top_left or :bottom_right")
  defp check(name, value, _sizes) when name in [:alibi, :whole_rows] and is_boolean(value), do: {:ok, value}
  defp check(name, value, _sizes) when name in [:alibi, :whole_rows], do: refuse(name, value, "true or false")

  defp check(:window, value, _sizes) do
    pair = if is_integer(value), do: {value, value}, else: value
    side? = &(&1 == nil or (is_integer(&1) and &1 >= 0))

    case pair do
      {left, right} ->
        if side?.(left) and side?.(right), do: {:ok, pair}, else: refuse_window(value)

      _ ->
        refuse_window(value)
    end
  end

  defp check(:scale, value, _sizes) when is_number(value), do: float(:scale, value)
  defp check(:scale, value, _sizes), do: refuse(:scale, value, "a number")

  # The cap and its inverse are numbers of f32.
  defp check(:soft_cap, value, _sizes) when is_number(value) and value >= 1.0e-30 and value <= 1.0e30,
    do: float(:soft_cap, value)

  defp check(:soft_cap, value, _sizes), do: refuse(:soft_cap, value, "a number from 1.0e-30 to 1.0e30")

  defp check(:dropout, value, _sizes) when is_number(value) and value >= 0 and value < 1,
    do: float(:dropout, value)

  defp check(:dropout, value, _sizes), do: refuse(:dropout, value, "a number from 0 to less than 1")

  defp check(name, value, _sizes) when name in [:seed, :offset] do
    case Tensor.from_list([value], {1}, :i64) do
      {:ok, tensor} -> {:ok, tensor}
      {:error, _} -> refuse(name, value, "an integer of 64 bits")
    end
  end

  defp check(:kv_heads, value, %{kv_heads: value}), do: {:ok, value}
  defp check(:kv_heads, value, sizes), do: refuse(:kv_heads, value, "#{sizes.kv_heads}, which k has")

  defp check(:mask, value, sizes), do: cells(:mask, value, sizes, [:boolean, :u8])
  defp check(:bias, value, sizes), do: cells(:bias, value, sizes, Enum.uniq([sizes.type, :f32]))

  defp check(:sinks, value, sizes) do
    with {:ok, tensor} <- Tensor.from(value, "sinks") do
      if tensor.shape == {sizes.heads} and tensor.type == :f32,
        do: {:ok, tensor},
        else: refuse_tensor(:sinks, tensor, "f32 of #{inspect({sizes.heads})}, one for each head of q")
    end
  end

  defp check(:q_lengths, value, sizes), do: lengths(:q_lengths, value, sizes.batch, sizes.length)
  defp check(:kv_lengths, value, sizes), do: lengths(:kv_lengths, value, sizes.batch, sizes.kv_length)

  defp check(:offsets, _value, %{packing: packing}) do
    tensor = fn offsets -> Tensor.from_list!(offsets, {length(offsets)}, :i64) end
    {:ok, %{q: tensor.(packing.q), kv: tensor.(packing.kv)}}
  end

  defp check(:rope, %Rope{} = table, sizes) do
    with :ok <- Rope.check(table) do
      {rows, half} = table.cosines.shape
      longest = max(sizes.length, sizes.kv_length)

      cond do
        rem(sizes.dim, 2) == 1 or 2 * half > sizes.dim ->
          Error.invalid(
            "rope rotates #{2 * half} columns, expected an even head dim of at least as many; it is #{sizes.dim}."
          )

        rows < longest ->
          Error.invalid("rope has #{rows} positions, expected at least #{longest}, the longer of q and k.")

        true ->
          {:ok, table}
      end
    end
  end

  defp check(:rope, value, _sizes), do: refuse(:rope, value, "a Heddle.Rope")

  defp check(:device, value, _sizes) when value in [:cpu, :cuda], do: {:ok, value}
  defp check(:device, value, _sizes), do: refuse(:device, value, ":cpu or :cuda")

  defp check(:gradients, value, _sizes) do
    if is_list(value) and not List.improper?(value) and Enum.uniq(value) == value and
         value -- [:bias, :sinks] == [],
       do: {:ok, value},
       else: refuse(:gradients, value, "a list of :bias and :sinks, each once")
  end

  defp together(options) do
    cond do
      options.dropout not in [nil, 0.0] and options.seed == nil ->
        Error.invalid("dropout is given without a seed, expected an integer as seed.")

      options.alibi and options.causal == false ->
        Error.invalid("alibi is given with causal false, expected a causal mask beside it.")

      options.offsets != nil and (options.q_lengths != nil or options.kv_lengths != nil) ->
        Error.invalid(
          "offsets is given with q_lengths or kv_lengths, expected one of both: it says the lengths too."
        )

      :bias in options.gradients and options.bias == nil ->
        Error.invalid("gradients has :bias, but no bias is given.")

      :sinks in options.gradients and options.sinks == nil ->
        Error.invalid("gradients has :sinks, but no sinks are given.")

      true ->
        :ok
    end
  end

  # The graph wants lengths of both sides, an offset beside a seed, and a scale.
  defp complete(options, sizes) do
    dropout = if options.dropout == 0.0, do: nil, else: options.dropout
    {left, _right, _alignment} = bounds(options)
    # A band that leaves out whole rows wants lengths too.
    leaves_out = sizes.length > sizes.kv_length and (left != nil or options.causal == :bottom_right)
    padded = leaves_out or options.q_lengths != nil or options.kv_lengths != nil or options.offsets != nil
    list = fn lengths -> Tensor.from_list!(lengths, {sizes.batch}, :i32) end

    %{
      options
      | scale: options.scale || 1 / :math.sqrt(sizes.dim),
        dropout: dropout,
        seed: dropout && options.seed,
        offset: dropout && (options.offset || Tensor.from_list!([0], {1}, :i64)),
        q_lengths: options.q_lengths || if(padded, do: list.(lengths_of(sizes, :q, sizes.length))),
        kv_lengths: options.kv_lengths || if(padded, do: list.(lengths_of(sizes, :kv, sizes.kv_length)))
    }
  end

  defp lengths_of(%{packing: nil, batch: batch}, _side, longest), do: List.duplicate(longest, batch)
  defp lengths_of(%{packing: packing}, side, _longest), do: Packing.lengths(Map.fetch!(packing, side))

  @doc "The bounds of the diagonal band, as a graph has them: `{left_bound, right_bound, alignment}`."
  @spec bounds(t) :: {pos_integer | nil, non_neg_integer | nil, :bottom_right | nil}
  def bounds(%__MODULE__{window: {left, right}, causal: causal}) do
    right = if causal, do: 0, else: right

    {if(left && left < @furthest, do: left + 1), if(right && right < @furthest, do: right),
     if(causal == :bottom_right, do: :bottom_right)}
  end

  defp cells(name, value, sizes, types) do
    extents = [sizes.batch, sizes.heads, sizes.length, sizes.kv_length]

    with {:ok, tensor} <- Tensor.from(value, Atom.to_string(name)) do
      dims = Tuple.to_list(tensor.shape)

      fits = length(dims) == 4 and Enum.all?(Enum.zip(dims, extents), fn {dim, full} -> dim in [1, full] end)

      if fits and tensor.type in types,
        do: {:ok, tensor},
        else:
          refuse_tensor(
            name,
            tensor,
            "#{Enum.join(types, " or ")} of {batch, heads, length, kv_length}, #{inspect(List.to_tuple(extents))}, " <>
              "or 1 in place of any"
          )
    end
  end

  defp lengths(name, value, batch, longest) do
    list =
      case value do
        list when is_list(list) ->
          list

        other ->
          case Tensor.from(other, Atom.to_string(name)) do
            {:ok, %Tensor{shape: {_}, type: type} = tensor} when type in [:i32, :i64] ->
              Tensor.to_list(tensor)

            _ ->
              nil
          end
      end

    if is_list(list) and not List.improper?(list) and length(list) == batch and
         Enum.all?(list, &(is_integer(&1) and &1 >= 0 and &1 <= longest)),
       do: Tensor.from_list(list, {batch}, :i32),
       else: refuse(name, value, "#{batch} integers from 0 to #{longest}, one for each entry of the batch")
  end

  defp float(name, value), do: Heddle.Options.float(Atom.to_string(name), value)

  defp refuse_window(value),
    do: refuse(:window, value, "an integer of at least 0, or a pair of such or nil, {left, right}")

  defp refuse(name, value, expected),
    do: Error.invalid("#{name} is #{Tensor.brief(value)}, expected #{expected}.")

  defp refuse_tensor(name, tensor, expected),
    do: Error.invalid("#{name} is #{tensor.type} of #{inspect(tensor.shape)}, expected #{expected}.")
end
