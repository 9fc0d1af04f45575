defmodule Heddle.Training.Matrix do
  @moduledoc false
  # Matrices as lists of rows of floats: enough for what surrounds attention in a small network.

  @type t :: [[float]]

  @spec product(t, t) :: t
  def product(a, b) do
    columns = transpose(b)
    Enum.map(a, fn row -> Enum.map(columns, &dot(row, &1, 0.0)) end)
  end

  @doc "The product of the transpose of `a` with `b`."
  @spec product_of_transposed(t, t) :: t
  def product_of_transposed(a, b), do: product(transpose(a), b)

  @doc "The product of `a` with the transpose of `b`."
  @spec product_with_transposed(t, t) :: t
  def product_with_transposed(a, b), do: Enum.map(a, fn row -> Enum.map(b, &dot(row, &1, 0.0)) end)

  @spec transpose(t) :: t
  def transpose(rows), do: Enum.zip_with(rows, & &1)

  @spec zip(t, t, (float, float -> float)) :: t
  def zip(a, b, function), do: Enum.zip_with(a, b, fn x, y -> Enum.zip_with(x, y, function) end)

  @spec map(t, (float -> float)) :: t
  def map(rows, function), do: Enum.map(rows, &Enum.map(&1, function))

  @spec add(t, t) :: t
  def add(a, b), do: zip(a, b, &(&1 + &2))

  @doc "The row added to every row."
  @spec add_row(t, [float]) :: t
  def add_row(rows, row), do: Enum.map(rows, fn x -> Enum.zip_with(x, row, &(&1 + &2)) end)

  @spec sum_of_rows(t) :: [float]
  def sum_of_rows([first | rest]),
    do: Enum.reduce(rest, first, fn row, sum -> Enum.zip_with(row, sum, &(&1 + &2)) end)

  defp dot([x | a], [y | b], sum), do: dot(a, b, sum + x * y)
  defp dot([], [], sum), do: sum
end
