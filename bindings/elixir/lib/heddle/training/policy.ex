defmodule Heddle.Training.Policy do
  @moduledoc """
  A policy network: what to do at each step of a sequence of states.

      e = tanh(states embedding + embedding_bias)
      output = attention(e query, e key, e value)
      logits = output head + head_bias

  Its parameters are a map of tensors, f64 or f32: `embedding` `{features, width}`, `embedding_bias` `{width}`, `query`
  `{width, heads * dim}`, `key` and `value` `{width, kv_heads * dim}`, `head` `{heads * dim, actions}`, `head_bias`
  `{actions}`.
  """

  alias Heddle.{Error, FlashAttention, Options, Tensor}
  alias Heddle.Training.Matrix

  @names [:embedding, :embedding_bias, :query, :key, :value, :head, :head_bias]

  @type parameters :: %{atom => Tensor.t()}
  @typedoc "`states` f32 or f64 `{batch, length, features}`; `actions` integers `{batch, length}`, each below their number."
  @type batch :: %{states: Tensor.like(), actions: Tensor.like()}
  @typedoc """
  How many heads the query has, options of `Heddle.FlashAttention`, and the device that q, k and v are resident on; nil is
  none.
  """
  @type config :: %{
          required(:heads) => pos_integer,
          required(:attention) => keyword,
          optional(:device) => Tensor.device() | nil
        }

  @doc """
  Parameters drawn at random, normal with variance 1 / rows, biases 0, for `:rand.seed/2`'s generator of the process.

  Options, all integers: `features`, `width`, `heads`, `dim`, `actions`, and `kv_heads`, which is `heads` by default.
  """
  @spec init(keyword(pos_integer)) :: {:ok, parameters} | {:error, Error.t()}
  def init(options) do
    wanted = [:features, :width, :heads, :dim, :actions, :kv_heads]

    with :ok <- Options.known(options, wanted),
         options = Keyword.put_new(options, :kv_heads, options[:heads]),
         nil <- Enum.find(wanted, &(not positive?(options[&1]))) do
      [features, width, heads, dim, actions, kv_heads] = Enum.map(wanted, &Keyword.fetch!(options, &1))

      {:ok,
       %{
         embedding: normal(features, width),
         embedding_bias: zeros(width),
         query: normal(width, heads * dim),
         key: normal(width, kv_heads * dim),
         value: normal(width, kv_heads * dim),
         head: normal(heads * dim, actions),
         head_bias: zeros(actions)
       }}
    else
      {:error, error} ->
        {:error, error}

      name ->
        Error.invalid("#{name} is #{Tensor.brief(options[name])}, expected an integer of at least 1.")
    end
  end

  @doc "The mean cross-entropy of the actions, and its gradient by each parameter as a map of flat lists."
  @spec loss_and_gradients(parameters, batch, config) ::
          {:ok, float, %{atom => [float]}} | {:error, Error.t()}
  def loss_and_gradients(parameters, batch, config) do
    with {:ok, p, sizes} <- read_parameters(parameters, config),
         {:ok, states, actions, sizes} <- read_batch(batch, sizes),
         {:ok, forward} <- forward(p, states, sizes, config) do
      {loss, d_logits} = cross_entropy(forward.logits, actions)
      backward(p, states, forward, d_logits, sizes, config, loss)
    end
  rescue
    # A float of Erlang is finite: what would be infinite is an error of arithmetic.
    ArithmeticError ->
      Error.invalid("The network's numbers left the range of floats, expected smaller parameters.")
  end

  @doc "The logits `{batch, length, actions}` of a batch's states, f64."
  @spec logits(parameters, Tensor.like(), config) :: {:ok, Tensor.t()} | {:error, Error.t()}
  def logits(parameters, states, config) do
    with {:ok, p, sizes} <- read_parameters(parameters, config),
         {:ok, states, sizes} <- read_states(states, sizes),
         {:ok, forward} <- forward(p, states, sizes, config) do
      Tensor.from_list(List.flatten(forward.logits), {sizes.batch, sizes.length, sizes.actions}, :f64)
    end
  rescue
    ArithmeticError ->
      Error.invalid("The network's numbers left the range of floats, expected smaller parameters.")
  end

  defp forward(p, states, sizes, config) do
    embedded =
      states |> Matrix.product(p.embedding) |> Matrix.add_row(p.embedding_bias) |> Matrix.map(&:math.tanh/1)

    with {:ok, q} <- to_heads(Matrix.product(embedded, p.query), sizes, config),
         {:ok, k} <- to_heads(Matrix.product(embedded, p.key), sizes, config),
         {:ok, v} <- to_heads(Matrix.product(embedded, p.value), sizes, config),
         {:ok, output, logsumexp} <- FlashAttention.forward_with_states(q, k, v, config.attention),
         {:ok, rows} <- from_heads(output, "The attention's output") do
      logits = rows |> Matrix.product(p.head) |> Matrix.add_row(p.head_bias)

      {:ok,
       %{
         embedded: embedded,
         q: q,
         k: k,
         v: v,
         output: output,
         logsumexp: logsumexp,
         rows: rows,
         logits: logits
       }}
    end
  end

  # Each layer's gradient by what it was given, from the last to the first; attention's is the native library's.
  defp backward(p, states, forward, d_logits, sizes, config, loss) do
    d_rows = Matrix.product_with_transposed(d_logits, p.head)

    with {:ok, d_output} <- to_heads(d_rows, sizes, config),
         {:ok, d_q, d_k, d_v} <-
           FlashAttention.backward(
             d_output,
             forward.q,
             forward.k,
             forward.v,
             forward.output,
             forward.logsumexp,
             config.attention
           ),
         {:ok, d_q} <- from_heads(d_q, "The gradient of q"),
         {:ok, d_k} <- from_heads(d_k, "The gradient of k"),
         {:ok, d_v} <- from_heads(d_v, "The gradient of v") do
      d_embedded =
        [{d_q, p.query}, {d_k, p.key}, {d_v, p.value}]
        |> Enum.map(fn {gradient, weight} -> Matrix.product_with_transposed(gradient, weight) end)
        |> Enum.reduce(&Matrix.add/2)

      d_before = Matrix.zip(d_embedded, forward.embedded, fn d, e -> d * (1 - e * e) end)

      {:ok, loss,
       %{
         embedding: List.flatten(Matrix.product_of_transposed(states, d_before)),
         embedding_bias: Matrix.sum_of_rows(d_before),
         query: List.flatten(Matrix.product_of_transposed(forward.embedded, d_q)),
         key: List.flatten(Matrix.product_of_transposed(forward.embedded, d_k)),
         value: List.flatten(Matrix.product_of_transposed(forward.embedded, d_v)),
         head: List.flatten(Matrix.product_of_transposed(forward.rows, d_logits)),
         head_bias: Matrix.sum_of_rows(d_logits)
       }}
    end
  end

  defp cross_entropy(logits, actions) do
    count = length(actions)

    {losses, gradients} =
      Enum.zip_with(logits, actions, fn row, action ->
        largest = Enum.max(row)
        weights = Enum.map(row, &:math.exp(&1 - largest))
        total = Enum.sum(weights)

        gradient =
          weights
          |> Enum.with_index()
          |> Enum.map(fn {w, i} -> (w / total - if(i == action, do: 1, else: 0)) / count end)

        {largest + :math.log(total) - Enum.at(row, action), gradient}
      end)
      |> Enum.unzip()

    {Enum.sum(losses) / count, gradients}
  end

  # ---- Between rows of floats and tensors of heads.

  # Where attention runs they stay from the forward pass to the backward one: each is copied once.
  defp to_heads([row | _] = rows, sizes, config) do
    shape = {sizes.batch, sizes.length, div(length(row), sizes.dim), sizes.dim}

    with {:ok, tensor} <- Tensor.from_list(List.flatten(rows), shape, :f32) do
      case config[:device] do
        nil -> {:ok, tensor}
        device -> Tensor.upload(tensor, device)
      end
    end
  end

  defp from_heads(%Tensor{shape: {_batch, _length, heads, dim}} = tensor, name),
    do: finite_rows(Tensor.to_list(tensor), heads * dim, name)

  defp finite_rows(elements, columns, name) do
    if Enum.all?(elements, &is_number/1),
      do: {:ok, elements |> Enum.map(&(&1 * 1.0)) |> Enum.chunk_every(columns)},
      else: Error.invalid("#{name} has an element that is not finite, expected none.")
  end

  # ---- What is given.

  defp read_parameters(parameters, config) when is_map(parameters) do
    with {:ok, p} <- tensors(parameters),
         {:ok, sizes} <- sizes(p, config) do
      {:ok,
       Map.new(p, fn
         {name, {[row], 1}} -> {name, row}
         {name, {rows, 2}} -> {name, rows}
       end), sizes}
    end
  end

  defp read_parameters(other, _config),
    do: Error.invalid("The parameters are #{Tensor.brief(other)}, expected a map of tensors.")

  # Name -> {rows, rank}.
  defp tensors(parameters) do
    Enum.reduce_while(@names, {:ok, %{}}, fn name, {:ok, read} ->
      with {:ok, tensor} <- Tensor.from(Map.get(parameters, name), "The parameter #{name}"),
           rank = if(name in [:embedding_bias, :head_bias], do: 1, else: 2),
           :ok <- float_of_rank(tensor, rank, "The parameter #{name}"),
           columns = elem(tensor.shape, rank - 1),
           {:ok, rows} <- finite_rows(Tensor.to_list(tensor), columns, "The parameter #{name}") do
        {:cont, {:ok, Map.put(read, name, {rows, rank})}}
      else
        error -> {:halt, error}
      end
    end)
  end

  defp float_of_rank(%Tensor{shape: shape, type: type}, rank, _name)
       when tuple_size(shape) == rank and type in [:f32, :f64],
       do: :ok

  defp float_of_rank(tensor, rank, name),
    do:
      Error.invalid(
        "#{name} is #{tensor.type} of #{inspect(tensor.shape)}, expected f32 or f64 of #{rank} dims."
      )

  defp sizes(p, %{heads: heads}) do
    [
      {features, width},
      {_, bias},
      {from_e, q},
      {from_e_k, k},
      {from_e_v, v},
      {from_o, actions},
      {_, head_bias}
    ] = for name <- @names, {rows, _rank} = Map.fetch!(p, name), do: {length(rows), length(hd(rows))}

    cond do
      not positive?(heads) or rem(q, heads) != 0 ->
        Error.invalid("heads is #{Tensor.brief(heads)}, expected a divisor of query's #{q} columns.")

      [bias, from_e, from_e_k, from_e_v] != [width, width, width, width] ->
        Error.invalid(
          "embedding_bias has #{bias} columns and query, key and value have #{from_e}, #{from_e_k} and #{from_e_v} rows, " <>
            "expected embedding's #{width} columns of each."
        )

      k != v or rem(k, div(q, heads)) != 0 ->
        Error.invalid(
          "key and value have #{k} and #{v} columns, expected as many, a multiple of #{div(q, heads)}."
        )

      from_o != q or head_bias != actions ->
        Error.invalid(
          "head is {#{from_o}, #{actions}} and head_bias has #{head_bias} columns, expected query's #{q} columns as rows, " <>
            "and as many columns."
        )

      true ->
        {:ok, %{features: features, heads: heads, dim: div(q, heads), actions: actions}}
    end
  end

  defp read_batch(%{states: states, actions: actions}, sizes) do
    with {:ok, states, sizes} <- read_states(states, sizes),
         {:ok, actions} <- read_actions(actions, sizes) do
      {:ok, states, actions, sizes}
    end
  end

  defp read_batch(other, _sizes),
    do: Error.invalid("The batch is #{Tensor.brief(other)}, expected a map with states and actions.")

  defp read_states(given, %{features: features} = sizes) do
    with {:ok, states} <- Tensor.from(given, "states") do
      case states do
        %Tensor{shape: {batch, length, ^features}, type: type} when type in [:f32, :f64] ->
          with {:ok, rows} <- finite_rows(Tensor.to_list(states), features, "states") do
            {:ok, rows, Map.merge(sizes, %{batch: batch, length: length})}
          end

        _ ->
          Error.invalid(
            "states is #{states.type} of #{inspect(states.shape)}, expected f32 or f64 of {batch, length, #{features}}."
          )
      end
    end
  end

  defp read_actions(given, %{batch: batch, length: length} = sizes) do
    with {:ok, actions} <- Tensor.from(given, "actions") do
      list = Tensor.to_list(actions)

      if actions.shape == {batch, length} and
           Enum.all?(list, &(is_integer(&1) and &1 in 0..(sizes.actions - 1))),
         do: {:ok, list},
         else:
           Error.invalid(
             "actions is #{actions.type} of #{inspect(actions.shape)}, expected integers from 0 to #{sizes.actions - 1} of " <>
               "#{inspect({batch, length})}."
           )
    end
  end

  defp positive?(value), do: is_integer(value) and value > 0

  defp normal(rows, columns) do
    deviation = 1 / :math.sqrt(rows)

    Tensor.from_list!(
      for(_ <- 1..(rows * columns), do: deviation * :rand.normal()),
      {rows, columns},
      :f64
    )
  end

  defp zeros(columns), do: Tensor.from_list!(List.duplicate(0, columns), {columns}, :f64)
end
