defmodule Heddle.Fuzz do
  @moduledoc """
  Calls of every function of `Heddle.Native`: valid ones, of which some arguments are replaced by other terms, and graphs
  whose text is damaged. `borrow/4` is not among them: no address that it is given can be looked at. Draws are those of `:rand` in the calling process.
  """

  alias Heddle.{Draw, Error, Native}

  @sizes [1, 3, 2, 4]

  @doc "What calls are put together from."
  def materials do
    [q, k, v, d_out] = for _ <- 1..4, do: Draw.tensor(List.to_tuple(@sizes)).data
    {:ok, output, lse} = apply(Native, :forward_with_logsumexp, [q, k, v] ++ @sizes ++ [true])
    {:ok, plan} = Native.plan(text(), :cpu)
    {:ok, memory} = Native.upload(q, :cpu)
    {:ok, other} = Native.upload(<<1, 2, 3>>, :cpu)
    inputs = for {uid, data} <- [{1, q}, {2, memory}, {3, v}], do: {uid, data}
    forward = [q, k, v] ++ @sizes ++ [true]
    backward = [d_out, q, k, v, output, lse] ++ @sizes ++ [false]

    %{
      calls: [
        version: [],
        live_plans: [],
        live_memory: [],
        upload: [q, :cpu],
        download: [memory],
        memory: [memory],
        address: [memory],
        plan: [text(), :cpu],
        plan_ports: [plan],
        plan_workspace: [plan],
        register_xla: ["libc.so.6"],
        plan_description: [plan],
        run: [text(), :cpu, inputs, :binaries],
        execute: [plan, inputs, :memory],
        forward_with_logsumexp: forward,
        forward_with_logsumexp_nif: forward,
        backward_f32: backward,
        backward_f32_nif: backward
      ],
      terms: [q, memory, other, plan, text(), inputs, binary_part(q, 1, 92), {:ok, plan}]
    }
  end

  @doc "One call of a function drawn; raises if its result is neither what it gives nor an error with a sentence."
  def call(%{calls: calls} = materials) do
    {name, arguments} = Enum.random(calls)

    arguments =
      Enum.map(arguments, fn argument ->
        if :rand.uniform(3) == 1, do: other(argument, materials), else: argument
      end)

    result = apply(Native, name, arguments)

    unless sound?(result),
      do: raise("Heddle.Native.#{name} of #{inspect(arguments, limit: 200)} gave #{inspect(result)}")
  end

  @doc "A graph's text with a byte left out, put in, doubled or changed, once or more."
  def damaged(text) do
    text = damage(text)
    if :rand.uniform(3) == 1 and text != "", do: damaged(text), else: text
  end

  @doc "Attention of [1, 2, 3, 4]."
  def text do
    tensors = for {name, uid} <- [q: 1, k: 2, v: 3], do: ~s({"uid":#{uid},"name":"#{name}","dims":[1,2,3,4]})

    ~s({"heddle_graph":1,"io_dtype":"f32","tensors":[#{Enum.join(tensors, ",")},{"uid":4,"name":"o"}],) <>
      ~s("nodes":[{"op":"sdpa","q":1,"k":2,"v":3,"o":4,"attn_scale":0.5}]})
  end

  defp damage(text) do
    at = :rand.uniform(byte_size(text)) - 1
    <<before::binary-size(at), byte, rest::binary>> = text

    case :rand.uniform(4) do
      1 -> <<before::binary, rest::binary>>
      2 -> <<before::binary, Enum.random(~c"0123456789-,.[]{}\":e"), rest::binary>>
      3 -> <<before::binary, byte, byte, rest::binary>>
      4 -> <<before::binary, :rand.uniform(256) - 1, byte, rest::binary>>
    end
  end

  # Mostly something of the argument's own kind.
  defp other(argument, materials) do
    case :rand.uniform(4) do
      1 ->
        term(materials, 3)

      2 when is_integer(argument) ->
        argument + Enum.random([-1, 1, 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF])

      2 when is_binary(argument) and argument != "" ->
        if(argument =~ "heddle_graph", do: damaged(argument), else: part(argument))

      2 when is_list(argument) ->
        Enum.map(argument, fn x -> if :rand.uniform(3) == 1, do: input(materials), else: x end)

      2 when is_atom(argument) ->
        Enum.random([:cpu, :cuda, :binaries, :memory, true, false])

      2 ->
        Enum.random(materials.terms)

      _ ->
        argument
    end
  end

  defp input(materials), do: {Enum.random([1, 2, 3, 4, -1, 0x7FFFFFFFFFFFFFFF]), Enum.random(materials.terms)}

  defp part(binary) do
    from = :rand.uniform(byte_size(binary)) - 1
    binary_part(binary, from, :rand.uniform(byte_size(binary) - from))
  end

  defp term(materials, depth) do
    case :rand.uniform(if(depth == 0, do: 9, else: 13)) do
      1 -> :rand.uniform(20) - 10
      2 -> Enum.random([0x7FFFFFFFFFFFFFFF, -0x8000000000000000, Bitwise.bsl(1, 70), 1.5, -0.0])
      3 -> Enum.random([nil, true, :cpu, :binaries, :"", :a_name_of_more_than_sixteen_letters, :"\u00e9"])
      4 -> :rand.bytes(:rand.uniform(200) - 1)
      5 -> <<:rand.uniform(8)::4>>
      6 -> Enum.random(materials.terms)
      7 -> make_ref()
      8 -> Enum.random([self(), fn -> 1 end, %{}, {}, []])
      9 -> damaged(text())
      10 -> for _ <- 1..:rand.uniform(4), do: term(materials, depth - 1)
      11 -> [term(materials, depth - 1) | term(materials, depth - 1)]
      12 -> {term(materials, depth - 1), term(materials, depth - 1)}
      13 -> for _ <- 1..:rand.uniform(4), do: input(materials)
    end
  end

  defp sound?({:error, %Error{status: status, message: <<_, _::binary>>}}), do: is_atom(status)
  defp sound?(result) when is_binary(result) or is_integer(result), do: true
  defp sound?({count, bytes}) when is_integer(count) and is_integer(bytes), do: true
  defp sound?(result), do: is_tuple(result) and elem(result, 0) == :ok
end
