"""The fabric as a backend of torch.distributed. Importing this does not import torch."""

from ferrule.torch_backend.registration import autoload, register

__all__ = ["autoload", "register"]
