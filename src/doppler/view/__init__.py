"""A page in the browser that answers: what-ifs, and training runs under way."""
