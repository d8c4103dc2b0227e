"""How the catalog's tables came to be, step by step."""
