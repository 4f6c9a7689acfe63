"""The world: tasks, sandboxes and the terminal environments over them. Knows nothing of models."""
