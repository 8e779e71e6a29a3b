"""How Ferrule's small demonstration model is made; `scripts/train_demo_model.py` is the entry."""
