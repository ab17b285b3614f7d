"""Transformer models as data: their dimensions, exact numbers of parameters, and FLOPs."""

from lumos.model.catalogue import load_model, model_names
from lumos.model.transformer import Experts, Latent, Model

__all__ = ["Experts", "Latent", "Model", "load_model", "model_names"]
