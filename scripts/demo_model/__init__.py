"""Training of Ferrule's small demonstration model; `scripts/train_demo_model.py` is the entry."""
