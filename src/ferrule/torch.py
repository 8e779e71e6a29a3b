"""``import ferrule.torch`` makes ``torch.distributed.init_process_group("ferrule")`` work. See docs/libraries/torch.md.

Where Ferrule is installed, torch finds the backend by itself (entry point ``torch.backends``), unless
``TORCH_DEVICE_BACKEND_AUTOLOAD=0``; then, and in a source tree, this import is needed.
"""

from ferrule.torch_backend import register

register()
