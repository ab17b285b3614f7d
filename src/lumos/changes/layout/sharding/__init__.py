"""Replicas that share more or less of their states than they did.

exchanged     what the recorded replicas exchange by
gathers       gathers of parameters and scatters of gradients, as FSDP2 makes them
sharded       from one stage of ZeRO to another, and each replica's part of the update
"""
