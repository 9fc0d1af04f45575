# Trains a small policy network whose attention, forward and backward, is Heddle's. In bindings/elixir:
#
#     mix run ../../examples/elixir/policy.exs
#
# A state is a signal, one of four, and a flag, which is up at one step of each sequence. Once it has been up, the right
# action is the signal of that step; before, it is to wait. That takes attention: the signal is gone when it is wanted.

alias Heddle.{Tensor, Training}
alias Heddle.Training.Policy

defmodule Signals do
  @batch 8
  @length 12
  @signals 4

  def batch do
    sequences = for _ <- 1..@batch, do: sequence(:rand.uniform(div(@length, 2)) - 1)

    %{
      states:
        Tensor.from_list!(
          Enum.flat_map(sequences, &Enum.flat_map(&1, fn {state, _} -> state end)),
          {@batch, @length, @signals + 1},
          :f32
        ),
      actions:
        Tensor.from_list!(
          Enum.flat_map(sequences, &Enum.map(&1, fn {_, action} -> action end)),
          {@batch, @length},
          :i32
        )
    }
  end

  # {state, action} of each step; action @signals is to wait.
  defp sequence(flagged) do
    signals = for _ <- 1..@length, do: :rand.uniform(@signals) - 1

    for {signal, step} <- Enum.with_index(signals) do
      shown = for s <- 0..(@signals - 1), do: if(s == signal, do: 1, else: 0)
      flag = if step == flagged, do: 1, else: 0
      {shown ++ [flag], if(step < flagged, do: @signals, else: Enum.at(signals, flagged))}
    end
  end

  def right(logits, actions) do
    chosen =
      logits
      |> Tensor.to_list()
      |> Enum.chunk_every(@signals + 1)
      |> Enum.map(&Enum.find_index(&1, fn x -> x == Enum.max(&1) end))

    pairs = Enum.zip(chosen, Tensor.to_list(actions))
    Enum.count(pairs, fn {a, b} -> a == b end) / length(pairs)
  end
end

steps = 100
:rand.seed(:exsss, 20_240_501)
{:ok, parameters} = Policy.init(features: 5, width: 16, heads: 2, dim: 8, actions: 5)
{:ok, start} = Training.new(parameters, heads: 2, optimizer: {:adam, learning_rate: 0.02})

{trained, losses} =
  Enum.reduce(1..steps, {start, []}, fn step, {training, losses} ->
    {:ok, training, loss} = Training.train_step(training, Signals.batch())

    if step == 1 or rem(step, 20) == 0,
      do: IO.puts("step #{String.pad_leading("#{step}", 3)}   loss #{:erlang.float_to_binary(loss, decimals: 4)}")

    {training, [loss | losses]}
  end)

test = Signals.batch()
{:ok, logits} = Policy.logits(trained.parameters, test.states, trained.config)

IO.puts("right actions on sequences not seen: #{round(100 * Signals.right(logits, test.actions))} %")

first = List.last(losses)
last = losses |> Enum.take(10) |> Enum.sum() |> Kernel./(10)
if last > first / 3, do: raise("The loss fell from #{first} to #{last} only.")
