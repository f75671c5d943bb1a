"""Documents, and what writes the generated parts of them."""
