defmodule Heddle do
  @moduledoc """
  Attention as one fused kernel, forward and backward.

    * `Heddle.FlashAttention` - attention and its gradients, with everything that changes scores
    * `Heddle.Rope`, `Heddle.RmsNorm`, `Heddle.LayerNorm` - what stands around attention
    * `Heddle.Training` - a training step whose attention is the native library's
    * `Heddle.Graph`, `Heddle.Plan` - any graph of the library's ops
    * `Heddle.Native` - the functions on plain binaries
    * `Heddle.Tensor` - what functions take and give, beside `Nx.Tensor`
    * `Heddle.Error` - what is wrong, in a sentence
  """

  @doc """
  The version of the native library.

      iex> Heddle.version() =~ ~r/^[0-9]+[.][0-9]+[.][0-9]+$/
      true
  """
  @spec version() :: String.t()
  defdelegate version, to: Heddle.Native
end
