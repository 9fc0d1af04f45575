defmodule Heddle.LayersTest do
  use ExUnit.Case, async: true

  alias Heddle.{Draw, Error, LayerNorm, RmsNorm, Rope, Tensor}

  defp sentence({:error, %Error{message: message}}), do: message

  test "RoPE of every type, and its refusals" do
    table = Rope.table!(4, 8)

    for type <- [:f64, :f32, :bf16, :f16] do
      x = Draw.tensor({1, 4, 2, 8}, type)
      assert %Tensor{type: ^type, shape: {1, 4, 2, 8}} = y = Rope.rotate!(x, table)
      # Row 0 is not turned, and lengths stay.
      assert binary_part(y.data, 0, div(byte_size(y.data), 4)) ==
               binary_part(x.data, 0, div(byte_size(x.data), 4))

      assert_in_delta Draw.dot(y, y), Draw.dot(x, x), 0.05 * Draw.dot(x, x)
    end

    x = Draw.tensor({2, 4, 2, 8})
    # A position outside the table is the nearest there is.
    [far, last] =
      for positions <- [[9, -5, 2, 0x7FFFFFFF], [3, 0, 2, 3]],
          do: Rope.rotate!(x, table, positions: Tensor.from_list!(positions, {4}, :i32))

    assert far == last
    assert sentence(Rope.rotate(Draw.tensor({2, 5, 2, 8}), table)) =~ "expected at least 5"
    assert sentence(Rope.rotate(Draw.tensor({2, 4, 2, 6}), table)) =~ "rope"
    assert sentence(Rope.rotate(Draw.tensor({4, 8}), table)) =~ "x is f32 of {4, 8}, expected"
    assert sentence(Rope.rotate(x, :table)) == "The table is :table, expected a Heddle.Rope."

    assert sentence(Rope.rotate(x, table, positions: Draw.tensor({4}))) =~
             "positions is f32 of {4}, expected i32 or i64 of {4} or {2, 4}."

    assert sentence(Rope.rotate(x, table, output_scale: "2")) =~ "output_scale is \"2\""

    assert sentence(Rope.rotate(x, table, scale: 2)) =~
             "expected a keyword list of [:positions, :output_scale, :device]"

    assert sentence(Rope.table(0, 8)) =~ "positions is 0"
    assert sentence(Rope.table(4, 7)) =~ "rope_dim is 7, expected an even"
    assert sentence(Rope.table(4, 8, base: 0)) =~ "base is 0, expected"

    assert sentence(Rope.table(1000, 640, base: 1.0e-307)) =~
             "base is 1.0e-307, expected a number from 1.0e-18"

    assert sentence(Rope.table(4, 8, base: Bitwise.bsl(1, 2000))) =~ "base is 114813"
    assert sentence(Rope.table(4, 8, pairing: 2)) =~ "pairing is 2, expected"
    assert sentence(Rope.table(4, 8, bas: 2)) =~ "expected a keyword list of [:base, :pairing, :leading]"
    assert sentence(Rope.table(4, 8, leading: 1)) == "leading is 1, expected true or false."

    assert sentence(Rope.rotate(x, %{table | leading: nil})) ==
             "rope's leading is nil, expected true or false."

    assert_raise Error, fn -> Rope.table!(4, 7) end
  end

  test "RMSNorm of every type, and its refusals" do
    for type <- [:f64, :f32, :bf16, :f16] do
      x = Draw.tensor({3, 2, 6}, type)
      weight = Draw.tensor({6})
      {:ok, y, inverse} = RmsNorm.forward_with_states(x, weight, epsilon: 0)
      assert {y.type, y.shape, inverse.shape} == {type, {3, 2, 6}, {3, 2, 1}}
      {:ok, dx, d_weight} = RmsNorm.backward(y, x, weight, inverse)
      assert {dx.type, d_weight.type, d_weight.shape} == {type, :f32, {6}}
      # Without an epsilon y does not change with x's length, so its gradient is at right angles to x.
      for {row, gradient} <-
            Enum.zip(Enum.chunk_every(Tensor.to_list(x), 6), Enum.chunk_every(Tensor.to_list(dx), 6)) do
        assert_in_delta Enum.zip_with(row, gradient, &(&1 * &2)) |> Enum.sum(), 0, 0.1
      end
    end

    x = Draw.tensor({3, 6})
    weight = Draw.tensor({6})
    {:ok, _, inverse} = RmsNorm.forward_with_states(x, weight)
    assert sentence(RmsNorm.forward(x, Draw.tensor({5}))) == "weight has the shape {5}, expected {6}."
    assert sentence(RmsNorm.forward(x, weight, bias: Draw.tensor({6, 1}))) =~ "bias has the shape {6, 1}"
    assert sentence(RmsNorm.forward(x, weight, epsilon: -1)) =~ "epsilon is -1, expected"
    assert sentence(RmsNorm.forward(x, weight, epsilon: Bitwise.bsl(1, 5000))) =~ "epsilon is 14124"

    assert sentence(RmsNorm.forward(x, weight, eps: 1)) =~
             "expected a keyword list of [:epsilon, :bias, :device]"

    assert sentence(RmsNorm.forward(Draw.tensor({6, 1}), weight)) =~ "expected a last dim of at least 2"
    assert sentence(RmsNorm.forward(Tensor.from_list!([1], {}, :f32), weight)) =~ "expected at least one dim"
    assert sentence(RmsNorm.forward(Tensor.from_list!([1, 2], {2}, :i32), weight)) =~ "x is of type i32"
    assert sentence(RmsNorm.backward(weight, x, weight, inverse)) =~ "dy has the shape {6}, expected {3, 6}"
    assert sentence(RmsNorm.backward(x, x, weight, weight)) =~ "inverse has the shape {6}, expected {3, 1}"
    assert sentence(RmsNorm.backward(x, x, weight, inverse, bias: 1)) =~ "bias is 1, expected true or false"
  end

  test "LayerNorm of every type, and its refusals" do
    for type <- [:f64, :f32, :bf16, :f16] do
      x = Draw.tensor({3, 2, 6}, type)
      weight = Draw.tensor({6})
      {:ok, y, mean, inverse} = LayerNorm.forward_with_states(x, weight)
      assert {y.type, y.shape, mean.shape, inverse.shape} == {type, {3, 2, 6}, {3, 2, 1}, {3, 2, 1}}
      {:ok, dx, d_weight, d_bias} = LayerNorm.backward(y, x, weight, mean, inverse, bias: true)
      assert {dx.type, d_weight.type, d_bias.shape} == {type, :f32, {6}}

      for {row, mean} <- Enum.zip(Enum.chunk_every(Tensor.to_list(x), 6), Tensor.to_list(mean)),
          do: assert_in_delta(Enum.sum(row) / 6, mean, 1.0e-5)

      # y does not change with what is added to all of a row, so neither does its gradient add up to anything.
      for gradient <- Enum.chunk_every(Tensor.to_list(dx), 6), do: assert_in_delta(Enum.sum(gradient), 0, 0.1)
    end

    x = Draw.tensor({3, 6})
    weight = Draw.tensor({6})
    {:ok, _, mean, inverse} = LayerNorm.forward_with_states(x, weight)
    assert sentence(LayerNorm.forward(x, Draw.tensor({5}))) == "weight has the shape {5}, expected {6}."
    assert sentence(LayerNorm.forward(x, weight, bias: Draw.tensor({6, 1}))) =~ "bias has the shape {6, 1}"

    assert sentence(LayerNorm.backward(x, x, weight, weight, inverse)) =~
             "mean has the shape {6}, expected {3, 1}"

    assert sentence(LayerNorm.backward(x, x, weight, mean, weight)) =~
             "inverse has the shape {6}, expected {3, 1}"
  end
end
