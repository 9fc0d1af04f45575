defmodule Heddle.RmsNorm do
  @moduledoc """
  RMSNorm over the last dim (Zhang & Sennrich, 2019): y = x / sqrt(mean(x^2) + epsilon) * weight + bias.

      iex> x = Heddle.Tensor.from_list!([3, 4], {1, 2}, :f32)
      iex> weight = Heddle.Tensor.from_list!([1, 1], {2}, :f32)
      iex> {:ok, y} = Heddle.RmsNorm.forward(x, weight)
      iex> Enum.map(Heddle.Tensor.to_list(y), &Float.round(&1, 4))
      [0.8485, 1.1314]
  """

  alias Heddle.{Error, Norm, Tensor}

  @doc """
  y, of x's shape and type. `x` is `{..., dim}`, `weight` `{dim}`.

  Options: `epsilon`, 1.0e-5 by default; `bias`, `{dim}`; `device`, as that of `Heddle.FlashAttention`.
  """
  @spec forward(Tensor.like(), Tensor.like(), keyword) :: {:ok, Tensor.like()} | {:error, Error.t()}
  def forward(x, weight, options \\ []) do
    with {:ok, y, _inverse} <- forward_with_states(x, weight, options), do: {:ok, y}
  end

  @doc "As `forward/3`, with 1 / rms of each row besides, `{..., 1}` of f32 (f64 of an x of f64), which `backward/5` takes."
  @spec forward_with_states(Tensor.like(), Tensor.like(), keyword) ::
          {:ok, Tensor.like(), Tensor.like()} | {:error, Error.t()}
  def forward_with_states(x, weight, options \\ []) do
    with {:ok, made} <- Norm.forward("rms_norm", [:inverse], x, weight, options) do
      [y, inverse] = made
      {:ok, y, inverse}
    end
  end

  @doc """
  The gradients: `{:ok, dx, dweight}`, and with `bias: true` `{:ok, dx, dweight, dbias}`. dx has x's type, the others
  weight's.
  """
  @spec backward(Tensor.like(), Tensor.like(), Tensor.like(), Tensor.like(), keyword) ::
          {:ok, Tensor.like(), Tensor.like()}
          | {:ok, Tensor.like(), Tensor.like(), Tensor.like()}
          | {:error, Error.t()}
  def backward(dy, x, weight, inverse, options \\ []),
    do: Norm.backward("rms_norm", [inverse: inverse], dy, x, weight, options)
end
