"""From text to token ids and back, and chat templates: by the files of a model, without transformers where they are
enough."""
