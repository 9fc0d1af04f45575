defmodule Heddle.TrainingTest do
  use ExUnit.Case, async: true

  alias Heddle.{Draw, Error, Tensor, Training}
  alias Heddle.Training.{Optimizer, Policy}

  @config %{heads: 2, attention: [window: {3, nil}]}

  setup do
    {:ok, parameters} = Policy.init(features: 3, width: 6, heads: 2, kv_heads: 1, dim: 4, actions: 3)
    # Biases of 0 would hide a wrong use of them.
    parameters = %{parameters | embedding_bias: Draw.tensor({6}, :f64), head_bias: Draw.tensor({3}, :f64)}
    actions = Tensor.from_list!(for(_ <- 1..10, do: :rand.uniform(3) - 1), {2, 5}, :i32)
    %{parameters: parameters, batch: %{states: Draw.tensor({2, 5, 3}), actions: actions}}
  end

  test "gradients are those of finite differences", c do
    {:ok, loss, gradients} = Policy.loss_and_gradients(c.parameters, c.batch, @config)
    assert Map.keys(gradients) == Map.keys(c.parameters)
    assert loss > 0
    step = 0.005

    for {name, gradient} <- gradients do
      parameter = Map.fetch!(c.parameters, name)
      along = Draw.tensor(parameter.shape, :f64)

      [ahead, behind] =
        for step <- [step, -step] do
          moved = Map.put(c.parameters, name, Draw.moved(parameter, along, step))
          {:ok, loss, _} = Policy.loss_and_gradients(moved, c.batch, @config)
          loss
        end

      expected = Enum.zip_with(gradient, Tensor.to_list(along), &(&1 * &2)) |> Enum.sum()
      assert_in_delta (ahead - behind) / (2 * step), expected, 2.0e-3 * (1 + abs(expected))
    end
  end

  test "a step goes down the gradient, and parameters keep their types", c do
    single =
      Map.new(c.parameters, fn {name, x} -> {name, Tensor.from_list!(Tensor.to_list(x), x.shape, :f32)} end)

    for optimizer <- [{:sgd, learning_rate: 0.02}, {:adam, learning_rate: 0.002}] do
      {:ok, start} = Training.new(single, heads: 2, optimizer: optimizer)

      {training, losses} =
        Enum.reduce(1..10, {start, []}, fn _, {training, losses} ->
          {:ok, training, loss} = Training.train_step(training, c.batch)
          {training, [loss | losses]}
        end)

      assert hd(losses) < List.last(losses)
      assert training.optimizer.step == 10

      assert Enum.all?(training.parameters, fn {name, x} ->
               {x.type, x.shape} == {:f32, single[name].shape}
             end)
    end
  end

  test "the loss of logits", c do
    {:ok, loss, _} = Policy.loss_and_gradients(c.parameters, c.batch, @config)
    {:ok, logits} = Policy.logits(c.parameters, c.batch.states, @config)
    assert logits.shape == {2, 5, 3}

    losses =
      Enum.zip_with(Enum.chunk_every(Tensor.to_list(logits), 3), Tensor.to_list(c.batch.actions), fn row,
                                                                                                     action ->
        :math.log(Enum.sum(Enum.map(row, &:math.exp/1))) - Enum.at(row, action)
      end)

    assert_in_delta loss, Enum.sum(losses) / 10, 1.0e-12
  end

  test "parameters and batches may be tensors of Nx", c do
    nx = fn tensor ->
      Nx.reshape(Nx.from_binary(tensor.data, Tensor.nx_type(tensor.type)), tensor.shape)
    end

    step = fn parameters, batch ->
      {:ok, training} = Training.new(parameters, heads: 2)
      {:ok, training, loss} = Training.train_step(training, batch)
      {training.parameters, loss}
    end

    of_nx = fn map -> Map.new(map, fn {name, tensor} -> {name, nx.(tensor)} end) end
    assert step.(of_nx.(c.parameters), of_nx.(c.batch)) == step.(c.parameters, c.batch)
  end

  test "what does not fit is refused", c do
    refused = fn parameters, batch, options ->
      {:ok, training} = Training.new(parameters, [heads: 2] ++ options)
      assert {:error, %Error{message: sentence}} = Training.train_step(training, batch)
      sentence
    end

    p = c.parameters
    b = c.batch

    for {parameters, batch, options, sentence} <- [
          {Map.delete(p, :key), b, [], "The parameter key is nil, expected a Heddle.Tensor"},
          {%{p | key: Draw.tensor({6, 3})}, b, [], "key and value have 3 and 4 columns"},
          {%{p | value: Draw.tensor({5, 4})}, b, [],
           "embedding_bias has 6 columns and query, key and value have 6, 6 and 5"},
          {%{p | head: Draw.tensor({7, 3})}, b, [], "head is {7, 3} and head_bias has 3 columns"},
          {%{p | head_bias: Draw.tensor({1, 3})}, b, [],
           "The parameter head_bias is f32 of {1, 3}, expected f32 or f64 of 1"},
          {%{p | head: Draw.tensor({8, 3}, :f16)}, b, [], "The parameter head is f16"},
          {%{p | head_bias: Tensor.from_list!([1, :nan, 2], {3}, :f32)}, b, [],
           "The parameter head_bias has an element"},
          {%{p | query: Draw.tensor({6, 7})}, b, [], "heads is 2, expected a divisor of query's 7 columns."},
          {[], b, [], "The parameters are [], expected a map of tensors."},
          {p, %{b | states: Draw.tensor({2, 5, 4})}, [],
           "states is f32 of {2, 5, 4}, expected f32 or f64 of {batch, length, 3}."},
          {p, %{b | states: Tensor.from_list!([:infinity, 1, 2], {1, 1, 3}, :f32)}, [],
           "states has an element"},
          {p, %{b | actions: Tensor.from_list!(List.duplicate(3, 10), {2, 5}, :i32)}, [],
           "actions is i32 of {2, 5}, expected integers from 0 to 2"},
          {p, %{b | actions: Draw.tensor({2, 5})}, [], "actions is f32"},
          {p, %{b | actions: Tensor.from_list!([1], {1}, :i32)}, [], "actions is i32 of {1}"},
          {p, b.states, [], "The batch is %Heddle.Tensor{"},
          {p, b, [attention: [scale: "x"]], "scale is \"x\", expected a number."},
          {p, b, [attention: 5], "The options are 5, expected a keyword list"},
          {%{p | embedding: Tensor.from_list!(List.duplicate(1.0e308, 18), {3, 6}, :f64)},
           %{b | states: Tensor.from_list!(List.duplicate(3, 30), {2, 5, 3}, :f32)}, [],
           "The network's numbers left"},
          {%{p | query: Tensor.from_list!(List.duplicate(1.0e300, 48), {6, 8}, :f64)}, b, [],
           "An element is no number of :f32"},
          {%{p | head_bias: Draw.tensor({3})}, b, [optimizer: {:sgd, learning_rate: 1.0e300}],
           "An element is no number of :f32"},
          {%{p | head_bias: Tensor.from_list!([1.0e308, 1.0e308, 1.0e308], {3}, :f64)}, b,
           [optimizer: {:adam, learning_rate: 1.7e308}], "The step left the range of floats"}
        ] do
      assert String.starts_with?(refused.(parameters, batch, options), sentence)
    end

    for {options, sentence} <- [
          {[head: 2], "There is no option :head"},
          {[optimizer: :adam], "The optimizer is :adam, expected {:sgd, options} or {:adam, options}."},
          {[optimizer: {:adam, beta1: 1}], "The optimizer adam is given {:beta1, 1}, expected a number"},
          {[optimizer: {:sgd, rate: 1}], "There is no option :rate"},
          {[optimizer: {:sgd, learning_rate: -1}], "The optimizer sgd is given {:learning_rate, -1}"}
        ] do
      assert {:error, %Error{message: message}} = Training.new(p, options)
      assert String.starts_with?(message, sentence)
    end

    assert {:error, %Error{message: "dim is nil, expected" <> _}} =
             Policy.init(features: 1, width: 1, heads: 1, actions: 1)

    assert {:error, %Error{message: "kv_heads is 0, expected" <> _}} =
             Policy.init(features: 1, width: 1, heads: 1, actions: 1, dim: 1, kv_heads: 0)

    assert {:error, %Error{message: "features is true, expected" <> _}} =
             Policy.init(features: true, width: 1, heads: 1, actions: 1, dim: 1)

    assert {:error, %Error{message: "There is no option :with" <> _}} = Policy.init(features: 1, with: 1)
    assert {:error, %Error{message: "The options are :none" <> _}} = Policy.init(:none)

    # No heads were given.
    {:ok, training} = Training.new(p, [])
    assert {:error, %Error{message: "heads is nil, expected" <> _}} = Training.train_step(training, b)
  end

  test "Adam's first step is the learning rate, whatever the gradient's size" do
    {:ok, optimizer} = Optimizer.new({:adam, learning_rate: 0.25, epsilon: 0})
    {%{w: [a, b]}, optimizer} = Optimizer.update(optimizer, %{w: [1.0, 1.0]}, %{w: [1.0e-3, -50.0]})
    assert_in_delta a, 0.75, 1.0e-12
    assert_in_delta b, 1.25, 1.0e-12
    # A gradient of 0 leaves a parameter where it is, if its moments are 0 and there is an epsilon.
    {:ok, fresh} = Optimizer.new({:adam, []})
    assert {%{w: [1.0]}, _} = Optimizer.update(fresh, %{w: [1.0]}, %{w: [0.0]})
    assert optimizer.step == 1
  end
end
