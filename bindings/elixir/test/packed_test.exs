defmodule Heddle.PackedTest do
  use ExUnit.Case, async: true

  alias Heddle.{Devices, Draw, Error, FlashAttention, Rope, Tensor}

  @q_offsets [0, 3, 3, 10, 11]
  @kv_offsets [0, 5, 6, 14, 18]

  defp part(%Tensor{shape: shape} = x, from, to) do
    row = div(byte_size(x.data), elem(shape, 0))
    %{x | data: binary_part(x.data, from * row, (to - from) * row), shape: put_elem(shape, 0, to - from)}
  end

  defp whole(x), do: %{x | shape: Tuple.insert_at(x.shape, 0, 1)}

  # {tokens, heads} of {1, heads, tokens}.
  defp by_token(%Tensor{shape: {1, heads, tokens}} = lse) do
    elements = lse |> Tensor.to_list() |> Enum.chunk_every(tokens) |> Enum.zip_with(& &1) |> List.flatten()
    Tensor.from_list!(elements, {tokens, heads}, :f32)
  end

  defp join(tensors), do: tensors |> Enum.map(& &1.data) |> IO.iodata_to_binary()

  # What each sequence gives by itself, one behind the other.
  defp one_by_one([q, k, v, d_out], options) do
    entries = Enum.zip(Enum.zip(@q_offsets, tl(@q_offsets)), Enum.zip(@kv_offsets, tl(@kv_offsets)))

    results =
      for {{q_from, q_to}, {kv_from, kv_to}} <- entries, q_to > q_from do
        [q, d_out] = for x <- [q, d_out], do: whole(part(x, q_from, q_to))
        [k, v] = for x <- [k, v], do: whole(part(x, kv_from, kv_to))
        {output, lse} = FlashAttention.forward_with_states!(q, k, v, options)
        {dq, dk, dv} = FlashAttention.backward!(d_out, q, k, v, output, lse, options)
        {output, by_token(lse), dq, dk, dv}
      end

    for i <- 0..4, do: Enum.map(results, &elem(&1, i))
  end

  # The gradients of keys that no query sees, those of the entry without queries, are 0.
  defp with_unseen(parts, shape) do
    bytes = div(byte_size(join(parts)), 18 - 1)
    [first | rest] = parts
    ^shape = put_elem(shape, 0, 18)
    first.data <> :binary.copy(<<0>>, bytes) <> join(rest)
  end

  test "sequences of many lengths give what each gives by itself" do
    [q, d_out] = for dim <- [8, 6], do: Draw.tensor({11, 4, dim})
    [k, v] = for dim <- [8, 6], do: Draw.tensor({18, 2, dim})
    offsets = {@q_offsets, @kv_offsets}

    for options <- [
          [],
          [causal: false, scale: 0.4],
          [causal: :bottom_right, window: {3, nil}],
          [soft_cap: 2, sinks: Draw.tensor({4})],
          [rope: Rope.table!(8, 8)]
        ] do
      [outputs, lses, dqs, dks, dvs] = one_by_one([q, k, v, d_out], options)

      for device <- [nil | Devices.all()] do
        [q, k, v, d_out] =
          if device, do: Enum.map([q, k, v, d_out], &Tensor.upload!(&1, device)), else: [q, k, v, d_out]

        {output, lse} = FlashAttention.forward_with_states!(q, k, v, [offsets: offsets] ++ options)
        {dq, dk, dv} = FlashAttention.backward!(d_out, q, k, v, output, lse, [offsets: offsets] ++ options)

        assert [output.shape, lse.shape, dq.shape, dk.shape, dv.shape] == [
                 {11, 4, 6},
                 {11, 4},
                 {11, 4, 8},
                 {18, 2, 8},
                 {18, 2, 6}
               ]

        for {found, expected} <- [
              {output, join(outputs)},
              {lse, join(lses)},
              {dq, join(dqs)},
              {dk, with_unseen(dks, dk.shape)},
              {dv, with_unseen(dvs, dv.shape)}
            ] do
          expected = Tensor.to_list(%{found | data: expected})
          for {x, y} <- Enum.zip(Tensor.to_list(found), expected), do: assert_in_delta(x, y, 2.0e-5)
        end
      end
    end
  end

  test "one list is of both sides, and may be a tensor" do
    x = Draw.tensor({6, 2, 8}, :bf16)
    offsets = [0, 2, 6]
    expected = FlashAttention.forward!(x, x, x, offsets: {offsets, offsets})
    assert FlashAttention.forward!(x, x, x, offsets: offsets) == expected
    assert FlashAttention.forward!(x, x, x, offsets: Tensor.from_list!(offsets, {3}, :i32)) == expected
    assert expected != FlashAttention.forward!(x, x, x, offsets: [0, 3, 6])
  end

  test "biases and dropout are those of a batch" do
    x = Draw.tensor({6, 2, 8})
    bias = Draw.tensor({2, 1, 4, 4})
    found = FlashAttention.forward!(x, x, x, offsets: [0, 2, 6], bias: bias)
    last = %{bias | data: binary_part(bias.data, 64, 64), shape: {1, 1, 4, 4}}

    alone =
      FlashAttention.forward!(whole(part(x, 2, 6)), whole(part(x, 2, 6)), whole(part(x, 2, 6)), bias: last)

    for {a, b} <- Enum.zip(Tensor.to_list(part(found, 2, 6)), Tensor.to_list(alone)),
        do: assert_in_delta(a, b, 1.0e-5)

    dropped = FlashAttention.forward!(x, x, x, offsets: [0, 2, 6], dropout: 0.5, seed: 1)
    assert dropped == FlashAttention.forward!(x, x, x, offsets: [0, 2, 6], dropout: 0.5, seed: 1)
    assert dropped != FlashAttention.forward!(x, x, x, offsets: [0, 2, 6])
  end

  test "offsets that are none are refused" do
    x = Draw.tensor({6, 2, 8})

    refused = fn options ->
      assert({:error, %Error{message: sentence}} = FlashAttention.forward(x, x, x, options)) && sentence
    end

    for wrong <- [
          [1, 6],
          [0],
          [],
          [0, 4, 3, 6],
          [0, 2.0, 6],
          [0 | 6],
          false,
          :six,
          6,
          {[0, 6], nil},
          {[0, 6], [0, :a]}
        ],
        do: assert(refused.(offsets: wrong) =~ "expected 0 and where each entry ends")

    assert refused.(offsets: [0, 5]) == "offsets ends at 5, expected q's 6 tokens."
    assert refused.(offsets: {[0, 6], [0, 7]}) == "offsets ends at 7, expected k's 6 tokens."

    assert refused.(offsets: {[0, 6], [0, 3, 6]}) ==
             "offsets has 1 entries of q and 2 of k, expected as many of both."

    assert refused.(offsets: [0, 6], q_lengths: [6]) =~ "offsets is given with q_lengths or kv_lengths"
    assert refused.([]) =~ "q is f32 of {6, 2, 8}, expected f32, bf16, f16 of {batch, length, heads, dim}"
    assert {:error, %Error{message: sentence}} = FlashAttention.forward(whole(x), x, x, offsets: [0, 6])
    assert sentence == "q has the shape {1, 6, 2, 8}, expected {tokens, heads, dim} with offsets."
    {output, lse} = FlashAttention.forward_with_states!(x, x, x, offsets: [0, 6])

    assert {:error, %Error{message: sentence}} =
             FlashAttention.backward(output, x, x, x, output, whole(lse), offsets: [0, 6])

    assert sentence == "logsumexp is f32 of {1, 6, 2}, expected f32 of {6, 2}."
  end
end
