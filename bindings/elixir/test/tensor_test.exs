defmodule Heddle.TensorTest do
  use ExUnit.Case, async: true

  alias Heddle.{Draw, Error, Tensor}

  defp sentence({:error, %Error{status: :invalid_value, message: message}}), do: message

  test "numbers are rounded to the nearest of the type, ties to even" do
    # 1 + 2^-8 lies between two of bf16, as 1 + 3 * 2^-8 does; just above the tie is above it in f64 alone.
    tie = :math.pow(2, -8)

    for {given, rounded} <- [
          {1 + tie, 1.0},
          {1 + 3 * tie, 1 + 4 * tie},
          {1 + tie + :math.pow(2, -40), 1 + 2 * tie},
          {-1 - tie, -1.0},
          {3.0e-39, :math.pow(2, -133) * round(3.0e-39 / :math.pow(2, -133))},
          {:math.pow(2, -134), 0.0},
          {1.5 * :math.pow(2, -134), :math.pow(2, -133)},
          {1.0e-300, 0.0},
          {5, 5.0}
        ] do
      assert Tensor.to_list(Tensor.from_list!([given], {1}, :bf16)) == [rounded]
    end

    assert Tensor.to_list(Tensor.from_list!([0.1], {1}, :f32)) == [0.10000000149011612]
    assert Tensor.to_list(Tensor.from_list!([0.1], {1}, :f16)) == [0.0999755859375]
  end

  test "every type of a list comes back" do
    for type <- [:f64, :f32, :bf16, :f16] do
      list = [0.0, -2.5, :nan, :infinity, :neg_infinity]
      assert Tensor.to_list(Tensor.from_list!(list, {5}, type)) == list
    end

    for {type, list} <- [
          i64: [-0x8000000000000000, 0x7FFFFFFFFFFFFFFF],
          i32: [-0x80000000, 0x7FFFFFFF],
          i8: [-128, 127],
          u64: [0, 0xFFFFFFFFFFFFFFFF],
          u32: [0, 0xFFFFFFFF],
          u8: [0, 255],
          boolean: [0, 1]
        ] do
      assert Tensor.to_list(Tensor.from_list!(list, {2}, type)) == list
      if type != :boolean, do: assert({:error, %Error{}} = Tensor.from_list([List.last(list) + 1], {1}, type))
      assert {:error, %Error{}} = Tensor.from_list([hd(list) - 1], {1}, type)
      assert {:error, %Error{}} = Tensor.from_list([0.5], {1}, type)
    end
  end

  test "numbers of 8 bits are read as numbers" do
    # Zero, the least and the largest below normal ones, 1, the largest, and what is none.
    e4m3 = <<0x00, 0x80, 0x01, 0x07, 0x38, 0xB9, 0x7E, 0xFE, 0x7F, 0xFF>>
    least = :math.pow(2, -9)

    assert Tensor.to_list(Tensor.new!(e4m3, {10}, :f8e4m3)) ==
             [0.0, -0.0, least, 7 * least, 1.0, -1.125, 448.0, -448.0, :nan, :nan]

    e5m2 = <<0x00, 0x01, 0x83, 0x3C, 0xBD, 0x7B, 0x7C, 0xFC, 0x7D>>
    least = :math.pow(2, -16)

    assert Tensor.to_list(Tensor.new!(e5m2, {9}, :f8e5m2)) ==
             [0.0, least, -3 * least, 1.0, -1.25, 57_344.0, :infinity, :neg_infinity, :nan]
  end

  test "what is no tensor is refused in a sentence" do
    assert sentence(Tensor.new(<<0::64>>, {2}, :f16)) == "The tensor has 8 bytes, expected 4: f16 of {2}."
    assert sentence(Tensor.new(<<>>, {0}, :f32)) =~ "has the shape {0}, expected a tuple of up to 8 integers"
    assert sentence(Tensor.new(<<0::32>>, [1], :f32)) =~ "has the shape [1]"
    assert sentence(Tensor.new(<<0::32>>, {-1, -1}, :f32)) =~ "has the shape {-1, -1}"
    assert sentence(Tensor.new(<<0::3>>, {1}, :u8)) =~ "expected a binary"
    assert sentence(Tensor.new(:no, {1}, :u8)) =~ "has :no as its data"
    assert sentence(Tensor.new(<<0>>, {1}, :f12)) =~ "is of type :f12, expected one of"

    assert sentence(Tensor.new(<<0::32>>, {0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF}, :f32)) =~
             "has 4 bytes, expected"

    assert sentence(Tensor.from_list(["1"], {1}, :f32)) =~ "no number of :f32"
    assert sentence(Tensor.from_list([1.0e300], {1}, :f32)) =~ "expected one within its range"
    assert sentence(Tensor.from_list([-65520], {1}, :f16)) =~ "expected one within its range"
    assert Tensor.to_list(Tensor.from_list!([-65519.9], {1}, :f16)) == [-65504.0]
    assert sentence(Tensor.from_list([3.4e38 * 1.01], {1}, :bf16)) =~ "expected one within its range"
    assert sentence(Tensor.from_list([1], {1}, :f8e4m3)) =~ "There is no list of type :f8e4m3"
    assert byte_size(sentence(Tensor.from_list([1], {1}, Enum.to_list(1..1000)))) < 200
    assert sentence(Tensor.from_list(5, {1}, :f32)) =~ "expected a list of numbers"
    assert_raise Error, ~r/has 1 bytes/, fn -> Tensor.new!(<<0>>, {1}, :f32) end
  end

  test "a tensor of Nx is taken and given" do
    x = Draw.tensor({1, 4, 2, 8})
    nx = Nx.reshape(Nx.from_binary(x.data, {:f, 32}), x.shape)
    {:ok, output, logsumexp} = Heddle.FlashAttention.forward_with_states(x, x, x)
    {:ok, of_nx, lse_of_nx} = Heddle.FlashAttention.forward_with_states(nx, nx, nx)
    assert {Nx.to_binary(of_nx), Nx.shape(of_nx), Nx.type(of_nx)} == {output.data, {1, 4, 2, 8}, {:f, 32}}
    assert {Nx.to_binary(lse_of_nx), Nx.shape(lse_of_nx)} == {logsumexp.data, {1, 2, 4}}
    {:ok, dq, _, _} = Heddle.FlashAttention.backward(nx, nx, nx, nx, of_nx, lse_of_nx)
    {:ok, expected, _, _} = Heddle.FlashAttention.backward(x, x, x, x, output, logsumexp)
    assert Nx.to_binary(dq) == expected.data

    assert sentence(Heddle.FlashAttention.forward(Nx.from_binary(<<0::128>>, {:c, 64}), nx, nx)) ==
             "q is of Nx's type {:c, 64}, which Heddle does not have."
  end

  # The shape of one says nothing of its vectorized axes. A packed tensor may be longer than its offsets say, so that such a
  # one would be read as its first entry alone.
  test "a vectorized tensor of Nx is refused" do
    entry = Draw.tensor({3, 2, 8})
    nx = Nx.reshape(Nx.from_binary(entry.data, {:f, 32}), entry.shape)
    both = %{nx | data: entry.data <> entry.data, vectorized_axes: [entries: 2]}

    assert sentence(Heddle.FlashAttention.forward(both, both, both, offsets: [0, 3])) ==
             "q is vectorized along [:entries], expected a tensor without vectorized axes, as Nx.devectorize/2 gives it."

    assert sentence(Heddle.FlashAttention.forward(nx, both, nx, offsets: [0, 3])) =~ "k is vectorized"
    assert sentence(Tensor.upload(both, :cpu)) =~ "The tensor is vectorized along [:entries]"
  end
end
