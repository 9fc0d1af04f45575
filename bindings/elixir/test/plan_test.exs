defmodule Heddle.PlanTest do
  use ExUnit.Case, async: true

  alias Heddle.{Draw, Error, FlashAttention, Graph, Plan, Tensor}

  defp graph(fields \\ []) do
    dims = [2, 3, 5, 8]

    Graph.new("attention", io_dtype: :f32)
    |> Graph.tensor(7, "q", dims: dims, strides: [120, 8, 24, 1])
    |> Graph.tensor(3, "k", dims: dims)
    |> Graph.tensor(9, "v", dims: dims)
    |> Graph.tensor(5, "o", strides: [120, 8, 24, 1], dims: dims)
    |> Graph.node("sdpa", Keyword.merge([q: 7, k: 3, v: 9, o: 5, attn_scale: 0.3], fields))
  end

  # {batch, heads, length, dim} of {batch, length, heads, dim}, or back.
  defp swapped(%Tensor{shape: {b, n, m, d}} = x) do
    rows = Enum.chunk_every(Tensor.to_list(x), d)
    elements = for i <- 0..(b - 1), k <- 0..(m - 1), j <- 0..(n - 1), do: Enum.at(rows, (i * n + j) * m + k)
    Tensor.from_list!(List.flatten(elements), {b, m, n, d}, x.type)
  end

  test "a graph runs on tensors by their uids" do
    plan = Plan.new!(graph())

    assert Enum.map(plan.inputs, &{&1.uid, &1.name, &1.type}) == [
             {3, "k", :f32},
             {7, "q", :f32},
             {9, "v", :f32}
           ]

    assert [%{uid: 5, name: "o", shape: shape}] = plan.outputs
    [q, k, v] = for _ <- 1..3, do: Draw.tensor({2, 5, 3, 8})
    {:ok, %{5 => o}} = Plan.run(plan, %{7 => q, 3 => swapped(k), 9 => swapped(v)})
    {:ok, expected} = FlashAttention.forward(q, k, v, causal: false, scale: 0.3)
    assert o.shape == shape
    # Its dims are those of its memory.
    assert shape == {2, 5, 3, 8}
    assert o.data == expected.data
    assert Plan.description(plan) =~ "cpu"
    assert Plan.new!(Graph.text(graph())).inputs == plan.inputs
  end

  test "what is given has to be what the graph says" do
    plan = Plan.new!(graph())
    x = Draw.tensor({2, 3, 5, 8})
    all = %{3 => x, 7 => x, 9 => x}

    refused = fn inputs ->
      assert({:error, %Error{message: sentence}} = Plan.run(plan, inputs)) && sentence
    end

    assert refused.(Map.delete(all, 9)) ==
             "The input tensor 'v', f32 [2, 3, 5, 8], is not given, expected a binary of 960 bytes."

    assert refused.(%{all | 3 => Draw.tensor({2, 3, 5, 7})}) ==
             "The tensor 'k', f32 [2, 3, 5, 8], is given a binary of 840 bytes, expected 960."

    assert refused.(%{all | 3 => Draw.tensor({2, 3, 5, 16}, :f16)}) ==
             "The input 'k' is of type f16, expected f32."

    assert refused.(%{all | 3 => "k"}) =~ "The input 'k' is \"k\", expected a Heddle.Tensor"
    assert refused.(%{all | 3 => %{x | data: <<0>>}}) =~ "The input 'k' has 1 bytes"
    assert refused.([]) =~ "The inputs are [], expected a map"
    assert_raise Error, ~r/is not given/, fn -> Plan.run!(plan, %{}) end
  end

  test "a graph that is none, or that no engine runs, is refused in the library's sentence" do
    assert {:error, %Error{status: :malformed_input, message: "line 1" <> _}} = Plan.new("[]")
    assert {:error, %Error{message: sentence}} = Plan.new(graph(left_bound: -1))
    assert sentence =~ "eft bound"
    assert {:error, %Error{message: sentence}} = Plan.new(graph(no_such_thing: 1))
    assert sentence =~ "no_such_thing"
    assert {:error, %Error{message: sentence}} = Plan.new(5)
    assert sentence == "The graph is 5, expected a Heddle.Graph or its text form."

    for dims <- [{2, 3}, %{}] do
      assert {:error, %Error{status: :invalid_value, message: sentence}} =
               Plan.new(Graph.tensor(Graph.new(), 1, "x", dims: dims))

      assert sentence =~ "A field of the graph is #{inspect(dims)}, expected a number"
    end

    assert_raise Error, fn -> Plan.new!("{") end
  end

  test "text is escaped" do
    name = "a \"b\" \\ \n \u00e9 \0"
    text = Graph.new(name) |> Graph.tensor(1, name) |> Graph.text()
    assert text =~ ~S(a \"b\" \\ \u000a)
    assert text =~ ~S(\u0000)
    # The form is read; what is missing is the dims.
    assert {:error, %Error{status: status}} = Plan.new(text)
    assert status != :malformed_input
  end

  defp packed do
    packed =
      Graph.new("packed", io_dtype: :f32)
      |> Graph.tensor(10, "offsets", dims: [3, 1, 1, 1], dtype: :i32)
      |> Graph.tensor(11, "lengths", dims: [2, 1, 1, 1], dtype: :i32)

    Enum.reduce([{1, "q"}, {2, "k"}, {3, "v"}, {4, "o"}], packed, fn {uid, name}, graph ->
      fields = [strides: [120, 8, 24, 1], ragged_offset: 10, ragged_offset_multiplier: 24]
      Graph.tensor(graph, uid, name, [dims: [2, 3, 5, 8]] ++ fields)
    end)
    |> Graph.node("sdpa",
      q: 1,
      k: 2,
      v: 3,
      o: 4,
      attn_scale: 0.3,
      padding_mask: true,
      seq_len_q: 11,
      seq_len_kv: 11
    )
  end

  test "a packed graph takes and gives what its offsets and lengths say" do
    plan = Plan.new!(packed())
    x = Draw.tensor({7, 3, 8})
    integers = fn list -> Tensor.from_list!(list, {length(list)}, :i32) end

    run = fn offsets, lengths, x ->
      Plan.run(plan, %{1 => x, 2 => x, 3 => x, 10 => integers.(offsets), 11 => integers.(lengths)})
    end

    {:ok, %{4 => o}} = run.([0, 2, 7], [2, 5], x)
    {:ok, expected} = FlashAttention.forward(x, x, x, offsets: [0, 2, 7], causal: false, scale: 0.3)
    assert o.data == expected.data
    # The last entry has fewer rows than there is room for, and the first none.
    {:ok, %{4 => o}} = run.([0, 2, 7], [0, 3], x)
    assert byte_size(o.data) == 5 * 24 * 4
    assert binary_part(o.data, 0, 2 * 24 * 4) == :binary.copy(<<0>>, 2 * 24 * 4)

    refused = fn offsets, lengths, x ->
      assert({:error, %Error{message: sentence}} = run.(offsets, lengths, x)) && sentence
    end

    short = %Tensor{data: binary_part(x.data, 0, 6 * 24 * 4), shape: {6, 3, 8}, type: :f32}

    assert refused.([0, 2, 7], [2, 5], short) ==
             "The tensor 'q', f32 [2, 3, 5, 8], is given a binary of 576 bytes, expected at least 672."

    assert refused.([-1, 2, 7], [2, 5], x) =~ "has entry 0 at offset -1, expected 0 or more"
    assert refused.([0, 0x7FFFFFFF, 7], [2, 5], x) =~ "expected at least"

    assert refused.([0, 8, 7], [0, 0x7FFFFFFF], Draw.tensor({20, 3, 8})) =~
             "by its offsets and lengths, expected no more than the 960 of its dims"
  end

  test "no offsets and lengths make a packed graph read or write elsewhere" do
    :rand.seed(:exsss, 3)
    plan = Plan.new!(packed())
    x = Draw.tensor({7, 3, 8})
    draw = fn -> Enum.random([0, 1, 2, 3, 5, 6, 7, 8, -1, 100, 0x7FFFFFFF, -0x80000000]) end

    ran =
      for _ <- 1..2000 do
        [offsets, lengths] =
          for count <- [3, 2], do: Tensor.from_list!(for(_ <- 1..count, do: draw.()), {count}, :i32)

        match?({:ok, _}, Plan.run(plan, %{1 => x, 2 => x, 3 => x, 10 => offsets, 11 => lengths}))
      end

    assert Enum.any?(ran) and not Enum.all?(ran)
  end

  test "results that no memory holds are refused" do
    # A query read 2^40 times over asks for 32 TiB of results of 32 bytes given.
    broad =
      Graph.new("broad", io_dtype: :f32)
      |> Graph.tensor(1, "q", dims: [0x100000, 1, 0x100000, 8], strides: [0, 8, 0, 1])
      |> Graph.tensor(2, "k", dims: [0x100000, 1, 1, 8], strides: [0, 8, 8, 1])
      |> Graph.tensor(3, "v", dims: [0x100000, 1, 1, 8], strides: [0, 8, 8, 1])
      |> Graph.tensor(4, "o", dims: [0x100000, 1, 0x100000, 8], strides: [0x800000, 0x800000, 8, 1])
      |> Graph.node("sdpa", q: 1, k: 2, v: 3, o: 4)

    case Plan.new(broad) do
      {:ok, plan} ->
        x = Draw.tensor({8})

        assert {:error, %Error{status: :out_of_memory, message: sentence}} =
                 Plan.run(plan, %{1 => x, 2 => x, 3 => x})

        assert sentence =~ "There is no memory for"

      {:error, error} ->
        flunk(error.message)
    end
  end

  test "lengths that are none of the tensor's are clamped" do
    padded = graph() |> Graph.tensor(11, "lengths", dims: [2, 1, 1, 1], dtype: :i64)

    padded =
      %{padded | nodes: []}
      |> Graph.node("sdpa", q: 7, k: 3, v: 9, o: 5, padding_mask: true, seq_len_q: 11, seq_len_kv: 11)

    x = Draw.tensor({2, 3, 5, 8})
    plan = Plan.new!(padded)

    for {hostile, like} <- [{[0x7FFFFFFFFFFFFFFF, 6], [5, 5]}, {[-1, -0x8000000000000000], [0, 0]}] do
      [found, expected] =
        for lengths <- [hostile, like] do
          Plan.run!(plan, %{7 => x, 3 => x, 9 => x, 11 => Tensor.from_list!(lengths, {2}, :i64)})
        end

      assert found == expected
    end
  end
end
