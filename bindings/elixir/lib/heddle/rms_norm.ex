defmodule Heddle.RmsNorm do
  @moduledoc """
  RMSNorm over the last dim (Zhang & Sennrich, 2019): y = x / sqrt(mean(x^2) + epsilon) * weight + bias.

      iex> x = Heddle.Tensor.from_list!([3, 4], {1, 2}, :f32)
      iex> weight = Heddle.Tensor.from_list!([1, 1], {2}, :f32)
      iex> {:ok, y} = Heddle.RmsNorm.forward(x, weight)
      iex> Enum.map(Heddle.Tensor.to_list(y), &Float.round(&1, 4))
      [0.8485, 1.1314]
  """

  alias Heddle.{Call, Error, Options, Tensor}

  @floats [:f64, :f32, :bf16, :f16]
  @x 1
  @weight 2
  @bias 3
  @epsilon 4
  @dy 5
  @inverse 6
  @y 11
  @made_inverse 12
  @dx 13
  @d_weight 14
  @d_bias 15

  @doc """
  y, of x's shape and type. `x` is `{..., dim}`, `weight` `{dim}`.

  Options: `epsilon`, 1.0e-5 by default; `bias`, `{dim}`.
  """
  @spec forward(Tensor.like(), Tensor.like(), keyword) :: {:ok, Tensor.like()} | {:error, Error.t()}
  def forward(x, weight, options \\ []) do
    with {:ok, y, _inverse} <- forward_with_states(x, weight, options), do: {:ok, y}
  end

  @doc "As `forward/3`, with 1 / rms of each row besides, `{..., 1}` of f32 (f64 of an x of f64), which `backward/5` takes."
  @spec forward_with_states(Tensor.like(), Tensor.like(), keyword) ::
          {:ok, Tensor.like(), Tensor.like()} | {:error, Error.t()}
  def forward_with_states(given, weight, options \\ []) do
    with :ok <- Options.known(options, [:epsilon, :bias]),
         {:ok, x} <- floats(given, "x"),
         {:ok, {rows, dim}} <- sizes(x),
         {:ok, weight} <- vector(weight, "weight", dim),
         {:ok, bias} <- vector(options[:bias], "bias", dim),
         {:ok, epsilon} <- epsilon(Keyword.get(options, :epsilon, 1.0e-5)),
         call =
           Call.new("rms_norm")
           |> Call.input(@x, "x", x, [rows, dim])
           |> Call.input(@weight, "weight", weight, [1, dim])
           |> Call.input(@bias, "bias", bias, [1, dim])
           |> Call.constant(@epsilon, epsilon, 2)
           |> Call.output(@y, "y", {x.shape, x.type}, [rows, dim])
           |> Call.output(@made_inverse, "inverse", {of_rows(x), wide(x)}, [rows, 1])
           |> Call.node("rms_norm",
             x: @x,
             scale: @weight,
             bias: bias && @bias,
             epsilon: @epsilon,
             y: @y,
             inv_variance: @made_inverse
           ),
         {:ok, made} <- Call.run(call) do
      [y, inverse] = made
      {:ok, Tensor.like(y, given), Tensor.like(inverse, given)}
    end
  end

  @doc """
  The gradients: `{:ok, dx, dweight}`, and with `bias: true` `{:ok, dx, dweight, dbias}`. dx has x's type, the others
  weight's.
  """
  @spec backward(Tensor.like(), Tensor.like(), Tensor.like(), Tensor.like(), keyword) ::
          {:ok, Tensor.like(), Tensor.like()}
          | {:ok, Tensor.like(), Tensor.like(), Tensor.like()}
          | {:error, Error.t()}
  def backward(dy, given, weight, inverse, options \\ []) do
    with :ok <- Options.known(options, [:bias]),
         {:ok, x} <- floats(given, "x"),
         {:ok, {rows, dim}} <- sizes(x),
         {:ok, dy} <- floats(dy, "dy"),
         :ok <- shaped(dy, "dy", x.shape),
         {:ok, weight} <- vector(weight, "weight", dim),
         {:ok, inverse} <- floats(inverse, "inverse"),
         :ok <- shaped(inverse, "inverse", of_rows(x)),
         {:ok, bias} <- flag(Keyword.get(options, :bias, false)),
         call =
           Call.new("rms_norm backward")
           |> Call.input(@dy, "dy", dy, [rows, dim])
           |> Call.input(@x, "x", x, [rows, dim])
           |> Call.input(@weight, "weight", weight, [1, dim])
           |> Call.input(@inverse, "inverse", inverse, [rows, 1])
           |> Call.output(@dx, "dx", {x.shape, x.type}, [rows, dim])
           |> Call.output(@d_weight, "dweight", {{dim}, weight.type}, [1, dim])
           |> d_bias(bias, weight, dim)
           |> Call.node("rms_norm_backward",
             dy: @dy,
             x: @x,
             scale: @weight,
             inv_variance: @inverse,
             dx: @dx,
             d_scale: @d_weight,
             d_bias: if(bias, do: @d_bias)
           ),
         {:ok, made} <- Call.run(call) do
      List.to_tuple([:ok | Enum.map(made, &Tensor.like(&1, given))])
    end
  end

  defp d_bias(call, false, _weight, _dim), do: call

  defp d_bias(call, true, weight, dim),
    do: Call.output(call, @d_bias, "dbias", {{dim}, weight.type}, [1, dim])

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
