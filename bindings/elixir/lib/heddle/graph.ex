defmodule Heddle.Graph do
  @moduledoc """
  A graph of attention ops, put together here or read by the library from its text form, the JSON of
  `docs/graph-text-form.md`. `Heddle.Plan` runs it.

      iex> rows = [batch: 1, heads: 2, length: 3, dim: 4]
      iex> dims = Keyword.values(rows)
      iex> graph =
      ...>   Heddle.Graph.new("attention", io_dtype: :f32)
      ...>   |> Heddle.Graph.tensor(1, "q", dims: dims)
      ...>   |> Heddle.Graph.tensor(2, "k", dims: dims)
      ...>   |> Heddle.Graph.tensor(3, "v", dims: dims)
      ...>   |> Heddle.Graph.tensor(4, "o")
      ...>   |> Heddle.Graph.node("sdpa", q: 1, k: 2, v: 3, o: 4, attn_scale: 0.5)
      iex> {:ok, plan} = Heddle.Plan.new(graph)
      iex> Enum.map(plan.inputs, & &1.name)
      ["q", "k", "v"]
  """

  alias Heddle.{Error, Tensor}

  @enforce_keys [:name, :types]
  defstruct [:name, :types, tensors: [], nodes: []]

  @type t :: %__MODULE__{
          name: String.t(),
          types: keyword(atom),
          tensors: [keyword],
          nodes: [keyword]
        }
  @typedoc """
  A port or attribute: a tensor's uid, a number (also `:infinity`, `:neg_infinity`), a flag, a name, a list of them, or
  a group as a keyword list.
  """
  @type value :: number | boolean | atom | String.t() | [value] | keyword(value)

  @doc "An empty graph. `types` may have `io_dtype`, `intermediate_dtype` and `compute_dtype`."
  @spec new(String.t(), keyword(atom)) :: t
  def new(name \\ "", types \\ []), do: %__MODULE__{name: name, types: types}

  @doc "Adds a tensor. `fields` are those of the text form: `dtype`, `dims`, `strides`, `virtual`, `constant`, ..."
  @spec tensor(t, integer, String.t(), keyword(value)) :: t
  def tensor(%__MODULE__{} = graph, uid, name, fields \\ []),
    do: %{graph | tensors: [[uid: uid, name: name] ++ fields | graph.tensors]}

  @doc "Adds a node of an op; fields that are nil are not set."
  @spec node(t, String.t(), keyword(value | nil)) :: t
  def node(%__MODULE__{} = graph, op, fields) do
    given = Enum.reject(fields, fn {_name, value} -> value == nil end)
    %{graph | nodes: [[op: op] ++ given | graph.nodes]}
  end

  @doc """
  The text form. Raises a `Heddle.Error` where a field is none of `t:value/0`.

      iex> Heddle.Graph.new("g") |> Heddle.Graph.tensor(1, "x", dims: [2, 3]) |> Heddle.Graph.text()
      ~S({"heddle_graph":1,"name":"g","tensors":[{"uid":1,"name":"x","dims":[2,3]}],"nodes":[]})
  """
  @spec text(t) :: String.t()
  def text(%__MODULE__{} = graph) do
    named = if graph.name == "", do: [], else: [name: graph.name]

    ([heddle_graph: 1] ++ named ++ graph.types)
    |> Enum.concat(tensors: {:list, Enum.reverse(graph.tensors)}, nodes: {:list, Enum.reverse(graph.nodes)})
    |> encode([])
    |> IO.iodata_to_binary()
  end

  # A keyword list is an object, any other list an array; {:list, values} is an array that may be empty. What comes behind
  # is given, so that all is one flat list: it is made for every call.
  defp encode({:list, values}, rest), do: [?[ | values(values, rest)]

  defp encode([{key, value} | more], rest) when is_atom(key),
    do: [?{ | field(key, value, fields(more, rest))]

  defp encode(values, rest) when is_list(values), do: [?[ | values(values, rest)]
  defp encode(value, rest) when is_integer(value) and value >= 0, do: digits(value, rest)
  defp encode(value, rest) when is_integer(value), do: [?- | digits(-value, rest)]
  defp encode(value, rest) when is_float(value), do: [Float.to_string(value) | rest]
  defp encode(value, rest) when is_binary(value), do: string(value, rest)
  defp encode(value, rest) when is_boolean(value), do: [Atom.to_string(value) | rest]
  defp encode(:infinity, rest), do: [~S("inf") | rest]
  defp encode(:neg_infinity, rest), do: [~S("-inf") | rest]
  defp encode(:nan, rest), do: [~S("nan") | rest]
  defp encode(value, rest) when is_atom(value), do: string(Atom.to_string(value), rest)

  defp encode(other, _rest) do
    raise Error,
      status: :invalid_value,
      message:
        "A field of the graph is #{Tensor.brief(other)}, expected a number, a flag, a name, a list or a keyword list."
  end

  # Of numbers of few digits faster than Integer.to_string/1.
  defp digits(value, rest) when value < 10, do: [?0 + value | rest]
  defp digits(value, rest), do: digits(div(value, 10), [?0 + rem(value, 10) | rest])

  defp values([], rest), do: [?] | rest]
  defp values([value], rest), do: encode(value, [?] | rest])
  defp values([value | more], rest), do: encode(value, [?, | values(more, rest)])

  defp fields([], rest), do: [?} | rest]
  defp fields([{key, value} | more], rest), do: [?, | field(key, value, fields(more, rest))]
  defp field(key, value, rest), do: [?", Atom.to_string(key), ~S(":) | encode(value, rest)]

  defp string(text, rest),
    do: [?", if(plain?(text), do: text, else: for(<<byte <- text>>, do: escaped(byte))), ?" | rest]

  defp plain?(<<byte, rest::binary>>) when byte >= 0x20 and byte not in [?", ?\\], do: plain?(rest)
  defp plain?(rest), do: rest == ""

  defp escaped(?"), do: ~S(\")
  defp escaped(?\\), do: ~S(\\)
  defp escaped(byte) when byte < 0x20, do: :io_lib.format("\\u~4.16.0b", [byte])
  defp escaped(byte), do: byte
end
