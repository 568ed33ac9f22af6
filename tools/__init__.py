"""Programs that render documents from the code: the code map, the requirements, the reference."""
