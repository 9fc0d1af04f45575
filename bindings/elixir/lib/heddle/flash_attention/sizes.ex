defmodule Heddle.FlashAttention.Sizes do
  @moduledoc false
  # The shapes of q, k and v, checked against each other. Tensors need not have data.

  alias Heddle.{Error, Tensor}

  @types [:f32, :bf16, :f16]

  @type t :: %{
          batch: pos_integer,
          length: pos_integer,
          kv_length: pos_integer,
          heads: pos_integer,
          kv_heads: pos_integer,
          dim: pos_integer,
          type: Tensor.type()
        }

  @spec new(Tensor.t(), Tensor.t(), Tensor.t()) :: {:ok, t} | {:error, Error.t()}
  def new(q, k, v) do
    with :ok <- row(q, "q"),
         :ok <- row(k, "k"),
         :ok <- row(v, "v"),
         {batch, length, heads, dim} = q.shape,
         {_, kv_length, kv_heads, _} = k.shape,
         :ok <- shaped(k, "k", {batch, kv_length, kv_heads, dim}, q.type),
         :ok <- shaped(v, "v", {batch, kv_length, kv_heads, elem(v.shape, 3)}, q.type) do
      if rem(heads, kv_heads) == 0 do
        {:ok,
         %{
           batch: batch,
           length: length,
           kv_length: kv_length,
           heads: heads,
           kv_heads: kv_heads,
           dim: dim,
           type: q.type
         }}
      else
        Error.invalid("k has #{kv_heads} heads, expected a divisor of q's #{heads} heads.")
      end
    end
  end

  @doc "Whether a tensor is of a shape and a type."
  @spec shaped(Tensor.t(), String.t(), tuple, Tensor.type()) :: :ok | {:error, Error.t()}
  def shaped(%Tensor{shape: shape, type: type}, _name, shape, type), do: :ok

  def shaped(tensor, name, shape, type),
    do:
      Error.invalid(
        "#{name} is #{tensor.type} of #{inspect(tensor.shape)}, expected #{type} of #{inspect(shape)}."
      )

  defp row(%Tensor{shape: shape, type: type}, _name) when tuple_size(shape) == 4 and type in @types, do: :ok

  defp row(tensor, name),
    do:
      Error.invalid(
        "#{name} is #{tensor.type} of #{inspect(tensor.shape)}, expected #{Enum.join(@types, ", ")} of " <>
          "{batch, length, heads, dim}."
      )
end
