defmodule Heddle.Norm do
  @moduledoc false
  # What RmsNorm and LayerNorm share: the checks of their arguments, and their graphs, which differ in what is kept of rows.

  alias Heddle.{Call, Error, Options, Tensor}

  @floats [:f64, :f32, :bf16, :f16]
  @x 1
  @weight 2
  @bias 3
  @epsilon 4
  @dy 5
  @y 11
  @dx 14
  @d_weight 15
  @d_bias 16
  # What is kept of a row, as sentences call it: its port, and its uids where it is given and where it is made. Those that
  # are made come by ascending uid, behind y: the mean first.
  @states %{mean: {:mean, 6, 12}, inverse: {:inv_variance, 7, 13}}

  @type state :: :mean | :inverse

  @doc "y, then the states, which are in the order above."
  @spec forward(String.t(), [state], Tensor.like(), Tensor.like(), keyword) ::
          {:ok, [Tensor.like()]} | {:error, Error.t()}
  def forward(op, states, given, weight, options) do
    with :ok <- Options.known(options, [:epsilon, :bias, :device]),
         {:ok, x} <- floats(given, "x"),
         {:ok, {rows, dim}} <- sizes(x),
         {:ok, weight} <- vector(weight, "weight", dim),
         {:ok, bias} <- vector(options[:bias], "bias", dim),
         {:ok, epsilon} <- epsilon(Keyword.get(options, :epsilon, 1.0e-5)),
         call =
           Call.new(op)
           |> Call.input(@x, "x", x, [rows, dim])
           |> Call.input(@weight, "weight", weight, [1, dim])
           |> Call.input(@bias, "bias", bias, [1, dim])
           |> Call.constant(@epsilon, epsilon, 2)
           |> Call.output(@y, "y", {x.shape, x.type}, [rows, dim]),
         call =
           Enum.reduce(states, call, fn name, call ->
             {_port, _given, made} = @states[name]
             Call.output(call, made, "#{name}", {of_rows(x), wide(x)}, [rows, 1])
           end),
         ports = Enum.map(states, fn name -> {elem(@states[name], 0), elem(@states[name], 2)} end),
         fields = [x: @x, scale: @weight, bias: bias && @bias, epsilon: @epsilon, y: @y],
         do: Call.run(Call.node(call, op, fields ++ ports), given, options[:device])
  end

  @doc "`{:ok, dx, dweight}`, with `bias: true` `{:ok, dx, dweight, dbias}`, of states with their names."
  @spec backward(String.t(), [{state, Tensor.like()}], Tensor.like(), Tensor.like(), Tensor.like(), keyword) ::
          {:ok, Tensor.like(), Tensor.like()}
          | {:ok, Tensor.like(), Tensor.like(), Tensor.like()}
          | {:error, Error.t()}
  def backward(op, states, dy, given, weight, options) do
    with :ok <- Options.known(options, [:bias, :device]),
         {:ok, x} <- floats(given, "x"),
         {:ok, {rows, dim}} <- sizes(x),
         {:ok, dy} <- floats(dy, "dy"),
         :ok <- shaped(dy, "dy", x.shape),
         {:ok, weight} <- vector(weight, "weight", dim),
         {:ok, states} <- of_each_row(states, x),
         {:ok, bias} <- flag(Keyword.get(options, :bias, false)),
         call =
           Call.new("#{op} backward")
           |> Call.input(@dy, "dy", dy, [rows, dim])
           |> Call.input(@x, "x", x, [rows, dim])
           |> Call.input(@weight, "weight", weight, [1, dim])
           |> Call.output(@dx, "dx", {x.shape, x.type}, [rows, dim])
           |> Call.output(@d_weight, "dweight", {{dim}, weight.type}, [1, dim])
           |> d_bias(bias, weight, dim),
         call =
           Enum.reduce(states, call, fn {name, state}, call ->
             Call.input(call, elem(@states[name], 1), "#{name}", state, [rows, 1])
           end),
         ports = Enum.map(states, fn {name, _} -> {elem(@states[name], 0), elem(@states[name], 1)} end),
         fields = [dy: @dy, x: @x, scale: @weight, dx: @dx, d_scale: @d_weight, d_bias: if(bias, do: @d_bias)],
         {:ok, made} <- Call.run(Call.node(call, "#{op}_backward", fields ++ ports), given, options[:device]) do
      List.to_tuple([:ok | made])
    end
  end

  defp d_bias(call, false, _weight, _dim), do: call

  defp d_bias(call, true, weight, dim),
    do: Call.output(call, @d_bias, "dbias", {{dim}, weight.type}, [1, dim])

  defp of_each_row([], _x), do: {:ok, []}

  defp of_each_row([{name, given} | rest], x) do
    with {:ok, state} <- floats(given, "#{name}"),
         :ok <- shaped(state, "#{name}", of_rows(x)),
         {:ok, states} <- of_each_row(rest, x),
         do: {:ok, [{name, state} | states]}
  end

  defp floats(given, name) do
    with {:ok, tensor} <- Tensor.from(given, name) do
      if tensor.type in @floats,
        do: {:ok, tensor},
        else: Error.invalid("#{name} is of type #{tensor.type}, expected one of #{Enum.join(@floats, ", ")}.")
    end
  end

  defp sizes(%Tensor{shape: {}}), do: Error.invalid("x has the shape {}, expected at least one dim.")

  defp sizes(%Tensor{shape: shape}) do
    dim = elem(shape, tuple_size(shape) - 1)

    if dim > 1,
      do: {:ok, {div(Tuple.product(shape), dim), dim}},
      else: Error.invalid("x has the shape #{inspect(shape)}, expected a last dim of at least 2.")
  end

  defp vector(nil, "bias", _dim), do: {:ok, nil}

  defp vector(given, name, dim) do
    with {:ok, tensor} <- floats(given, name), :ok <- shaped(tensor, name, {dim}), do: {:ok, tensor}
  end

  defp shaped(%Tensor{shape: shape}, _name, shape), do: :ok

  defp shaped(tensor, name, shape),
    do: Error.invalid("#{name} has the shape #{inspect(tensor.shape)}, expected #{inspect(shape)}.")

  defp of_rows(x), do: put_elem(x.shape, tuple_size(x.shape) - 1, 1)
  defp wide(%Tensor{type: :f64}), do: :f64
  defp wide(%Tensor{}), do: :f32

  defp epsilon(value) when is_number(value) and value < 0,
    do: Error.invalid("epsilon is #{Tensor.brief(value)}, expected a number of at least 0.")

  defp epsilon(value), do: Options.float("epsilon", value)

  defp flag(value) when is_boolean(value), do: {:ok, value}
  defp flag(value), do: Error.invalid("bias is #{Tensor.brief(value)}, expected true or false.")
end
