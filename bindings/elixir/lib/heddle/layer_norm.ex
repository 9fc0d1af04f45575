defmodule Heddle.LayerNorm do
  @moduledoc """
  LayerNorm over the last dim (Ba, Kiros & Hinton, 2016): y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias.

      iex> x = Heddle.Tensor.from_list!([1, 2, 6], {1, 3}, :f32)
      iex> weight = Heddle.Tensor.from_list!([1, 1, 1], {3}, :f32)
      iex> {:ok, y} = Heddle.LayerNorm.forward(x, weight)
      iex> Enum.map(Heddle.Tensor.to_list(y), &Float.round(&1, 4))
      [-0.9258, -0.4629, 1.3887]
  """

  alias Heddle.{Error, Norm, Tensor}

  @doc """
  y, of x's shape and type. `x` is `{..., dim}`, `weight` `{dim}`.

  Options: `epsilon`, 1.0e-5 by default; `bias`, `{dim}`; `device`, as that of `Heddle.FlashAttention`.
  """
  @spec forward(Tensor.like(), Tensor.like(), keyword) :: {:ok, Tensor.like()} | {:error, Error.t()}
  def forward(x, weight, options \\ []) do
    with {:ok, y, _mean, _inverse} <- forward_with_states(x, weight, options), do: {:ok, y}
  end

  @doc """
  As `forward/3`, with the mean and 1 / sqrt(variance + epsilon) of each row besides, `{..., 1}` of f32 (f64 of an x of
  f64), which `backward/6` takes.
  """
  @spec forward_with_states(Tensor.like(), Tensor.like(), keyword) ::
          {:ok, Tensor.like(), Tensor.like(), Tensor.like()} | {:error, Error.t()}
  def forward_with_states(x, weight, options \\ []) do
    with {:ok, made} <- Norm.forward("layer_norm", [:mean, :inverse], x, weight, options) do
      [y, mean, inverse] = made
      {:ok, y, mean, inverse}
    end
  end

  @doc """
  The gradients: `{:ok, dx, dweight}`, and with `bias: true` `{:ok, dx, dweight, dbias}`. dx has x's type, the others
  weight's.
  """
  @spec backward(Tensor.like(), Tensor.like(), Tensor.like(), Tensor.like(), Tensor.like(), keyword) ::
          {:ok, Tensor.like(), Tensor.like()}
          | {:ok, Tensor.like(), Tensor.like(), Tensor.like()}
          | {:error, Error.t()}
  def backward(dy, x, weight, mean, inverse, options \\ []),
    do: Norm.backward("layer_norm", [mean: mean, inverse: inverse], dy, x, weight, options)
end
