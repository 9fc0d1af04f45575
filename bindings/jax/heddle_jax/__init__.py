"""Heddle inside JAX's own XLA: its custom call, and HLO modules compiled and run."""
