defmodule Heddle.Draw do
  @moduledoc "Random tensors, and numbers of them."

  alias Heddle.Tensor

  @doc "Normal, with a mean of its own at each place of the last dim."
  def tensor(shape, type \\ :f32) do
    columns = elem(shape, tuple_size(shape) - 1)
    means = for _ <- 1..columns, do: 0.5 * :rand.normal()
    elements = for _ <- 1..div(Tuple.product(shape), columns), mean <- means, do: mean + :rand.normal()
    Tensor.from_list!(elements, shape, type)
  end

  def dot(a, b), do: Enum.zip_with(Tensor.to_list(a), Tensor.to_list(b), &(&1 * &2)) |> Enum.sum()

  @doc "a + step * b"
  def moved(a, b, step),
    do:
      Tensor.from_list!(
        Enum.zip_with(Tensor.to_list(a), Tensor.to_list(b), &(&1 + step * &2)),
        a.shape,
        a.type
      )
end
