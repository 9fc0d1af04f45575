defmodule Heddle.FlashAttentionTest do
  use ExUnit.Case, async: true

  alias Heddle.{Draw, Error, FlashAttention, Rope, Tensor}

  setup do
    %{
      q: Draw.tensor({2, 6, 4, 8}),
      k: Draw.tensor({2, 9, 2, 8}),
      v: Draw.tensor({2, 9, 2, 5}),
      d_out: Draw.tensor({2, 6, 4, 5})
    }
  end

  defp refused(c, options, changes \\ %{}) do
    c = Map.merge(c, changes)
    assert {:error, %Error{message: sentence}} = FlashAttention.forward(c.q, c.k, c.v, options)
    sentence
  end

  test "gradients are those of finite differences, of all operands, with all options", c do
    options = [
      causal: :bottom_right,
      window: {7, nil},
      scale: 0.5,
      soft_cap: 4.0,
      mask: Tensor.from_list!(for(i <- 1..18, do: rem(i, 5)), {2, 1, 1, 9}, :u8),
      bias: Draw.tensor({1, 4, 6, 9}),
      sinks: Draw.tensor({4}),
      q_lengths: [6, 4],
      kv_lengths: [8, 9],
      dropout: 0.2,
      seed: 11,
      rope: Rope.table!(9, 6)
    ]

    loss = fn c, options -> Draw.dot(FlashAttention.forward!(c.q, c.k, c.v, options), c.d_out) end
    {output, logsumexp} = FlashAttention.forward_with_states!(c.q, c.k, c.v, options)

    {dq, dk, dv, more} =
      FlashAttention.backward!(
        c.d_out,
        c.q,
        c.k,
        c.v,
        output,
        logsumexp,
        options ++ [gradients: [:sinks, :bias]]
      )

    step = 0.01

    for {name, gradient} <- [q: dq, k: dk, v: dv] do
      along = Draw.tensor(Map.fetch!(c, name).shape)
      at = fn step -> loss.(Map.update!(c, name, &Draw.moved(&1, along, step)), options) end
      assert_in_delta (at.(step) - at.(-step)) / (2 * step), Draw.dot(gradient, along), 2.0e-2
    end

    for {name, gradient} <- more do
      along = Draw.tensor(options[name].shape)
      at = fn step -> loss.(c, Keyword.update!(options, name, &Draw.moved(&1, along, step))) end
      assert_in_delta (at.(step) - at.(-step)) / (2 * step), Draw.dot(gradient, along), 2.0e-2
    end

    assert {more.bias.shape, more.sinks.shape, dv.shape} == {{1, 4, 6, 9}, {4}, {2, 9, 2, 5}}
  end

  test "options that are not given, nil and the default are one", c do
    expected = FlashAttention.forward_with_states!(c.q, c.k, c.v)

    defaults = [
      causal: true,
      window: nil,
      scale: 1 / :math.sqrt(8),
      kv_heads: 2,
      mask: nil,
      bias: nil,
      q_lengths: nil,
      kv_lengths: nil,
      soft_cap: nil,
      sinks: nil,
      alibi: false,
      dropout: nil,
      seed: nil,
      offset: nil,
      rope: nil,
      device: :cpu
    ]

    assert FlashAttention.forward_with_states!(c.q, c.k, c.v, defaults) == expected
    assert FlashAttention.forward_with_states!(c.q, c.k, c.v, dropout: 0) == expected
    assert FlashAttention.forward_with_states!(c.q, c.k, c.v, causal: :top_left) == expected
    assert {:ok, elem(expected, 0)} == FlashAttention.forward(c.q, c.k, c.v)
    refute FlashAttention.forward!(c.q, c.k, c.v, causal: false) == elem(expected, 0)
    wide = 0x7FFFFFFFFFFFFFFF
    assert FlashAttention.forward_with_states!(c.q, c.k, c.v, window: {wide, wide}) == expected
  end

  test "calls that differ in one number give what a process gives that made no other", c do
    run = fn scale -> FlashAttention.forward!(c.q, c.k, c.v, scale: scale) end
    # More graphs than a process keeps the texts of, each twice; 1 and 1.0 are written apart.
    scales = Enum.to_list(1..6) ++ Enum.map(1..6, &(&1 / 1)) ++ Enum.map(1..6, &(&1 / 8))
    expected = for scale <- scales, do: Task.await(Task.async(fn -> run.(scale) end))
    assert Enum.map(scales ++ scales, run) == expected ++ expected
    assert length(Enum.uniq(expected)) == 12
  end

  test "lengths are a list or a tensor; one side's alone leaves the other whole", c do
    expected = FlashAttention.forward!(c.q, c.k, c.v, kv_lengths: [3, 0], q_lengths: [6, 6])
    assert FlashAttention.forward!(c.q, c.k, c.v, kv_lengths: [3, 0]) == expected

    lengths = Tensor.from_list!([3, 0], {2}, :i64)
    assert FlashAttention.forward!(c.q, c.k, c.v, kv_lengths: lengths) == expected
    # The second entry has no keys.
    assert expected.data |> binary_part(480, 480) == <<0::size(480)-unit(8)>>
  end

  test "what hides never leaks what it hides", c do
    nan = fn tensor, keep ->
      {_, length, heads, dim} = tensor.shape

      elements =
        for {x, i} <- Enum.with_index(Tensor.to_list(tensor)),
            do: if(rem(div(i, heads * dim), length) < keep, do: x, else: :nan)

      Tensor.from_list!(elements, tensor.shape, :f32)
    end

    expected = FlashAttention.forward_with_states!(c.q, c.k, c.v, kv_lengths: [4, 4])

    assert FlashAttention.forward_with_states!(c.q, nan.(c.k, 4), nan.(c.v, 4), kv_lengths: [4, 4]) ==
             expected
  end

  test "rows without keys: output and log-sum-exp, with sinks and without", c do
    sinks = Draw.tensor({4})
    # Of entry 0 no row has a key, and rows 2 to 5 of entry 1 are none.
    options = [causal: false, kv_lengths: [0, 9], q_lengths: [6, 2]]
    {output, lse} = FlashAttention.forward_with_states!(c.q, c.k, c.v, [sinks: sinks] ++ options)
    {_, without} = FlashAttention.forward_with_states!(c.q, c.k, c.v, options)
    assert Tensor.to_list(output) |> Enum.take(6 * 4 * 5) |> Enum.all?(&(&1 == 0.0))
    rows = fn lse -> lse |> Tensor.to_list() |> Enum.chunk_every(6) end
    assert Enum.take(rows.(lse), 4) == for(sink <- Tensor.to_list(sinks), do: List.duplicate(sink, 6))
    assert Enum.take(rows.(without), 4) == List.duplicate(List.duplicate(:neg_infinity, 6), 4)

    for of_head <- Enum.drop(rows.(lse), 4) do
      assert Enum.drop(of_head, 2) == List.duplicate(:neg_infinity, 4)
      assert Enum.all?(Enum.take(of_head, 2), &is_float/1)
    end
  end

  test "bands that leave out whole rows", _c do
    [q, k, v, d_out] =
      for shape <- [{1, 6, 4, 8}, {1, 3, 2, 8}, {1, 3, 2, 5}, {1, 6, 4, 5}], do: Draw.tensor(shape)

    part = fn tensor, first, count ->
      {1, _length, heads, dim} = tensor.shape
      row = 4 * heads * dim
      Tensor.new!(binary_part(tensor.data, first * row, count * row), {1, count, heads, dim}, :f32)
    end

    run = fn rows, d_out, options ->
      {output, lse} = FlashAttention.forward_with_states!(rows, k, v, options)
      {output, FlashAttention.backward!(d_out, rows, k, v, output, lse, options)}
    end

    # Rows 3 to 5 see keys up to 0, 1 and 2; then rows 0 to 3 see keys from -1, 0, 1 and 2 on.
    for {options, first, count, alone} <- [
          {[causal: :bottom_right], 3, 3, [causal: true]},
          {[causal: false, window: {1, nil}], 0, 4, [causal: false, window: {1, nil}, q_lengths: [4]]}
        ] do
      {output, {dq, dk, dv}} = run.(q, d_out, options)

      {output_alone, {dq_alone, dk_alone, dv_alone}} =
        run.(part.(q, first, count), part.(d_out, first, count), alone)

      for {found, expected} <- [
            {part.(output, first, count), output_alone},
            {part.(dq, first, count), dq_alone},
            {dk, dk_alone},
            {dv, dv_alone}
          ],
          {x, y} <- Enum.zip(Tensor.to_list(found), Tensor.to_list(expected)),
          do: assert_in_delta(x, y, 1.0e-5)

      hidden = if first == 0, do: count, else: 0

      for tensor <- [output, dq],
          do: assert(Enum.all?(Tensor.to_list(part.(tensor, hidden, 6 - count)), &(&1 == 0.0)))
    end
  end

  test "dropout is drawn by seed and offset", c do
    of = fn options -> FlashAttention.forward!(c.q, c.k, c.v, [dropout: 0.5] ++ options) end
    assert of.(seed: 1) == of.(seed: 1, offset: 0)
    refute of.(seed: 1) == of.(seed: 2)
    refute of.(seed: 1) == of.(seed: 1, offset: 4)
  end

  test "tensors that do not go together are refused", c do
    assert refused(c, [], %{k: Draw.tensor({2, 9, 3, 8}), v: Draw.tensor({2, 9, 3, 5})}) ==
             "k has 3 heads, expected a divisor of q's 4 heads."

    assert refused(c, [], %{k: Draw.tensor({1, 9, 2, 8})}) ==
             "k is f32 of {1, 9, 2, 8}, expected f32 of {2, 9, 2, 8}."

    assert refused(c, [], %{v: Draw.tensor({2, 8, 2, 5})}) ==
             "v is f32 of {2, 8, 2, 5}, expected f32 of {2, 9, 2, 5}."

    assert refused(c, [], %{k: Draw.tensor({2, 9, 2, 8}, :f16)}) =~ "k is f16 of {2, 9, 2, 8}, expected f32"

    assert refused(c, [], %{q: Draw.tensor({2, 6, 32})}) =~
             "q is f32 of {2, 6, 32}, expected f32, bf16, f16 of {batch,"

    assert refused(c, [], %{q: Draw.tensor({2, 6, 4, 8}, :f64)}) =~ "q is f64"
    assert refused(c, [], %{v: "v"}) == "v is \"v\", expected a Heddle.Tensor or an Nx.Tensor."

    assert refused(c, [], %{q: %{c.q | data: <<1, 2>>}}) ==
             "q has 2 bytes, expected 1536: f32 of {2, 6, 4, 8}."

    assert refused(c, [], %{q: %{c.q | shape: {2, 6, 4, 0x4000000000000000}}}) =~ "q has 1536 bytes, expected"

    {output, logsumexp} = FlashAttention.forward_with_states!(c.q, c.k, c.v)

    for {i, sentence} <- [
          {0, "d_out is f32 of {2, 6, 4, 8}, expected f32 of {2, 6, 4, 5}."},
          {4, "output is f32 of {2, 6, 4, 8}, expected f32 of {2, 6, 4, 5}."},
          {5, "logsumexp is f32 of {2, 6, 4, 8}, expected f32 of {2, 4, 6}."}
        ] do
      arguments = List.replace_at([c.d_out, c.q, c.k, c.v, output, logsumexp], i, c.q)
      assert {:error, %Error{message: ^sentence}} = apply(FlashAttention, :backward, arguments)
    end

    assert_raise Error, ~r/k has 3 heads/, fn ->
      FlashAttention.forward!(c.q, Draw.tensor({2, 9, 3, 8}), Draw.tensor({2, 9, 3, 5}))
    end
  end

  test "options that are none are refused", c do
    for {options, sentence} <- [
          {[casual: true],
           "There is no option :casual, or it is given twice, expected a keyword list of [:causal, :window,"},
          {[causal: true, causal: false], "There is no option :causal, or it is given twice"},
          {[gradients: [:bias]], "There is no option :gradients"},
          {%{causal: true}, "The options are %{causal: true}, expected a keyword list of [:causal"},
          {[causal: nil], "causal is nil, expected true or false"},
          {[causal: :left], "causal is :left, expected true, false, :top_left or :bottom_right."},
          {[window: -1], "window is -1, expected an integer of at least 0, or a pair"},
          {[window: {1, 2, 3}], "window is {1, 2, 3}"},
          {[window: {nil, 1.5}], "window is {nil, 1.5}"},
          {[scale: "1"], "scale is \"1\", expected a number."},
          {[scale: Bitwise.bsl(1, 5000)], "scale is 1412467"},
          {[soft_cap: 0], "soft_cap is 0, expected a number from 1.0e-30 to 1.0e30."},
          {[soft_cap: 1.0e-300], "soft_cap is 1.0e-300, expected"},
          {[kv_heads: 4], "kv_heads is 4, expected 2, which k has."},
          {[dropout: 1], "dropout is 1, expected a number from 0 to less than 1."},
          {[dropout: 0.1], "dropout is given without a seed"},
          {[dropout: 0.1, seed: 0.5], "seed is 0.5, expected an integer of 64 bits."},
          {[seed: Bitwise.bsl(1, 63)], "seed is 9223372036854775808, expected an integer of 64 bits."},
          {[q_lengths: [1]],
           "q_lengths is [1], expected 2 integers from 0 to 6, one for each entry of the batch."},
          {[kv_lengths: [1, 10]], "kv_lengths is [1, 10], expected 2 integers from 0 to 9"},
          {[kv_lengths: [1, -1]], "kv_lengths is [1, -1]"},
          {[kv_lengths: [1 | 2]], "kv_lengths is [1 | 2]"},
          {[kv_lengths: c.q], "kv_lengths is %Heddle.Tensor{"},
          {[mask: c.q],
           "mask is f32 of {2, 6, 4, 8}, expected boolean or u8 of {batch, heads, length, kv_length}, " <>
             "{2, 4, 6, 9}, or 1 in place of any."},
          {[mask: Tensor.new!(<<1::72>>, {9}, :u8)], "mask is u8 of {9}"},
          {[bias: Draw.tensor({2, 4, 6, 8})], "bias is f32 of {2, 4, 6, 8}, expected f32 of"},
          {[bias: Draw.tensor({1, 1, 6, 9}, :f16)], "bias is f16 of {1, 1, 6, 9}"},
          {[bias: 1], "bias is 1, expected a Heddle.Tensor"},
          {[sinks: Draw.tensor({2})], "sinks is f32 of {2}, expected f32 of {4}, one for each head of q."},
          {[alibi: 1], "alibi is 1, expected true or false."},
          {[alibi: true, causal: false], "alibi is given with causal false"},
          {[rope: true], "rope is true, expected a Heddle.Rope."},
          {[rope: Rope.table!(8, 8)], "rope has 8 positions, expected at least 9, the longer of q and k."},
          {[rope: Rope.table!(9, 10)],
           "rope rotates 10 columns, expected an even head dim of at least as many; it is 8."},
          {[rope: %{Rope.table!(9, 8) | sines: c.q}],
           "rope's cosines and sines are f32 of {9, 4} and f32 of"},
          {[rope: %{Rope.table!(9, 8) | pairing: :thirds}], "rope's pairing is :thirds"},
          {[device: :tpu], "device is :tpu, expected :cpu or :cuda."}
        ] do
      assert String.starts_with?(refused(c, options), sentence), inspect({options, refused(c, options)})
    end

    {output, logsumexp} = FlashAttention.forward_with_states!(c.q, c.k, c.v)

    for {options, sentence} <- [
          {[gradients: [:bias]], "gradients has :bias, but no bias is given."},
          {[gradients: [:sinks]], "gradients has :sinks, but no sinks are given."},
          {[gradients: [:mask]], "gradients is [:mask], expected a list of :bias and :sinks, each once."},
          {[gradients: :bias], "gradients is :bias, expected a list"},
          {[whole_rows: 1], "whole_rows is 1, expected true or false."}
        ] do
      assert {:error, %Error{message: message}} =
               FlashAttention.backward(c.d_out, c.q, c.k, c.v, output, logsumexp, options)

      assert String.starts_with?(message, sentence)
    end
  end

  test "parts of the keys add up", c do
    {output, logsumexp} = FlashAttention.forward_with_states!(c.q, c.k, c.v, causal: false)
    {dq, _, _} = FlashAttention.backward!(c.d_out, c.q, c.k, c.v, output, logsumexp, causal: false)

    parts =
      for keys <- [0..4, 5..8] do
        mask = for j <- 0..8, do: if(j in keys, do: 1, else: 0)
        mask = Tensor.from_list!(mask, {1, 1, 1, 9}, :boolean)
        options = [causal: false, mask: mask, whole_rows: false]
        {part, _, _} = FlashAttention.backward!(c.d_out, c.q, c.k, c.v, output, logsumexp, options)
        Tensor.to_list(part)
      end

    for {whole, sum} <- Enum.zip(Tensor.to_list(dq), Enum.zip_with(parts, &Enum.sum/1)),
        do: assert_in_delta(whole, sum, 1.0e-5)
  end

  test "of whole rows, what rounding leaves beside the truth is taken off", c do
    # What keys have in common is multiplied by what rounding of the output leaves of a sum that is 0.
    far = Tensor.from_list!(Enum.map(Tensor.to_list(c.k), &(&1 + 30)), c.k.shape, :f32)
    wide = Map.new([:q, :k, :v, :d_out], &{&1, Map.fetch!(%{c | k: far}, &1)})
    narrow = Map.new(wide, fn {name, x} -> {name, Tensor.from_list!(Tensor.to_list(x), x.shape, :bf16)} end)
    wide = Map.new(narrow, fn {name, x} -> {name, Tensor.from_list!(Tensor.to_list(x), x.shape, :f32)} end)

    dq = fn c, options ->
      {output, logsumexp} = FlashAttention.forward_with_states!(c.q, c.k, c.v)
      Tensor.to_list(elem(FlashAttention.backward!(c.d_out, c.q, c.k, c.v, output, logsumexp, options), 0))
    end

    truth = dq.(wide, [])
    error = fn options -> Enum.zip_with(truth, dq.(narrow, options), &abs(&1 - &2)) |> Enum.max() end
    assert error.(whole_rows: true) < 0.5 * error.(whole_rows: false)
    assert error.([]) == error.(whole_rows: true)
  end
end
