defmodule Heddle.FlashAttention.Packing do
  @moduledoc false
  # Sequences of many lengths, one behind the other in tensors of {tokens, heads, dim}. To the checks of shapes they are a
  # batch of one; the graph is told of entries and where each begins.

  alias Heddle.{Error, Tensor}

  @enforce_keys [:q, :kv]
  defstruct [:q, :kv]

  @typedoc "Where each entry begins among q's tokens, and k's; the last number is how many there are."
  @type t :: %__MODULE__{q: [non_neg_integer], kv: [non_neg_integer]}

  @doc "The option `offsets`; nil if it is not given."
  @spec new(term) :: {:ok, t | nil} | {:error, Error.t()}
  def new(options) do
    case if(Keyword.keyword?(options), do: options[:offsets]) do
      nil -> {:ok, nil}
      {q, kv} -> both(q, kv)
      same -> both(same, same)
    end
  end

  defp both(q, kv) do
    with {:ok, q} <- cumulative(q), {:ok, kv} <- cumulative(kv) do
      if length(q) == length(kv),
        do: {:ok, %__MODULE__{q: q, kv: kv}},
        else:
          Error.invalid(
            "offsets has #{length(q) - 1} entries of q and #{length(kv) - 1} of k, expected as many of both."
          )
    end
  end

  defp cumulative(given) do
    list =
      case given do
        list when is_list(list) ->
          list

        other ->
          with(
            {:ok, %Tensor{shape: {_}} = tensor} <- Tensor.from(other, "offsets"),
            do: Tensor.to_list(tensor)
          )
      end

    if is_list(list) and not List.improper?(list) and length(list) > 1 and hd(list) == 0 and
         Enum.all?(list, &is_integer/1) and list == Enum.sort(list),
       do: {:ok, list},
       else:
         Error.invalid(
           "offsets is #{Tensor.brief(given)}, expected 0 and where each entry ends, integers that do not fall, or {q's, k's}."
         )
  end

  @doc "A tensor of q's or k's tokens, seen as a batch of one."
  @spec as_batch(Tensor.t(), String.t(), t | nil) :: {:ok, Tensor.t()} | {:error, Error.t()}
  def as_batch(tensor, _name, nil), do: {:ok, tensor}

  def as_batch(%Tensor{shape: {n, h, d}} = tensor, _name, _packing),
    do: {:ok, %{tensor | shape: {1, n, h, d}}}

  def as_batch(tensor, name, _packing),
    do:
      Error.invalid(
        "#{name} has the shape #{inspect(tensor.shape)}, expected {tokens, heads, dim} with offsets."
      )

  @doc "The sizes of the entries: `batch` of them, of at most so many tokens."
  @spec sizes(map, t | nil) :: {:ok, map} | {:error, Error.t()}
  def sizes(sizes, nil), do: {:ok, Map.merge(sizes, %{packing: nil, tokens: nil})}

  def sizes(sizes, packing) do
    cond do
      List.last(packing.q) != sizes.length ->
        Error.invalid("offsets ends at #{List.last(packing.q)}, expected q's #{sizes.length} tokens.")

      List.last(packing.kv) != sizes.kv_length ->
        Error.invalid("offsets ends at #{List.last(packing.kv)}, expected k's #{sizes.kv_length} tokens.")

      true ->
        {:ok,
         Map.merge(sizes, %{
           packing: packing,
           tokens: sizes.length,
           batch: length(packing.q) - 1,
           length: Enum.max(lengths(packing.q)),
           kv_length: Enum.max(lengths(packing.kv))
         })}
    end
  end

  @spec lengths([non_neg_integer]) :: [non_neg_integer]
  def lengths(offsets), do: Enum.zip_with(tl(offsets), offsets, &(&1 - &2))
end
