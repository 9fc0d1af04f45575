defmodule Heddle.DocumentationTest do
  use ExUnit.Case, async: true

  doctest Heddle
  doctest Heddle.FlashAttention
  doctest Heddle.Graph
  doctest Heddle.LayerNorm
  doctest Heddle.Plan
  doctest Heddle.RmsNorm
  doctest Heddle.Rope
  doctest Heddle.Tensor
  doctest Heddle.Training
  doctest Heddle.Training.Optimizer
end
