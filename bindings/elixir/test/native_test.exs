defmodule Heddle.NativeTest do
  use ExUnit.Case, async: true

  alias Heddle.{Draw, Error, Native}

  @sizes [2, 5, 3, 8]

  setup_all do
    [q, k, v, d_out] = for _ <- 1..4, do: Draw.tensor(List.to_tuple(@sizes)).data
    {:ok, output, logsumexp} = apply(Native, :forward_with_logsumexp, [q, k, v] ++ @sizes ++ [true])
    %{q: q, k: k, v: v, d_out: d_out, output: output, logsumexp: logsumexp}
  end

  defp forward(c, changes \\ []) do
    given = [c.q, c.k, c.v] ++ @sizes ++ [true]
    apply(Native, :forward_with_logsumexp, changed(given, changes))
  end

  defp backward(c, changes \\ []) do
    given = [c.d_out, c.q, c.k, c.v, c.output, c.logsumexp] ++ @sizes ++ [true]
    apply(Native, :backward_f32, changed(given, changes))
  end

  defp changed(arguments, changes),
    do: Enum.reduce(changes, arguments, fn {i, value}, list -> List.replace_at(list, i, value) end)

  defp sentence({:error, %Error{status: :invalid_value, message: message}}), do: message

  test "both spellings are the same function", c do
    assert apply(Native, :forward_with_logsumexp_nif, [c.q, c.k, c.v] ++ @sizes ++ [true]) == forward(c)

    assert apply(
             Native,
             :backward_f32_nif,
             [c.d_out, c.q, c.k, c.v, c.output, c.logsumexp] ++ @sizes ++ [true]
           ) == backward(c)

    assert {:ok, dq, dk, dv} = backward(c)
    assert [byte_size(dq), byte_size(dk), byte_size(dv)] == [960, 960, 960]
    assert Native.version() == Mix.Project.config()[:version]
  end

  test "causal is taken at its word", c do
    {:ok, whole, _} = forward(c, [{7, false}])
    assert whole != c.output
    # The last row sees every key either way.
    last = fn output -> binary_part(output, 4 * 3 * 8 * 4, 3 * 8 * 4) end
    assert last.(whole) == last.(c.output)
    # The first row sees the first key alone.
    assert binary_part(c.output, 0, 96) == binary_part(c.v, 0, 96)
  end

  test "parts of other binaries are read wherever they begin", c do
    for offset <- 1..5 do
      parts =
        for name <- [:q, :k, :v] do
          <<_::binary-size(offset), part::binary>> =
            :binary.copy(<<0::size(offset)-unit(8), Map.fetch!(c, name)::binary>>)

          part
        end

      assert apply(Native, :forward_with_logsumexp, parts ++ @sizes ++ [true]) == {:ok, c.output, c.logsumexp}
    end
  end

  test "binaries have to be of the sizes' size", c do
    assert sentence(forward(c, [{1, binary_part(c.k, 0, 956)}])) ==
             "k has 956 bytes, expected 960: f32 of [batch, seq_len, num_heads, head_dim]."

    assert sentence(forward(c, [{0, c.q <> <<0>>}])) =~ "q has 961 bytes"
    assert sentence(forward(c, [{2, <<>>}])) =~ "v has 0 bytes"
    assert sentence(forward(c, [{0, <<1::3>>}])) == "q is no binary, expected one of f32."
    assert sentence(forward(c, [{0, [c.q]}])) =~ "q is no binary"

    assert sentence(backward(c, [{5, c.q}])) ==
             "logsumexp has 960 bytes, expected 120: f32 of [batch, num_heads, seq_len]."

    assert sentence(backward(c, [{0, <<>>}])) =~ "d_out has 0 bytes"
    assert sentence(backward(c, [{4, nil}])) =~ "output is no binary"
  end

  test "sizes that are none, or that no memory has, are refused", c do
    for {i, name} <- [{3, "batch"}, {4, "seq_len"}, {5, "num_heads"}, {6, "head_dim"}],
        wrong <- [0, -1, 2.0, :two, nil, 0x8000000000000000, -0x8000000000000001] do
      assert sentence(forward(c, [{i, wrong}])) =~ "#{name} is no integer of 1 to 2^63 - 1"
    end

    huge = 0x7FFFFFFFFFFFFFFF

    for sizes <- [[huge, huge, huge, huge], [huge, 1, 1, 1], [0x100000000, 0x100000000, 1, 1]] do
      changes = Enum.zip(3..6, sizes)
      assert sentence(forward(c, changes)) =~ "together ask for more than 2^63 - 1 bytes"
      assert sentence(backward(c, Enum.zip(6..9, sizes))) =~ "together ask for more than 2^63 - 1 bytes"
    end

    assert sentence(forward(c, [{3, 0x100000000}])) =~ "q has 960 bytes, expected 2061584302080"

    for wrong <- [:yes, 1, "true", nil],
        do: assert(sentence(forward(c, [{7, wrong}])) =~ "causal is neither true nor false")
  end

  # `./fuzz` does so for ten minutes.
  test "no terms make a function fail otherwise" do
    :rand.seed(:exsss, 1)
    materials = Heddle.Fuzz.materials()

    assert Enum.sort(Enum.uniq(Keyword.keys(materials.calls))) ==
             Enum.sort(Keyword.keys(Native.__info__(:functions)) -- [:load, :borrow])

    for _ <- 1..20_000, do: Heddle.Fuzz.call(materials)
  end

  test "lists and texts too long for a scheduler are refused or sent to another" do
    text = Heddle.Fuzz.text()
    inputs = for uid <- 1..3, do: {uid, <<0::size(2 * 3 * 4 * 32)>>}
    more = for uid <- 5..1025, do: {uid, <<>>}
    assert {:ok, [_]} = Native.run(text, :cpu, Enum.reverse(inputs ++ more), :binaries)

    assert sentence(Native.run(text, :cpu, inputs ++ [{4, <<>>} | more], :binaries)) ==
             "There are more inputs than 1024, expected those that the graph binds."

    long = text <> :binary.copy(" ", 1_000_000)
    for _ <- 1..2, do: assert({:ok, [_]} = Native.run(long, :cpu, inputs, :binaries))
  end

  test "no damaged text makes a plan fail otherwise" do
    :rand.seed(:exsss, 1)
    text = Heddle.Fuzz.text()
    inputs = for uid <- 1..3, do: {uid, <<0::size(2 * 3 * 4 * 32)>>}
    assert {:ok, [_]} = Native.run(text, :cpu, inputs, :binaries)

    for _ <- 1..3000 do
      assert {state, _} = Native.run(Heddle.Fuzz.damaged(text), :cpu, inputs, :binaries)
      assert state in [:ok, :error]
    end
  end
end
