defmodule Heddle.Dirty do
  # Which calls the VM sent to its dirty schedulers, as its own trace says.

  # In a trace they all have this number.
  @dirty 0

  @doc "The functions of Heddle.Native that ran on a dirty scheduler while `function` did, in their order."
  @spec calls((() -> term)) :: [atom]
  def calls(function) do
    caller = self()

    {pid, monitor} =
      spawn_monitor(fn ->
        receive do: (:begin -> :ok)
        function.()
        send(caller, {self(), :ended})
        receive do: (:go -> :ok)
      end)

    :erlang.trace(pid, true, [:running, :scheduler_id])
    send(pid, :begin)

    receive do
      {^pid, :ended} -> :ok
      {:DOWN, ^monitor, :process, ^pid, reason} -> exit(reason)
    end

    :erlang.trace(pid, false, [:all])
    delivered = :erlang.trace_delivered(pid)
    receive do: ({:trace_delivered, ^pid, ^delivered} -> :ok)
    send(pid, :go)
    receive do: ({:DOWN, ^monitor, :process, ^pid, _reason} -> :ok)
    collect(pid, [])
  end

  @doc "Calls so often, and collects what each leaves; compiled, as what evaluates scripts holds values for longer."
  @spec collecting(non_neg_integer, (() -> term)) :: :ok
  def collecting(0, _call), do: :ok

  def collecting(count, call) do
    call.()
    :erlang.garbage_collect()
    collecting(count - 1, call)
  end

  defp collect(pid, found) do
    receive do
      {:trace, ^pid, :in, {Heddle.Native, function, _arity}, @dirty} -> collect(pid, [function | found])
      {:trace, ^pid, _event, _mfa, _scheduler} -> collect(pid, found)
    after
      0 -> Enum.reverse(found)
    end
  end
end
